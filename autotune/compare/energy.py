"""Joules per sample and money per million samples, from measurements. Pure.

A sum over a sum, over all runs of a config with a readable counter. Without a counter the answer is None and
reported as "not available", never as zero.
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
"""Least window, or sum of windows. Counters update every 20 to 100 ms, some per cent of a shorter one."""
LEAST_PART_S = 1.0
"""Shorter windows are ignored."""
_NAMES = {"energy_gpu_j": "GPU", "energy_cpu_j": "CPU packages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of training one sample.

    Args:
        joules_per_sample: Sum of all counters.
        of: Counted devices: ``GPU``, ``CPU packages``, or both.
        runs: Number of runs.
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
    """Return each counter's energy in one run's window."""
    return {key: measurement.extra[key] for key in _NAMES if key in measurement.extra}


def _samples(measurement: Measurement) -> float:
    if measurement.throughput.unit != "samples/s":
        return 0.0
    return measurement.effective_batch * measurement.steps


def cost_per_million(price_per_hour: float | None, samples_per_s: float, unit: str) -> float | None:
    """Return the cost of a million samples in the price's currency; None without a price or samples."""
    if price_per_hour is None or samples_per_s <= 0 or unit != "samples/s":
        return None
    return price_per_hour / 3600.0 * 1e6 / samples_per_s


def counters(measurement: Measurement) -> frozenset[str]:
    """Return the counters read in a run; runs with different ones cannot be compared."""
    return frozenset(measurement.extra) & {"energy_gpu_j", "energy_cpu_j"}


def samples_per_joule(measurement: Measurement) -> float | None:
    """Return the samples per joule in one run's window; None without a counter.

    For figures over several runs, whose spread shows the error of a short window.
    """
    joules, samples = _joules(measurement, LEAST_PART_S), _samples(measurement)
    return samples / joules if joules and samples > 0 else None
