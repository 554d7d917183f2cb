"""Ray Tune keeps what every driver promises; its trials are real processes that report a made-up training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from driver_worlds import WORLDS, open_session, stub_python

from autotune.clock import SystemClock
from autotune.driver.backends import ray_auth
from autotune.driver.backends.head_start import HeadStart
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.backends.local_ray import MARK
from autotune.launch.guard import process_tree
from autotune.launch.process import LocalRunner
from autotune.model.study import Study
from autotune.store.journal import Entry
from autotune.testing.drivers import DriverContract

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

MOST_TRIALS = 11
CANARY = "CANARY-under-ray-17"


def holding(root: Path) -> list[Path]:
    """Files below it in which the canary stands."""
    files = (p for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    return [p for p in files if CANARY.encode() in p.read_bytes()]


class TestRay(DriverContract):
    ended: ClassVar[dict[str, tuple[Study, list[Entry]]]] = {}
    staged: ClassVar[dict[str, list[Path]]] = {}
    """Script -> what Ray's own folder held of Tune's snapshots when the loop had ended."""
    reported: ClassVar[dict[str, list[Path]]] = {}
    """Script -> files with the value of a variable or an argument in them at that time."""

    def drive(self, folder: Path, *, script: str, budget_s: float) -> tuple[Study, list[Entry]]:
        # A Ray is started and ended per search; the same search is not made twice.
        if script not in self.ended:
            self.ended[script] = self.search(folder, script)
        return self.ended[script]

    def search(self, folder: Path, script: str) -> tuple[Study, list[Entry]]:
        ray_auth.prepare("")
        from autotune.driver.backends.ray_tune import NO_TRIALS, RayDriver

        python = stub_python(folder, WORLDS[script])
        session, journal = open_session(
            folder,
            clock=SystemClock(),
            budget_s=200,
            python=python,
            trials=MOST_TRIALS,
            environ={"MY_API_TOKEN": CANARY},
            args=("--password", CANARY),
        )
        driver = RayDriver(session, study_dir=folder / "study", isolation="redirect")
        try:
            driver.connect()
            driver.run()
            self.staged[script] = list(Path(driver._temp).rglob("*experiment_state*"))
            states = [p.read_text() for p in (folder / "study").rglob("*experiment_state*")]
            assert set(states) == {NO_TRIALS}, "Tune's snapshots hold what trials were given and have printed"
            self.reported[script] = [
                p for root in (Path(driver._temp), folder / "study") for p in holding(root)
            ]
        finally:
            driver.close()
        study = session.close()
        entries = list(journal.entries())
        journal.close()
        return study, entries

    def test_tune_stages_no_environment_where_others_may_read_it(self, tmp_path: Path) -> None:
        """The folder of a Ray's session is open to everybody, and on a cluster it is not ours to close."""
        self.drive(tmp_path, script="good", budget_s=60.0)
        assert self.staged["good"] == []

    def test_no_secret_of_the_user_is_written_at_all(self, tmp_path: Path) -> None:
        """Tune and Ray write down what they are given."""
        self.drive(tmp_path, script="good", budget_s=60.0)
        assert self.reported["good"] == []


def test_a_ray_that_starts_in_a_thread_runs_the_trials_after_the_first_one(tmp_path: Path) -> None:
    """Linux kills Ray's processes when that thread ends, so it ends with the driver."""
    ray_auth.prepare("")
    from autotune.driver.backends.ray_tune import RayDriver

    session, journal = open_session(
        tmp_path,
        clock=SystemClock(),
        budget_s=200,
        python=stub_python(tmp_path, WORLDS["good"]),
        trials=5,
    )
    study_dir = tmp_path / "study"
    rays: list[RayDriver] = []

    def start() -> RayDriver:
        rays.append(RayDriver(session, study_dir=study_dir, isolation="redirect"))
        rays[-1].connect()
        return rays[-1]

    def runner(is_starting: Callable[[], bool]) -> LocalRunner:
        return LocalRunner(study_dir=study_dir, isolation="redirect")

    driver = HeadStart(session, runner, start)
    try:
        driver.connect()
        driver.run()
        assert rays[0]._dead_part() == rays[0]._dead_part() == ""
    finally:
        driver.close()
    study = session.close()
    journal.close()
    assert session.stopping == ""
    assert len(study.trials) > 2
    assert all(trial.measurement is not None for trial in study.trials)
    assert process_tree.marked(rays[0]._temp, MARK) == []
    assert not Path(rays[0]._temp).exists()


def test_a_search_that_is_over_before_ray_has_a_trial_ends_like_any_other(tmp_path: Path) -> None:
    ray_auth.prepare("")
    from autotune.driver.backends.ray_tune import RayDriver

    python = stub_python(tmp_path, WORLDS["good"])
    session, journal = open_session(tmp_path, clock=SystemClock(), budget_s=200, python=python, trials=1)
    study_dir = tmp_path / "study"
    driver = RayDriver(session, study_dir=study_dir, isolation="redirect")
    try:
        driver.connect()
        first = InlineDriver(session, LocalRunner(study_dir=study_dir, isolation="redirect"))
        first.run_next()
        first.close()
        driver.run()
    finally:
        driver.close()
    study = session.close()
    journal.close()
    assert [trial.number for trial in study.trials] == [0]
    assert study.trials[0].measurement is not None
