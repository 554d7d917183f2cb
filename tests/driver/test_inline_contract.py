"""The plain loop keeps what every driver promises."""

from __future__ import annotations

from pathlib import Path

from driver_worlds import WORLDS, open_session

from autotune.clock import SimulatedClock
from autotune.core.study import Study
from autotune.driver.inline import InlineDriver
from autotune.launch.fake import FakeRunner
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


def test_an_interrupted_loop_ends_after_the_running_trial_which_can_be_asked_again(tmp_path: Path) -> None:
    clock = SimulatedClock()
    session, journal = open_session(tmp_path, clock=clock, budget_s=120)

    class Interrupting(FakeRunner):
        def run(self, assignment):
            if assignment.trial == 1:
                session.stop("interrupted")
                driver.interrupt()
            for ended in super().run(assignment):
                yield ended

    driver = InlineDriver(session, Interrupting(WORLDS["good"], clock))
    driver.run()
    study = session.close()
    assert study.stopped == "interrupted"
    assert [trial.number for trial in study.trials] == [0, 1]
    journal.close()
