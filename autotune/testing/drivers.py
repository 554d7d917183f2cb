"""Contract of every driver, as tests: subclass `DriverContract` and implement `drive`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from autotune.model.trial import Stage, TrialState

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.model.study import Study
    from autotune.store.journal import Entry


class DriverContract(ABC):
    """Override `drive`; every test makes one search of a small script that trains for real or fakes it."""

    @abstractmethod
    def drive(self, folder: Path, *, script: str, budget_s: float) -> tuple[Study, list[Entry]]:
        """Search one of the named scripts (``good``, ``crashes_on_bf16``, ``fails``) to its end.

        Returns:
            The closed study and the journal's entries.
        """

    def test_every_trial_is_proposed_started_and_finished_once(self, tmp_path: Path) -> None:
        """Check that the journal holds one request, start and result per trial and attempt."""
        study, entries = self.drive(tmp_path, script="good", budget_s=60)
        uids = [e.uid for e in entries]
        assert len(uids) == len(set(uids))
        for trial in study.trials:
            assert trial.state is TrialState.FINISHED
            for kind in ("proposed", "finished"):
                assert f"{kind}/{trial.number}/{trial.attempt}" in uids
        assert entries[-1].kind == "stopped"

    def test_the_baseline_comes_first_and_the_finalists_last(self, tmp_path: Path) -> None:
        """After the first run of a confirmation nothing is screened any more."""
        study, _ = self.drive(tmp_path, script="good", budget_s=60)
        assert study.trials[0].stage is Stage.BASELINE
        order = [Stage.INITIAL, Stage.REFINE]
        others = [t.stage for t in study.trials if t.stage is not Stage.BASELINE]
        ranks = [order.index(stage) if stage in order else len(order) for stage in others]
        assert ranks == sorted(ranks)
        stages = [t.stage for t in study.trials]
        confirming = stages.index(Stage.CONFIRM) if Stage.CONFIRM in stages else len(stages)
        assert Stage.BASELINE not in stages[confirming:]

    def test_a_failing_value_does_not_end_the_search(self, tmp_path: Path) -> None:
        """Check that a crash is a value, after which the search continues."""
        study, _ = self.drive(tmp_path, script="crashes_on_bf16", budget_s=120)
        failed = [t for t in study.trials if t.failure is not None]
        assert failed
        assert any(t.measurement for t in study.trials if t.number > failed[0].number)

    def test_a_script_that_fails_by_itself_ends_it_at_once(self, tmp_path: Path) -> None:
        """Check that no trial follows a failing baseline."""
        study, _ = self.drive(tmp_path, script="fails", budget_s=60)
        assert study.stopped == "no_baseline"
        assert len(study.trials) == 1
