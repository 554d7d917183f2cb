"""The plain loop keeps what every driver promises."""

from __future__ import annotations

from pathlib import Path

from driver_worlds import WORLDS, open_session

from autotune.clock import SimulatedClock
from autotune.driver.backends.inline import InlineDriver
from autotune.launch.fake import FakeRunner
from autotune.model.study import Study
from autotune.model.trial import Assignment, TrialState
from autotune.store.journal import Entry
from autotune.testing.drivers import DriverContract


class TestInline(DriverContract):
    def drive(self, folder: Path, *, script: str, budget_s: float) -> tuple[Study, list[Entry]]:
        clock = SimulatedClock()
        session, journal = open_session(folder, clock=clock, budget_s=budget_s)
        InlineDriver(session, FakeRunner(WORLDS[script], clock)).run()
        study = session.close()
        entries = list(journal.entries())
        journal.close()
        return study, entries


class Pressing(SimulatedClock):
    """A clock in whose n-th pause somebody presses Ctrl-C."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.left = n
        self.press = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.left -= 1
        if self.left == 0:
            self.press()


def test_an_interrupted_trial_is_left_open_to_be_proposed_again(tmp_path: Path) -> None:
    clock = Pressing(2)
    session, journal = open_session(tmp_path, clock=clock, budget_s=120)
    driver = InlineDriver(session, FakeRunner(WORLDS["good"], clock))

    def press() -> None:
        session.stop("interrupted")
        driver.interrupt()

    clock.press = press
    driver.run()
    study = session.close()
    kinds = [entry.kind for entry in journal.entries()]
    journal.close()
    assert study.stopped == "interrupted"
    assert [(t.number, t.attempt, t.state) for t in study.trials] == [
        (0, 1, TrialState.FINISHED),
        (1, 2, TrialState.WAITING),
    ]
    assert kinds[-2:] == ["requeued", "stopped"]


def test_a_signal_that_comes_while_a_trial_is_planned_is_not_forgotten(tmp_path: Path) -> None:
    """There is no process yet that it could end; the one that was planned is not started."""
    clock = SimulatedClock()
    session, journal = open_session(tmp_path, clock=clock, budget_s=120)
    driver = InlineDriver(session, FakeRunner(WORLDS["good"], clock))
    started: list[int] = []

    class Pressed:
        def __getattr__(self, name: str) -> object:
            return getattr(session, name)

        def start(self, assignment: Assignment) -> None:
            session.start(assignment)
            started.append(assignment.trial)
            if len(started) == 2:
                session.stop("signal")
                driver.interrupt()

    driver._session = Pressed()  # type: ignore[assignment]
    driver.run()
    study = session.close()
    kinds = [entry.kind for entry in journal.entries()]
    journal.close()
    assert [(t.number, t.state) for t in study.trials] == [(0, TrialState.FINISHED), (1, TrialState.WAITING)]
    assert kinds[-4:] == ["proposed", "started", "requeued", "stopped"]
