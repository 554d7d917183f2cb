"""What a run would add to the front of speed and memory; pure.

The front is what somebody with less memory chooses from. It gets runs where nothing more is expected of
speed alone, so that it costs the search for the fastest nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.model.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.model.study import Study
    from autotune.search.models.memory_model import MemoryModel
    from autotune.search.models.throughput_model import ThroughputModel

Point = tuple[float, float]
"""Of ln(rate / baseline's) and ln(most memory seen / memory): more is better on both."""

_SLOWEST = 0.5
_ROOM = 1.05


class Frontier:
    """The front of what was measured, by what the models make of it.

    Args:
        study: As of now.
        speed: Its throughput model.
        memory: Its memory model.
        among: Measured configs that count.
    """

    def __init__(
        self, study: Study, speed: ThroughputModel, memory: MemoryModel, among: Iterable[Config]
    ) -> None:
        self._speed, self._memory = speed, memory
        peaks = {c: peak for c in (Config(), *among) if (peak := _peak(study, c))}
        self._most = _ROOM * max(peaks.values(), default=0.0)
        self._points = [(speed.predict(c)[0], math.log(self._most / peak)) for c, peak in peaks.items()]

    def gain(self, config: Config) -> float:
        """Area that the config would add, by what is predicted of it; 0 where memory is not counted.

        In ln rate times ln memory, above half the script's rate: 0.01 is a per cent of memory spared
        at e times that rate.
        """
        peak = self._memory.peak_bytes(config)
        if not self._points or peak is None:
            return 0.0
        point = (self._speed.predict(config)[0], math.log(self._most / peak))
        return area([*self._points, point]) - area(self._points)


def area(points: Sequence[Point]) -> float:
    """What points dominate above half the script's rate, and below all memory that was seen."""
    slowest, total, spared = math.log(_SLOWEST), 0.0, 0.0
    for rate, saved in sorted(points, reverse=True):
        if rate > slowest and saved > spared:
            total += (rate - slowest) * (saved - spared)
            spared = saved
    return total


def _peak(study: Study, config: Config) -> float:
    peaks = [t.measurement.memory.peak_bytes for t in study.of(config) if t.measurement]
    return float(max((p for p in peaks if p), default=0))
