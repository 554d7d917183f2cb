"""Level of the loader's queue at the ends of steps: batches that were ready."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.trial.measure.sources import Sources

_MOST_LEVELS = 4096
_LEVEL_NS = 250_000_000
"""Interval between readings of the loader's queue in an open window: about one block."""


class QueueLevels:
    """Readings of the queue, since the level at the window's start does not hold after a cut.

    Args:
        sources: Gives the loader.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._levels: deque[tuple[int, int]] = deque(maxlen=_MOST_LEVELS)
        """(time, ready batches)."""
        self.next_ns = 0
        """When an open window reads the queue next."""
        self.has_queue = False

    def ready(self) -> int | None:
        """Return the batches that are ready now; None if unknown."""
        loader = self._sources.loader
        return loader.ready() if loader is not None else None

    def add(self, now: int) -> int | None:
        """Read and record the level; return it."""
        ready = self.ready()
        if ready is not None:
            self._levels.append((now, ready))
        return ready

    def window_opens(self, now: int) -> None:
        """Record the level as a window opens."""
        self.has_queue = False
        self.add_inside(now)

    def add_inside(self, now: int) -> None:
        """Record the level in an open window."""
        self.has_queue = self.add(now) is not None or self.has_queue
        self.next_ns = now + _LEVEL_NS

    def at(self, at_ns: int, *, since_ns: int) -> int | None:
        """Return the batches ready at a moment of a window; None if not read at about that time."""
        levels = (level for level in self._levels if level[0] >= since_ns)
        near = min(levels, key=lambda level: abs(level[0] - at_ns), default=None)
        return near[1] if near is not None and abs(near[0] - at_ns) <= _LEVEL_NS else None
