"""Caches of a dataset: containers whose contents are reproduced by fetching samples.

The training process may fill a cache that loader workers have a copy of, by its own fetch or before a pass.
Nothing is lost: a worker computes missing entries itself.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.records.forked_probe import answer_of
from autotune.trial.records.objects import length_of
from autotune.trial.records.sample_digests import digest, seed_all

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEWEST: Final = 8
_SPREAD: Final = 8
"""Number of fetched samples: those of the newest keys, and some of the whole dataset."""
_MOST_TESTS: Final = 8
"""Largest number of tests per dataset; each forks the process twice."""
_LIMIT_S: Final = 5.0


class SampleCaches:
    """Distinguishes caches of a dataset from other containers.

    Args:
        dataset: Dataset whose samples are fetched, in children of this process.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._known: dict[int, tuple[Any, bool]] = {}
        """By identity; referenced, so that ids are not reused."""

    def holds(self, container: Any) -> bool:
        """Return whether samples do not depend on a container's contents, and fetches refill it."""
        if not isinstance(container, (dict, list, set)) or not container:
            return False
        if id(container) not in self._known:
            is_one = len(self._known) < _MOST_TESTS and self._is_cache(container)
            self._known[id(container)] = (container, is_one)
        return self._known[id(container)][1]

    def _is_cache(self, container: Any) -> bool:
        length = length_of(self._dataset, 0)
        if not length or not hasattr(self._dataset, "__getitem__"):
            return False
        keys = (key for key in _newest(container) if type(key) is int and 0 <= key < length)
        drawn = list(dict.fromkeys([*keys, *range(0, length, length // _SPREAD + 1)]))
        whole = answer_of(lambda: self._samples(drawn), limit_s=_LIMIT_S)
        anew = None if whole is None else answer_of(lambda: self._without(container, drawn), limit_s=_LIMIT_S)
        return anew is not None and anew == [whole, True]

    def _samples(self, drawn: Sequence[int]) -> list[str]:
        """Return some samples, each as the first one drawn; runs in a child."""
        torch: Any = sys.modules["torch"]
        # Like a worker, as the parent's threads do not exist here.
        torch.set_num_threads(1)
        found: list[str] = []
        for index in drawn:
            seed_all(torch, index)
            found.append(digest(self._dataset[index], torch))
        return found

    def _without(self, container: Any, drawn: Sequence[int]) -> tuple[list[str], bool]:
        """Return the same with an empty container, and whether it was refilled; runs in a child."""
        if isinstance(container, list):
            container[:] = [None] * len(container)
        else:
            container.clear()
        samples = self._samples(drawn)
        is_filled = any(item is not None for item in container) if isinstance(container, list) else container
        return samples, bool(is_filled)


def _newest(container: Any) -> list[Any]:
    if isinstance(container, list):
        return [place for place, item in enumerate(container) if item is not None][-_NEWEST:]
    return list(islice(reversed(container), _NEWEST)) if isinstance(container, dict) else []
