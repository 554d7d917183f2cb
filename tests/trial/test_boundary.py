"""Which steps are counted: none is lost while it is not known yet whether it is one."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import pytest

from autotune.trial.measure.step_counter import StepCounter
from autotune.trial.runtime.child_processes import Children
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import RuntimeState
from autotune.trial.runtime.undo import Undo


class Told:
    """Stands for the recorder."""

    measures = True

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.losses: list[Any] = []
        self.restarts: list[int] = []
        """Rows that were there."""

    def restart(self, *, forgets: bool = False) -> None:
        self.restarts.append(len(self.rows))

    def step(self, row: tuple[Any, ...], loss: Any, _batches: int) -> None:
        self.rows.append(row)
        self.losses.append(loss)

    def samples(self) -> list[int]:
        return [row[2] for row in self.rows]


class Some:
    """An optimizer."""


@pytest.fixture
def seen() -> Any:
    state, reported = RuntimeState(Faults(None), "train.py"), Told()
    boundary = StepCounter(state, reported)  # type: ignore[arg-type]
    yield state, boundary, reported
    boundary.release()


def train(state: RuntimeState, samples: int) -> None:
    state.backwards += 1
    state.input_samples += samples


def test_backward_passes_before_it_is_known_that_they_stand_for_steps_count(seen: Any) -> None:
    state, boundary, reported = seen
    for samples in (4, 5):
        train(state, samples)
        boundary.may_have_passed()
    assert not reported.rows
    train(state, 6)
    boundary.passed(None)
    assert reported.samples() == [4, 5, 6]
    assert reported.rows[0][0] < reported.rows[1][0] < reported.rows[2][0]
    assert state.samples_total == 15
    assert boundary.backwards_per_step() == 1.0


def test_backward_passes_before_the_first_optimizer_steps_are_a_part_of_its_step(seen: Any) -> None:
    state, boundary, reported = seen
    for samples in (4, 5):
        train(state, samples)
        boundary.may_have_passed()
    train(state, 6)
    boundary.passed(Some())
    assert reported.samples() == [15]


def test_steps_of_an_optimizer_that_replaces_the_first_count_from_its_first(seen: Any) -> None:
    state, boundary, reported = seen
    first, second = Some(), Some()
    for number in range(30):
        train(state, number)
        boundary.passed(first if number < 10 else second)
    assert reported.samples() == list(range(30))
    assert reported.restarts == [10, 19], (
        "before what was held is reported, and when all of it was reported at once"
    )
    assert boundary.backwards_per_step() == 1.0
    assert boundary.anchor_optimizer() is second


def test_optimizers_that_step_in_turns_end_one_period_together(seen: Any) -> None:
    state, boundary, reported = seen
    first, second = Some(), Some()
    for _ in range(5):
        train(state, 8)
        boundary.passed(first)
        for _ in range(3):
            train(state, 1)
            boundary.passed(second)
    assert reported.samples() == [8, 11, 11, 11, 11]
    assert boundary.backwards_per_step() == 4.0
    assert not reported.restarts


def test_a_step_that_the_script_reports_takes_what_was_held(seen: Any) -> None:
    state, boundary, reported = seen
    state.wait_ns = 7
    train(state, 4)
    boundary.may_have_passed()
    state.wait_ns = 5
    boundary.sdk_step(32, None)
    assert reported.samples() == [32]
    assert reported.rows[0][1] == 12


def test_the_loss_that_the_script_reports_stands_for_all_that_was_held(seen: Any) -> None:
    state, boundary, reported = seen
    for _ in range(2):
        train(state, 4)
        state.losses.append((3.0, 1.0))
        boundary.may_have_passed()
    state.losses.append((3.0, 1.0))
    boundary.sdk_step(32, 2.5)
    assert reported.losses == [2.5]


def test_a_step_that_is_reported_inside_of_another_waits_for_nobody(seen: Any) -> None:
    state, boundary, reported = seen
    inside = [4]
    state.at_step.append(lambda: boundary.sdk_step(inside.pop(), None) if inside else None)
    thread = threading.Thread(target=boundary.sdk_step, args=(8, None), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert sorted(reported.samples()) == [4, 8]


def test_processes_that_the_script_starts_explain_that_no_step_is_seen() -> None:
    undo = Undo()
    children = Children(RuntimeState(Faults(None), "train.py"), undo)
    children.watch()
    try:
        assert children.train() == ""
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        assert children.started == 1
        assert "started a process" in children.train()
    finally:
        undo.undo_all()
