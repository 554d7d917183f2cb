"""Which trial next: the hook between the search and the loop that runs it."""

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

    Contract: pure and seeded. It holds no state that the study does not hold, reads no clock and
    draws randomness only from (study seed, number of trials so far), so a strategy asked again
    after a restart answers as before. Never proposes a config that the space does not contain,
    nor one that is measured or pending, except to confirm it, or to look again where runs of one
    config differ.
    """

    @abstractmethod
    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        """The next trial, or None when nothing is worth running (or may be run at the moment).

        Args:
            study: Everything known, open trials included.
            remaining_s: Budget left, in seconds of wall time.
        """

    @abstractmethod
    def is_finished(self, study: Study, remaining_s: float) -> bool:
        """Whether `ask` answers None for good, once open trials have ended."""

    def ending(self, study: Study, remaining_s: float) -> str:
        """Why nothing new is tried any more, a sentence for people; empty where nothing new ever is.

        Asked when `ask` has passed on to confirming, or has nothing left.

        Args:
            study: As `ask` was given it.
            remaining_s: The same.
        """
        return ""


class Sampler(Protocol):
    """A foreign proposer of configs, rebuilt from the study each time it is asked."""

    def propose(
        self, study: Study, space: SearchSpace, count_seed: int, may: Callable[[Config], bool] | None = None
    ) -> Config | None:
        """A complete config of the space that the study has not asked for, or None.

        Args:
            study: Everything known.
            space: Of the study.
            count_seed: Makes the draw; the same study and number give the same config.
            may: Whether a config may be run at the moment: likely to fit, free of values that never
                worked, affordable. What it refuses is not proposed. None: everything may.
        """
