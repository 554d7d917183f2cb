"""Time, as a thing that can be handed in. Standard library only; anybody may import it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """A monotonic clock for durations and a wall clock for labels.

    Durations are never taken from the wall clock: it jumps.
    """

    @abstractmethod
    def now_s(self) -> float:
        """Monotonic seconds since an arbitrary moment."""

    @abstractmethod
    def wall_s(self) -> float:
        """Seconds since the epoch; a label, never subtracted."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Wait, or move the simulated time on."""


class SystemClock(Clock):
    """The machine's clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class SimulatedClock(Clock):
    """A clock that moves only when told, for tests and replay."""

    def __init__(self, *, start_s: float = 0.0, wall_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = wall_s - start_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self._wall_offset_s

    def sleep(self, seconds: float) -> None:
        self._now_s += max(0.0, seconds)
