"""Gain of a run for the Pareto front of speed and memory; pure.

The front offers choices for a device with less memory. It gets runs only when no gain in speed is expected,
so that it costs the search for the fastest nothing.
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
"""Pair of ln(rate / baseline's) and ln(largest memory / memory): more is better in both."""

_SLOWEST = 0.5
_ROOM = 1.05


class Frontier:
    """Pareto front of the measured configs, by the model's predictions.

    Args:
        study: Current study.
        speed: Throughput model of the study.
        memory: Memory model of the study.
        among: Measured configs to include.
    """

    def __init__(
        self, study: Study, speed: ThroughputModel, memory: MemoryModel, among: Iterable[Config]
    ) -> None:
        self._speed, self._memory = speed, memory
        peaks = {c: peak for c in (Config(), *among) if (peak := _peak(study, c))}
        self._most = _ROOM * max(peaks.values(), default=0.0)
        self._points = [(speed.predict(c)[0], math.log(self._most / peak)) for c, peak in peaks.items()]

    def gain(self, config: Config) -> float:
        """Return the predicted area that the config would add; 0 if memory is not measured.

        In ln rate times ln memory, above half the script's rate: 0.01 is one percent of memory spared at e
        times that rate.
        """
        peak = self._memory.peak_bytes(config)
        if not self._points or peak is None:
            return 0.0
        point = (self._speed.predict(config)[0], math.log(self._most / peak))
        return area([*self._points, point]) - area(self._points)


def area(points: Sequence[Point]) -> float:
    """Return the area that points dominate above half the script's rate and below the largest memory."""
    slowest, total, spared = math.log(_SLOWEST), 0.0, 0.0
    for rate, saved in sorted(points, reverse=True):
        if rate > slowest and saved > spared:
            total += (rate - slowest) * (saved - spared)
            spared = saved
    return total


def _peak(study: Study, config: Config) -> float:
    peaks = [t.measurement.memory.peak_bytes for t in study.of(config) if t.measurement]
    return float(max((p for p in peaks if p), default=0))
