"""Trust in forks: whether trials of this search may still start as forks of a prepared process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.model.trial import Failure, Family, Measurement, StartMode
from autotune.search.fork_eligibility import mismatch

if TYPE_CHECKING:
    from autotune.launch.runner import TrialResult
    from autotune.model.study import Study
    from autotune.model.trial import Trial


class ForkTrust:
    """Collects evidence against forks. One piece suffices for the rest of the search."""

    def __init__(self) -> None:
        self.lost_because = ""
        """Reason why no further trial is forked; empty while forks are trusted."""
        self._failed: set[int] = set()
        """Trials that failed after a fork and are run again."""

    def check_facts(self, study: Study, trial: Trial, ended: TrialResult) -> str:
        """Return how a forked run differed from one in a new interpreter; empty if it did not."""
        found = mismatch(study, ended.facts) if ended.start is StartMode.FORK else ""
        if found:
            self.lost_because = self.lost_because or f"trial {trial.number} was forked, and {found}"
        return found

    def note_repeat(self, trial: Trial, ended: TrialResult) -> None:
        """Note a run that is repeated in a new interpreter, if it failed by itself after a fork."""
        failure = ended.outcome
        is_own = isinstance(failure, Failure) and failure.kind.family is not Family.LOST
        if ended.start is StartMode.FORK and is_own:
            self._failed.add(trial.number)

    def note_end(self, trial: Trial, ended: TrialResult) -> None:
        """Stop forking after a trial that failed when forked and works in a new interpreter."""
        if trial.number in self._failed and isinstance(ended.outcome, Measurement):
            why = f"trial {trial.number} failed when forked and ran in a new interpreter"
            self.lost_because = self.lost_because or why
