"""Ray Tune keeps what every driver promises; its trials are real processes that tell a made-up training."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from driver_worlds import WORLDS, open_session, stub_python

from autotune.clock import SystemClock
from autotune.core.study import Study
from autotune.driver import ray_auth
from autotune.store.journal import Entry
from autotune.testing.drivers import DriverContract

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

MOST_TRIALS = 11


class TestRay(DriverContract):
    ended: ClassVar[dict[str, tuple[Study, list[Entry]]]] = {}
    staged: ClassVar[dict[str, list[Path]]] = {}
    """Script -> what Ray's own folder held of Tune's snapshots when the loop had ended."""

    def drive(self, folder: Path, *, script: str, budget_s: float) -> tuple[Study, list[Entry]]:
        # A Ray is started and ended per search; the same search is not made twice.
        if script not in self.ended:
            self.ended[script] = self.search(folder, script)
        return self.ended[script]

    def search(self, folder: Path, script: str) -> tuple[Study, list[Entry]]:
        ray_auth.prepare("")
        from autotune.driver.ray_tune import RayDriver

        python = stub_python(folder, WORLDS[script])
        session, journal = open_session(
            folder, clock=SystemClock(), budget_s=200, python=python, trials=MOST_TRIALS
        )
        driver = RayDriver(session, study_dir=folder / "study", isolation="redirect")
        try:
            driver.connect()
            driver.run()
            self.staged[script] = list(Path(driver._temp).rglob("*experiment_state*"))
            assert list((folder / "study").rglob("*experiment_state*")), "Tune writes no snapshots any more"
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
