"""Containers that a dataset keeps samples in: what they hold is in the samples anyway.

The training process may fill a cache that loader workers have a copy of, with a fetch of its own or before a
pass. Nothing is lost by that: a worker makes for itself what it has not.
"""

# What scripts hand over is of any type; narrowing it yields partly unknown types.
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
"""Samples that are fetched for it: those of the newest keys, and some of the whole data set."""
_MOST_TESTS: Final = 8
"""Of one dataset; each forks the process twice."""
_LIMIT_S: Final = 5.0


class SampleCaches:
    """Tells caches of a dataset from other containers.

    Args:
        dataset: Whose samples are fetched, in children of this process.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._known: dict[int, tuple[Any, bool]] = {}
        """By identity; held, so that none is taken for another one."""

    def holds(self, container: Any) -> bool:
        """Whether samples are the same without what is in a container, and fetches fill it again."""
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
        asked = list(dict.fromkeys([*keys, *range(0, length, length // _SPREAD + 1)]))
        whole = answer_of(lambda: self._samples(asked), limit_s=_LIMIT_S)
        anew = None if whole is None else answer_of(lambda: self._without(container, asked), limit_s=_LIMIT_S)
        return anew is not None and anew == [whole, True]

    def _samples(self, asked: Sequence[int]) -> list[str]:
        """In a child: some samples, each as if it were the first that is drawn."""
        torch: Any = sys.modules["torch"]
        # As a worker does: the threads of the parent are not there.
        torch.set_num_threads(1)
        found: list[str] = []
        for index in asked:
            seed_all(torch, index)
            found.append(digest(self._dataset[index], torch))
        return found

    def _without(self, container: Any, asked: Sequence[int]) -> tuple[list[str], bool]:
        """In a child: the same with an empty container, and whether it was filled again."""
        if isinstance(container, list):
            container[:] = [None] * len(container)
        else:
            container.clear()
        samples = self._samples(asked)
        is_filled = any(item is not None for item in container) if isinstance(container, list) else container
        return samples, bool(is_filled)


def _newest(container: Any) -> list[Any]:
    if isinstance(container, list):
        return [place for place, item in enumerate(container) if item is not None][-_NEWEST:]
    return list(islice(reversed(container), _NEWEST)) if isinstance(container, dict) else []
