"""Signs of life, and which time belongs to an evaluation; without torch."""

from __future__ import annotations

import time
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.launch.result.process_reports import ProcessReports
from autotune.model.config import Config
from autotune.model.facts import RunFacts
from autotune.model.trial import Fidelity, Segment
from autotune.protocol.events import Steps
from autotune.protocol.lines import Reader
from autotune.trial.hooks.data.loader import Loader
from autotune.trial.measure.recorder import Recorder
from autotune.trial.measure.timed_steps import WindowEnd
from autotune.trial.records.loader_stats import LoaderStats
from autotune.trial.runtime.channel import Channel, Row
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.memory import DeviceMemory
from autotune.trial.runtime.state import EVALUATION, RuntimeState
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000 * S
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now)

    def step(self) -> Row:
        return (self.now, 0, 8, -1.0, 0, 0, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def state(tmp_path: Path) -> RuntimeState:
    return RuntimeState(Faults(tmp_path / "faults.log"), str(tmp_path / "train.py"))


def test_what_follows_a_step_at_once_is_reported_all_the_same(tmp_path: Path, clock: Clock) -> None:
    """A checkpoint right after a step may take minutes, in which nothing else is heard."""
    channel, reader, reported = Channel(tmp_path / "e", "n"), Reader(tmp_path / "e", "n"), ProcessReports()
    for epoch in range(3):
        for _ in range(4):
            clock.now += S // 10
            channel.step(clock.step())
        channel.beat()
        for event in reader.read():
            reported.take(event)
        assert reported.beating, f"epoch {epoch}"
        assert len(reported.rows) == 4 * (epoch + 1)


def test_signs_of_life_alone_come_once_a_second(tmp_path: Path, clock: Clock) -> None:
    channel = Channel(tmp_path / "e", "n")
    for _ in range(50):
        clock.now += S // 10
        channel.beat()
    events = list(Reader(tmp_path / "e", "n").read())
    assert events == [Steps(rows=())] * 5


def test_a_full_disk_does_not_reach_the_script(state: RuntimeState) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    state.beat = full
    state.evaluates(1)
    state.alive()
    assert state.mark & EVALUATION
    assert state.faults.off == {"beat"}


class Events:
    """Stands for the device's clock."""

    def __init__(self) -> None:
        self.message: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.message.append(name)


def test_an_evaluation_begins_where_its_loader_was_first_requested(state: RuntimeState) -> None:
    state.device_clock = events = Events()  # type: ignore[assignment]
    for requested in (100, 150, 160):
        state.may_evaluate(requested)
    state.evaluates(200)
    state.evaluates(300)
    state.trains(450)
    assert state.take_aside_ns() == 350
    assert events.message == ["aside_begins", "aside_ends"]


def test_a_loader_that_trains_for_the_first_time_is_no_evaluation(state: RuntimeState) -> None:
    state.device_clock = events = Events()  # type: ignore[assignment]
    state.may_evaluate(100)
    assert state.evaluating
    state.trains(200)
    assert (state.take_aside_ns(), state.mark) == (0, 0)
    state.may_evaluate(300)
    assert state.take_aside_ns() == 0
    state.evaluates(400)
    state.trains(500)
    assert state.take_aside_ns() == 100
    assert events.message == [*("aside_begins", "aside_withdrawn") * 2, "aside_begins", "aside_ends"]


class Thing(SimpleNamespace):
    """May be referred to weakly."""


def iterator(*, ready: int, left: bool = True, alive: bool = True) -> Any:
    """An iterator over two workers that prefetch four batches each."""
    flight = dict.fromkeys(range(8 if left else 5), (0,))
    queue = SimpleNamespace(qsize=lambda: ready)
    return Thing(
        _workers=[],
        _num_workers=2,
        _prefetch_factor=4,
        _task_info=flight,
        _workers_status=[True, alive],
        _worker_result_queue=queue,
        _data_queue=queue,
        _shutdown=False,
    )


@pytest.mark.parametrize(
    ("made", "ready"),
    [({}, 6), ({"left": False}, None), ({"alive": False}, None)],
    ids=["in the middle", "nothing left to fetch", "a share is read"],
)
def test_a_queue_that_runs_empty_at_the_end_of_an_epoch_reports_nothing(
    state: RuntimeState, made: Any, ready: int | None
) -> None:
    loader = Loader(state, Undo())
    one, dataset = iterator(ready=6, **made), Thing()
    loader.train = LoaderStats(dataset, [])
    loader.train.iterator = weakref.ref(one)
    assert loader.ready() == ready


def test_workers_that_have_read_their_share_were_there(state: RuntimeState) -> None:
    loader, dataset = Loader(state, Undo()), Thing()
    record = LoaderStats(dataset, [])
    one = iterator(ready=0)
    one._workers = workers = [SimpleNamespace(is_alive=lambda: True) for _ in range(3)]
    record.iterator = weakref.ref(one)
    loader.train = record
    assert loader.observed("num_workers") == 3
    workers[1].is_alive = workers[2].is_alive = lambda: False
    assert loader.observed("num_workers") == 3


def test_a_window_that_is_over_keeps_its_begin(state: RuntimeState, tmp_path: Path) -> None:
    fidelity = Fidelity(
        min_window_s=1.0, max_window_s=2.0, min_steps=3, target_width=0.1, setup_s=9.0, deadline_s=9.0
    )
    steps = [
        Recorder(
            state,
            Channel(tmp_path / "events.jsonl", "n"),
            Segment(trial=0, config=Config(), fidelity=fidelity),
            DeviceMemory(),
            readings=tuple,
            facts=RunFacts,
            settled=lambda _readings, _final: None,
            settle_root=lambda _: True,
        )
        for _ in range(2)
    ]
    for recorder, end in zip(steps, (WindowEnd("limit", 9, None), None), strict=True):
        assert recorder.run is not None
        recorder.run.steps.begin_ns, recorder.run.steps.end = 7, end
        recorder.restart()
        assert recorder.run.steps.begin_ns == (7 if end else 0)
