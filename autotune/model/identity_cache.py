"""Cache of recent results of pure functions of a study, until the study changes.

A search calls them for every next run, and within one confirmation round several times for the same state.
Standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial

T = TypeVar("T")
Key = tuple[object, ...]


class IdentityCache(Generic[T]):
    """The last few answers, found again by the very same objects, whatever these are equal to.

    Values are immutable or not changed by who gets them. What is kept holds on to its key, so that no
    other object can take the place of one in it.

    Args:
        size: Answers that are kept.
    """

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self._kept: tuple[tuple[Key, T], ...] = ()

    def get(self, key: Key, make: Callable[[], T]) -> T:
        """Return the answer for this key; made where it is not among the last ones."""
        for held, value in self._kept:
            if len(held) == len(key) and all(map(operator.is_, held, key)):
                return value
        value = make()
        # Replaced as a whole: a live view may ask from a thread of its own.
        self._kept = ((key, value), *self._kept)[: self._size]
        return value


def study_key(study: Study, *more: object, trials: tuple[Trial, ...] | None = None) -> Key:
    """Return the key of results about runs: everything in a study except clocks and labels.

    Args:
        study: Study of the runs.
        more: Further inputs.
        trials: Relevant trials; all if None.
    """
    known = study.trials if trials is None else trials
    return (study.spec, study.space, study.facts, study.transfer, *more, *known)
