"""What the launcher reports to a trial about others on its device, and what both sides set aside for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.launch.guard import guard
from autotune.launch.guard.guard import busy_ticks
from autotune.launch.result.host_samples import DeviceReading, HostSamples
from autotune.launch.running_trial import Running
from autotune.protocol.disturbed import (
    NAME,
    TOGETHER_NS,
    DisturbanceReader,
    DisturbanceWriter,
    spans,
    touched,
)

S = 1_000_000_000


def test_between_two_looks_that_found_somebody_somebody_was_there() -> None:
    looks = [(0, False), (1, True), (2, True), (3, False), (4, True), (5 + TOGETHER_NS, True)]
    assert spans(looks) == ((1, 2), (4, 4), (5 + TOGETHER_NS, 5 + TOGETHER_NS))
    assert spans([]) == ()


def test_a_step_is_touched_by_a_moment_inside_it_and_by_a_stretch_around_it() -> None:
    begins, ends = [0, 10, 20, 30], [10, 20, 30, 40]
    assert touched(begins, ends, [(12, 12)]) == (False, True, False, False)
    assert touched(begins, ends, [(5, 30)]) == (True, True, True, True)
    assert touched(begins, ends, [(20, 20)]) == (False, False, True, False)
    assert touched(begins, ends, []) == (False,) * 4


def test_what_is_reported_is_heard_line_by_line(tmp_path: Path) -> None:
    writer, listener = DisturbanceWriter(tmp_path), DisturbanceReader(str(tmp_path))
    writer.sample(1 * S, is_disturbed=False)
    assert list(listener.spans()) == []
    assert not (tmp_path / NAME).exists(), "there is nothing to tell"
    writer.sample(2 * S, is_disturbed=True)
    writer.sample(3 * S, is_disturbed=True)
    assert list(listener.spans()) == [(2 * S, 3 * S)]
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"nonsense\n7000000000 70")  # a torn line is not there yet
    assert len(listener.spans()) == 1
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"00000000\n")
    assert listener.spans()[-1] == (7 * S, 7 * S)
    writer.sample(8 * S, is_disturbed=False)
    writer.sample(9 * S, is_disturbed=True)
    assert listener.spans()[-1] == (9 * S, 9 * S)


def test_both_sides_set_the_same_steps_aside(tmp_path: Path) -> None:
    looks = [(n * S // 4, 8 <= n <= 13 or n == 20) for n in range(40)]
    writer, listener = DisturbanceWriter(tmp_path), DisturbanceReader(str(tmp_path))
    for t_ns, is_disturbed in looks:
        writer.sample(t_ns, is_disturbed=is_disturbed)
    begins = list(range(0, 10 * S, S // 20))
    ends = [begin + S // 20 for begin in begins]
    inside = touched(begins, ends, listener.spans())
    assert inside == touched(begins, ends, spans(looks))
    assert sum(inside) == 26 + 1, "five quarters of a second from the first look to the last, and one look"


@pytest.mark.parametrize("folder", ["", "/nowhere/at/all"])
def test_where_nothing_shows_anything_nothing_is_heard(folder: str) -> None:
    assert list(DisturbanceReader(folder).spans()) == []
    DisturbanceWriter(Path("/nowhere/at/all")).sample(1, is_disturbed=True)


STAT = b"""cpu  400 0 40 9000 10 4 2 1 7 7
cpu0 100 0 10 2000 0 1 0 1 0 0
cpu1 200 0 20 1000 0 1 1 0 0 0
cpu2 50 0 5 3000 10 1 1 0 7 7
cpu3 50 0 5 3000 0 1 0 0 0 0
intr 1 2 3
ctxt 4
"""


def test_what_others_do_on_cpus_that_a_job_may_not_use_is_no_disturbance() -> None:
    """A job that was given two of sixty-four received all that others did on the rest."""
    assert busy_ticks(STAT, ()) == 400 + 40 + 4 + 2 + 1
    assert busy_ticks(STAT, {1, 3}) == 222 + 56
    with pytest.raises(ValueError, match="no such CPU"):
        busy_ticks(STAT, {9})


def test_cpu_time_is_that_of_the_cpus_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resource")
    seen: list[set[int]] = []
    monkeypatch.setattr(guard, "busy_ticks", lambda _text, mine: seen.append(set(mine)) or 0)
    monkeypatch.setattr(guard.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(guard.os, "sched_getaffinity", lambda _: {2, 5}, raising=False)
    assert guard.busy_s() in (0.0, None)
    assert HostSamples(start_ns=0).cpus == 2
    monkeypatch.setattr(guard.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    guard.busy_s()
    assert seen in ([{2, 5}, set()], []), "as everybody is reported, where all may be used"


def test_the_launcher_reports_while_the_trial_runs_what_it_sees(tmp_path: Path) -> None:
    running = object.__new__(Running)
    running.devices, running.meter, running._disturbances = [], None, DisturbanceWriter(tmp_path)
    running.disturbs, running.disturbed, running._is_disturbed = bool, [], False
    running._looked_ns = time.perf_counter_ns()
    running._script = lambda: 0  # type: ignore[method-assign]
    looks = [
        DeviceReading(t_ns=1 * S),
        DeviceReading(t_ns=2 * S, foreign=True),
        DeviceReading(t_ns=3 * S, throttled=True),
        DeviceReading(t_ns=4 * S, resident=True),
    ]
    for look in looks:
        running._look(lambda look=look: look)
    running._look(lambda: None)
    assert running.devices == looks
    assert list(DisturbanceReader(str(tmp_path)).spans()) == [(2 * S, 3 * S)]


def test_the_start_of_the_search_is_reported_to_the_trial_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that gets no CPU time for seconds, as while Ray starts, has not seen a quiet machine."""
    running = object.__new__(Running)
    running.devices, running.meter, running._disturbances = [], None, DisturbanceWriter(tmp_path)
    running._script = lambda: 0  # type: ignore[method-assign]
    running.disturbed, running._is_disturbed, running._looked_ns = [], False, 1 * S
    for now_s, starting in ((2, True), (9, True), (10, False), (11, False)):
        monkeypatch.setattr(time, "perf_counter_ns", lambda now_s=now_s: now_s * S)
        running.disturbs = lambda starting=starting: starting
        running._look(None)
    assert list(DisturbanceReader(str(tmp_path)).spans()) == [(1 * S, 10 * S)]
    assert running.disturbed == [(1 * S, 2 * S), (2 * S, 9 * S), (9 * S, 10 * S)]


def test_a_launcher_that_was_stopped_reports_that_time_to_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the whole job stopped nobody sees the script stopped; the trial measures longer for it."""
    running = object.__new__(Running)
    running.devices, running.meter, running._disturbances = [], None, DisturbanceWriter(tmp_path)
    running._script = lambda: 0  # type: ignore[method-assign]
    running.disturbs, running.disturbed, running._is_disturbed, running._looked_ns = bool, [], False, 1 * S
    for now_s in (2, 3, 23, 24):
        monkeypatch.setattr(time, "perf_counter_ns", lambda now_s=now_s: now_s * S)
        running._look(None)
    assert list(DisturbanceReader(str(tmp_path)).spans()) == [(3 * S, 23 * S)]
    assert running.disturbed == [], "it is no work of the search's"


def test_a_link_that_a_trial_has_put_in_the_place_leads_nowhere(tmp_path: Path) -> None:
    aim = tmp_path / "of-the-user"
    aim.write_text("as it was\n")
    (tmp_path / NAME).symlink_to(aim)
    DisturbanceWriter(tmp_path).sample(1, is_disturbed=True)
    assert aim.read_text() == "as it was\n"
