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
        """The study was opened, for the first time or again."""

    def trial_started(self, study: Study, trial: Trial) -> None:
        """The process of a trial is about to start."""

    def trial_ended(self, study: Study, trial: Trial) -> None:
        """A trial has finished or failed."""

    def note(self, study: Study, text: str) -> None:
        """A message for the user: a stage began, a trial is repeated, a value was excluded."""

    def stopping(self, why: str) -> None:
        """No further trial will start. Called from a signal handler: do not wait for anything.

        Args:
            why: ``interrupted`` or ``signal``.
        """

    def study_ended(self, study: Study) -> None:
        """Nothing more will be measured."""
