"""Injectable time source. Standard library only; every package may import it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """A monotonic clock for durations and a wall clock for labels.

    Durations never come from the wall clock, which can jump.
    """

    @abstractmethod
    def now_s(self) -> float:
        """Return monotonic seconds since an arbitrary moment."""

    @abstractmethod
    def wall_s(self) -> float:
        """Return seconds since the epoch, for labels only."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Sleep, or advance the simulated time."""


class SystemClock(Clock):
    """The machine's clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class SimulatedClock(Clock):
    """A clock that advances only by `sleep`, for tests and replay."""

    def __init__(self, *, start_s: float = 0.0, wall_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = wall_s - start_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self._wall_offset_s

    def sleep(self, seconds: float) -> None:
        self._now_s += max(0.0, seconds)
