"""Interface between the search and the loop that runs its trials."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.model.config import Config
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study
    from autotune.model.trial import Proposal


class Strategy(ABC):
    """Proposes trials from the study alone.

    A strategy is pure and seeded. It holds no state beyond the study, reads no clock, and draws randomness
    only from (study seed, number of trials). After a restart it returns the same proposals. A config is in
    the space and neither measured nor pending, except for confirmation and replicates.
    """

    @abstractmethod
    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        """Return the next trial.

        Args:
            study: Current study, open trials included.
            remaining_s: Budget left, in seconds of wall time.

        Returns:
            None if nothing is worth running, or nothing may run at the moment.
        """

    @abstractmethod
    def is_finished(self, study: Study, remaining_s: float) -> bool:
        """Return whether `ask` returns None permanently once open trials have ended."""

    def ending(self, study: Study, remaining_s: float) -> str:
        """Return why nothing new is tried any more, as a sentence; empty if nothing new ever is.

        Called when `ask` has moved on to confirmation, or has nothing left.

        Args:
            study: Study as passed to `ask`.
            remaining_s: Budget as passed to `ask`.
        """
        return ""


class Sampler(Protocol):
    """External proposer of configs, rebuilt from the study for each proposal."""

    def propose(
        self, study: Study, space: SearchSpace, count_seed: int, may: Callable[[Config], bool] | None = None
    ) -> Config | None:
        """Return a complete config of the space that the study has not proposed, or None.

        Args:
            study: Current study.
            space: Space of the study.
            count_seed: Seed of the draw; the same study and number give the same config.
            may: Predicate for configs that may run now: likely to fit, free of values that never worked,
                affordable. None allows every config.
        """
