"""Joules per sample and money per million samples, from what runs measured. Pure.

A sum over a sum, over all runs of a config in which a counter could be read. Where there was none, the
answer is None and is told as "not available", never as zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.model.config import Config
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study

NOT_AVAILABLE = "not available"
LEAST_WINDOW_S = 5.0
"""Counters move every 20 to 100 ms, at either end: over less than this, in one window or in several together,
that is more than a few per cent of the figure."""
LEAST_PART_S = 1.0
"""A shorter window says nothing at all, in whatever company."""
_NAMES = {"energy_gpu_j": "GPU", "energy_cpu_j": "CPU packages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What training one sample takes.

    Args:
        joules_per_sample: Of all counters together.
        of: What was counted: ``GPU``, ``CPU packages``, or both.
        runs: How many runs it rests on.
    """

    joules_per_sample: float
    of: str
    runs: int


def energy(study: Study, config: Config) -> Energy | None:
    """Energy per sample of a config; None where no counter was read in any run of it, or not for long enough.

    None also where some runs read other counters than the rest: their sum would be of neither.
    """
    runs = [m for m in (t.measurement for t in study.of(config)) if m is not None]
    known = [(m, _parts(m)) for m in runs if _parts(m) and m.window_s >= LEAST_PART_S and _samples(m) > 0]
    counted = {tuple(parts) for _, parts in known}
    if len(counted) != 1 or math.fsum(m.window_s for m, _ in known) < LEAST_WINDOW_S:
        return None
    joules = math.fsum(j for _, parts in known for j in parts.values())
    return Energy(
        joules_per_sample=joules / math.fsum(_samples(m) for m, _ in known),
        of=" and ".join(_NAMES[key] for key in counted.pop()),
        runs=len(known),
    )


def run_joules(measurement: Measurement) -> float | None:
    """Return joules of one run's window; None where it was short or nothing counted them."""
    return _joules(measurement, LEAST_WINDOW_S)


def _joules(measurement: Measurement, least_s: float) -> float | None:
    parts = _parts(measurement)
    return math.fsum(parts.values()) if parts and measurement.window_s >= least_s else None


def _parts(measurement: Measurement) -> dict[str, float]:
    """What each counter told of one run's window."""
    return {key: measurement.extra[key] for key in _NAMES if key in measurement.extra}


def _samples(measurement: Measurement) -> float:
    if measurement.throughput.unit != "samples/s":
        return 0.0
    return measurement.effective_batch * measurement.steps


def cost_per_million(price_per_hour: float | None, samples_per_s: float, unit: str) -> float | None:
    """What a million samples cost, in the currency of the price; None without one, or without samples."""
    if price_per_hour is None or samples_per_s <= 0 or unit != "samples/s":
        return None
    return price_per_hour / 3600.0 * 1e6 / samples_per_s


def counters(measurement: Measurement) -> frozenset[str]:
    """Which counters were read in a run; runs with other ones cannot be compared."""
    return frozenset(measurement.extra) & {"energy_gpu_j", "energy_cpu_j"}


def samples_per_joule(measurement: Measurement) -> float | None:
    """What energy buys in one run's window: more is better, as with a rate; None where nothing counted it.

    For figures of several runs together, whose spread shows how far a short window is off.
    """
    joules, samples = _joules(measurement, LEAST_PART_S), _samples(measurement)
    return samples / joules if joules and samples > 0 else None
