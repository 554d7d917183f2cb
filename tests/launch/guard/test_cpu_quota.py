"""A quota of CPU time around a trial: how it is found, and what is judged by it in place of CPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.launch.guard import cpu_quota as quota
from autotune.launch.guard import guard
from autotune.launch.outcomes import outside_of
from autotune.launch.result.host_samples import HostSample, HostSamples, read_samples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.protocol.events import Closed, StepRow, Steps

S = 1_000_000_000
STAT = "usage_usec 7500000\nuser_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 1250000\n"
SECOND = {
    "proc/self/cgroup": "0::/pod/box\n",
    "sys/fs/cgroup/pod/box/cpu.max": "200000 100000\n",
    "sys/fs/cgroup/pod/box/cpu.stat": STAT,
    "sys/fs/cgroup/pod/cpu.max": "400000 100000\n",
    "sys/fs/cgroup/pod/cpu.stat": "usage_usec 1\n",
}
FIRST = {
    "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/y\n",
    "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/x/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 1250000000\n",
    "sys/fs/cgroup/cpuacct/x/cpuacct.usage": "7500000000\n",
}


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(root)


@pytest.mark.parametrize("files", [SECOND, FIRST])
def test_the_tightest_quota_reports_what_is_used_under_it_and_how_long_it_stood_still(
    tmp_path: Path, files: dict[str, str]
) -> None:
    found = quota.find(64, tree(tmp_path, files))
    assert found is not None
    assert found.cpus == 2.0
    assert found.look() == (7.5, 1.25)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {**SECOND, "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n", "sys/fs/cgroup/pod/cpu.max": "max 1\n"},
        {**FIRST, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n"},
        {**SECOND, "sys/fs/cgroup/pod/box/cpu.max": "\n", "sys/fs/cgroup/pod/cpu.max": "a b c\n"},
    ],
)
def test_without_a_quota_there_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert quota.find(64, tree(tmp_path, files)) is None


def test_a_quota_of_as_many_cpus_as_there_are_is_none(tmp_path: Path) -> None:
    assert quota.find(2, tree(tmp_path, SECOND)) is None
    assert quota.find(3, tree(tmp_path, SECOND)) is not None


def test_what_cannot_be_read_of_a_quota_is_not_known(tmp_path: Path) -> None:
    left = {k: v for k, v in FIRST.items() if not k.endswith(("cpu.stat", "usage"))}
    found = quota.find(64, tree(tmp_path, left))
    assert found is not None
    assert found.look() == (None, None)


def test_the_usage_of_another_hierarchy_is_not_taken_for_that_of_the_quota(tmp_path: Path) -> None:
    apart = {**FIRST, "proc/self/cgroup": "4:cpu:/x\n3:cpuacct:/\n"}
    found = quota.find(64, tree(tmp_path, {**apart, "sys/fs/cgroup/cpuacct/cpuacct.usage": "1\n"}))
    assert found is not None
    assert found.look() == (None, 1.25)


def test_a_guard_looks_at_the_quota_with_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, SECOND)
    found = quota.find(64, root)
    monkeypatch.setattr(guard.cpu_quota, "find", lambda _cpus: found)
    samples = guard.Samples()
    samples.take()
    (tmp_path / "sys/fs/cgroup/pod/box/cpu.stat").write_text("usage_usec 9500000\nthrottled_usec 2000000\n")
    samples.take()
    assert [(s.quota_s, s.still_s) for s in read_samples(samples.rows)] == [(7.5, 1.25), (9.5, 2.0)]
    monkeypatch.setattr(guard.cpu_quota, "find", lambda _cpus: None)
    plain = guard.Samples()
    plain.take()
    assert [(s.quota_s, s.still_s) for s in read_samples(plain.rows)] == [(None, None)]


@pytest.mark.parametrize(("result", "cpus"), [({"cpu_quota": 2.0}, 2.0), ({}, None), (None, None)])
def test_the_launcher_judges_by_the_quota_that_the_guard_has_found(result: Any, cpus: float | None) -> None:
    running: Any = SimpleNamespace(
        start_ns=0,
        devices=[],
        disturbed=[],
        energies=[],
        memory_limit_bytes=0,
        prepared=SimpleNamespace(
            assignment=SimpleNamespace(memory_limit_bytes=0), caches=SimpleNamespace(cold=False)
        ),
    )
    reported = None if result is None else {"samples": [], "peak_bytes": 1, **result}
    assert outside_of(running, reported, ()).quota == cpus


def run(
    *,
    machine: float,
    beside: float | None,
    still: float | None,
    queue_frac: float = 0.0,
    quota: float | None = 2.0,
) -> Any:
    """Of a trial that uses one core, by the cores that others use anywhere and under its quota."""
    rows = [
        StepRow(t_ns=n * S // 10, wait_ns=0, samples=1, queue_ns=int(queue_frac * S / 10)) for n in range(101)
    ]
    reported = ProcessReports()
    reported.take(Steps(rows=tuple(rows)))
    closed = Closed(
        trial=0, begin_ns=0, end_ns=10 * S, ended="limit", steady="steady", first_step_ns=0, compile_s=0.0
    )
    seen = [
        HostSample(
            t_ns=t * S, bytes=1, busy_s=(machine + 1.0) * t, own_s=1.0 * t, pressure_us=None,
            quota_s=None if beside is None else (beside + 1.0) * t,
            still_s=None if still is None else still * t,
        )
        for t in range(11)
    ]  # fmt: skip
    found: Any = measure(closed, reported, HostSamples(start_ns=0, samples=seen, cpus=64, quota=quota))
    return found.contamination


def test_other_tenants_on_other_cpus_of_the_machine_are_no_neighbours_of_a_quota() -> None:
    few, many = run(machine=10.0, beside=0.0, still=0.0), run(machine=25.0, beside=0.0, still=0.0)
    assert few.foreign_cpu_frac == many.foreign_cpu_frac == pytest.approx(0.0)
    assert (few.flags, many.flags) == ((), ())
    assert run(machine=25.0, beside=0.0, still=0.0, quota=None).foreign_cpu_frac == pytest.approx(25.0)
    assert run(machine=25.0, beside=None, still=None).foreign_cpu_frac is None, "nobody could look"


def test_who_uses_up_the_same_quota_takes_cpu_from_the_trial() -> None:
    found = run(machine=10.0, beside=0.9, still=0.5)
    assert found.foreign_cpu_frac == pytest.approx(0.9)
    assert set(found.flags) == {"cpu_contended", "cpu_throttled"}
    waits = run(machine=10.0, beside=0.9, still=None, queue_frac=0.2)
    assert waits.flags == ("cpu_contended",), (
        "waiting tells it where nothing says for how long all stood still"
    )
    assert run(machine=10.0, beside=0.5, still=0.0, queue_frac=0.2).flags == (), "a quota with room"


def test_a_trial_that_uses_up_its_quota_alone_is_marked_and_not_called_contended() -> None:
    assert run(machine=10.0, beside=0.01, still=1.5, queue_frac=0.5).flags == ("cpu_throttled",)


def test_a_machine_that_is_full_takes_cpu_from_a_quota_as_well() -> None:
    assert run(machine=60.0, beside=0.0, still=0.0, queue_frac=0.2).flags == ("cpu_contended",)
