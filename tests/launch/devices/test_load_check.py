"""Which processes outside a search use the machine, from two readings of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.devices.common import Device, DeviceSample
from autotune.launch.devices import load_check
from autotune.launch.devices.load_check import (
    LoadCheck,
    LoadSnapshot,
    OtherProcess,
    cores_used,
    family,
    load_between,
)
from autotune.launch.guard.cpu_quota import Quota
from autotune.model.facts import DeviceFacts
from autotune.model.machine_load import MachineLoad

DRIVER, TRIAL, OTHER, SHELL = 10, 11, 20, 30


def reading(
    t_s: float, *, busy_s: float | None = None, quota_s: float | None = None, **cpu_s: float
) -> LoadSnapshot:
    """The driver with a trial below it, another program, and a shell; by their CPU seconds."""
    parents = {"driver": (DRIVER, 1), "trial": (TRIAL, DRIVER), "ffmpeg": (OTHER, 1), "sh": (SHELL, 1)}
    processes = {
        parents[name][0]: OtherProcess(parent=parents[name][1], name=name, cpu_s=used, cpu=0)
        for name, used in cpu_s.items()
    }
    return LoadSnapshot(t_s=t_s, processes=processes, busy_s=busy_s, pressure_us=t_s * 2e5, quota_s=quota_s)


def between(before: LoadSnapshot, after: LoadSnapshot, **more: object) -> MachineLoad:
    return load_between(before, after, root=DRIVER, cpus={0, 1}, **more)  # type: ignore[arg-type]


def test_a_foreign_process_is_named_and_the_search_itself_is_not() -> None:
    before = reading(0.0, driver=1.0, trial=5.0, ffmpeg=100.0, sh=0.0)
    after = reading(10.0, driver=1.5, trial=14.0, ffmpeg=110.0, sh=0.0)
    found = between(before, after)
    assert found.foreign_cores == pytest.approx(1.0)
    assert [(c.name, c.pid) for c in found.culprits] == [("ffmpeg", OTHER)]
    assert found.pressure_frac == pytest.approx(0.2)


def test_a_trial_is_the_searchs_own_after_its_end_too() -> None:
    before = reading(0.0, driver=1.0, trial=5.0)
    found = between(before, reading(10.0, driver=15.0), counts_unseen=False)
    assert found.foreign_cores == 0.0
    assert family(before.processes, DRIVER) == {DRIVER, TRIAL}


def test_what_a_child_had_used_before_does_not_count_when_it_ends() -> None:
    """A shell inherits an hour of CPU time at once when its job ends."""
    job, inner = 31, 32
    before = reading(0.0, sh=0.0)
    processes = {
        **before.processes,
        job: OtherProcess(parent=SHELL, name="job", cpu_s=100.0, cpu=0),
        inner: OtherProcess(parent=job, name="inner", cpu_s=3600.0, cpu=0),
    }
    before = LoadSnapshot(t_s=0.0, processes=processes)
    after = reading(10.0, sh=3702.0)
    assert cores_used(before, after)[SHELL] == pytest.approx(0.2)


def test_time_of_processes_that_cannot_be_seen_counts_where_nothing_of_ours_ends() -> None:
    before = reading(0.0, busy_s=0.0, driver=0.0)
    after = reading(10.0, busy_s=16.0, driver=1.0)
    assert between(before, after).foreign_cores == 0.0
    found = between(before, after, counts_unseen=True)
    assert found.foreign_cores == pytest.approx(1.5)
    assert [c.name for c in found.culprits] == [""]


def test_under_a_quota_only_those_count_that_share_it() -> None:
    before = reading(0.0, busy_s=0.0, quota_s=0.0, driver=0.0, ffmpeg=0.0, sh=0.0)
    after = reading(10.0, busy_s=20.0, quota_s=6.0, driver=1.0, ffmpeg=10.0, sh=5.0)
    found = between(before, after, limit=1.0, shares={DRIVER, SHELL}, counts_unseen=True)
    assert found.foreign_cores == pytest.approx(0.5)
    assert [c.name for c in found.culprits] == ["sh"]
    assert found.cpus == 1.0


def test_on_a_part_of_a_machine_only_neighbours_on_these_cpus_count() -> None:
    before, after = reading(0.0, ffmpeg=0.0), reading(10.0, ffmpeg=10.0)
    assert between(before, after, all_cpus=64).foreign_cores == pytest.approx(1.0)
    elsewhere = load_between(before, after, root=DRIVER, cpus={5}, all_cpus=64)
    assert elsewhere.foreign_cores == 0.0


class Card(Device):
    """An accelerator with two processes on it and its clocks held down."""

    @property
    def facts(self) -> DeviceFacts:
        return DeviceFacts(name="H100", uuid="GPU-1", memory_bytes=1)

    def sample(self) -> DeviceSample:
        return DeviceSample(pids=(DRIVER, OTHER, SHELL), busy_pids=(DRIVER, OTHER), slowdowns=("hw_thermal",))


def test_a_process_that_computes_on_an_accelerator_is_named_and_one_that_only_holds_memory_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_check.os, "getpid", lambda: DRIVER)
    readings = [reading(0.0, driver=0.0), reading(1.0, driver=0.0)]
    check = LoadCheck([Card()], read=lambda _: readings.pop(0), sleep=lambda _: None)
    found = check.now()
    assert [(c.pid, c.device) for c in found.culprits] == [(OTHER, "H100")]
    assert found.slowdowns == ("H100: hw_thermal",)
    assert found.is_busy


def test_pids_under_a_quota_are_read_from_its_group_and_those_below(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    (tmp_path / "inner" / "cgroup.procs").write_text("3\n")
    assert load_check._shares(Quota(1.0, str(tmp_path))) == {1, 2, 3}
    assert load_check._shares(None) is None


def test_the_first_check_has_nothing_before_it() -> None:
    assert LoadCheck(read=lambda _: reading(0.0)).since_last() is None


@pytest.mark.thorough
def test_a_neighbour_that_never_rests_is_named_without_its_arguments() -> None:
    # Started by a shell that ends at once, so that it is no child of this process.
    line = '"$0" -c "while True: pass  # secret" </dev/null >/dev/null 2>&1 & echo $!'
    started = subprocess.run(["sh", "-c", line, sys.executable], check=True, stdout=subprocess.PIPE)
    pid = int(started.stdout)
    try:
        found = LoadCheck().now()
    finally:
        os.kill(pid, signal.SIGKILL)
    assert found.is_busy
    executable = Path(sys.executable).resolve().name
    assert executable in {culprit.name for culprit in found.culprits}
    assert "secret" not in repr(found)
