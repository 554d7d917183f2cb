"""The loader alone: how fast it yields where nothing else is done. Standard library only."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_FEWEST = 2
_MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Result of draining a loader.

    Args:
        batches: Number of batches in the timed part.
        seconds: Its duration, epoch starts left out.
        starts_s: Duration of each epoch start: creating the iterator and its first batch.
    """

    batches: int
    seconds: float
    starts_s: tuple[float, ...] = ()

    @property
    def batch_s(self) -> float | None:
        """Seconds per batch; None where too few were taken."""
        return self.seconds / self.batches if self.batches >= _FEWEST else None


def drain(
    iterator: Any,
    again: Callable[[], Any],
    *,
    stale: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Drained:
    """Take batches as fast as they come.

    Args:
        iterator: Of the loader, in use; None begins with a new one.
        again: A new iterator of the same loader, None where there is none to be had.
        stale: Batches that may lie ready from before; they are taken and not counted.
        seconds: How long to go on for; half as long again at most is spent on what is not counted.
        clock: In seconds.
    """
    taken, spent_s, skipped_s, starts = 0, 0.0, 0.0, list[float]()
    begun = clock()
    while taken < _MOST and spent_s < seconds and clock() - begun < 2.5 * seconds:
        if iterator is None:
            since = clock()
            iterator = again()
            if iterator is None or not _next(iterator):
                break
            starts.append(clock() - since)
        since = clock()
        if not _next(iterator):
            iterator = None
            continue
        if stale > 0 and skipped_s < 0.5 * seconds:
            stale -= 1
            skipped_s += clock() - since
        else:
            taken += 1
            spent_s += clock() - since
    return Drained(batches=taken, seconds=spent_s, starts_s=tuple(starts))


def _next(iterator: Any) -> bool:
    try:
        next(iterator)
    except StopIteration:
        return False
    return True
