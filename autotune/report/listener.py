"""Readers of a study as it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.core.study import Study
    from autotune.core.trial import Trial


class Listener:
    """Is told what happened, after it was journaled. Never raises, never blocks for long."""

    def study_began(self, study: Study) -> None:
        """The driver has opened the study, for the first time or again."""

    def trial_started(self, study: Study, trial: Trial) -> None:
        """A trial's process is about to start."""

    def trial_ended(self, study: Study, trial: Trial) -> None:
        """A trial was told."""

    def note(self, study: Study, text: str) -> None:
        """Something worth a line: a stage began, a repeat, a value was quarantined."""

    def stopping(self, why: str) -> None:
        """Nothing more is asked from here on. Called by a signal's handler: wait for nothing.

        Args:
            why: ``interrupted`` or ``signal``.
        """

    def study_ended(self, study: Study) -> None:
        """Nothing more will be measured in this life of the driver."""
