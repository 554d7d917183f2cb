"""Receivers of the events of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial


class Listener:
    """Receives the events of a search, each after it was journaled: `autotune.tune(..., progress=listener)`.

    Methods must not raise and must not block for long. `stop` ends the search with the best so far::

        class Enough(autotune.Listener):
            def trial_ended(self, study, trial):
                if len(study.trials) >= 20:
                    self.stop()
    """

    wants_stop = False
    """Whether `stop` was called."""

    def stop(self) -> None:
        """End the search once the running trial is over; `autotune.resume` continues it."""
        self.wants_stop = True

    def study_began(self, study: Study) -> None:
        """Handle the opening of a study, for the first time or again."""

    def trial_started(self, study: Study, trial: Trial) -> None:
        """Handle the start of a trial, just before its process starts."""

    def trial_ended(self, study: Study, trial: Trial) -> None:
        """Handle the end of a trial, finished or failed."""

    def note(self, study: Study, text: str) -> None:
        """Handle a message for the user: a stage began, a trial is repeated, a value was excluded."""

    def stopping(self, why: str) -> None:
        """Handle the stop of a search: no further trial starts.

        Runs in a signal handler: do not wait for anything.

        Args:
            why: ``interrupted`` or ``signal``.
        """

    def study_ended(self, study: Study) -> None:
        """Handle the end of the study: no further measurement follows."""
