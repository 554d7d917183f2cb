"""Joules per sample and money per million samples, from what runs measured. Pure.

A sum over a sum, over all runs of a config in which a counter could be read. Where there was none, the
answer is None and is told as "not available", never as zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.core.config import Config
    from autotune.core.measurement import Measurement
    from autotune.core.study import Study

NOT_AVAILABLE = "not available"
LEAST_WINDOW_S = 1.0
"""Counters move every 20 to 100 ms; over less than this their steps are most of the figure."""


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
    """Energy per sample of a config; None where no counter was read in any run of it."""
    runs = [m for m in (t.measurement for t in study.of(config)) if m is not None]
    known = [(m, j) for m in runs if (j := run_joules(m)) is not None and _samples(m) > 0]
    if not known:
        return None
    names = {"energy_gpu_j": "GPU", "energy_cpu_j": "CPU packages"}
    of = " and ".join(name for key, name in names.items() if all(key in m.extra for m, _ in known))
    return Energy(
        joules_per_sample=math.fsum(j for _, j in known) / math.fsum(_samples(m) for m, _ in known),
        of=of or "some counters",
        runs=len(known),
    )


def run_joules(measurement: Measurement) -> float | None:
    """Joules of one run's window; None where it was short or nothing counted them."""
    parts = [measurement.extra[k] for k in ("energy_gpu_j", "energy_cpu_j") if k in measurement.extra]
    return math.fsum(parts) if parts and measurement.window_s >= LEAST_WINDOW_S else None


def _samples(measurement: Measurement) -> float:
    if measurement.throughput.unit != "samples/s":
        return 0.0
    return measurement.effective_batch * measurement.steps


def cost_per_million(price_per_hour: float | None, samples_per_s: float, unit: str) -> float | None:
    """What a million samples cost, in the currency of the price; None without one, or without samples."""
    if price_per_hour is None or samples_per_s <= 0 or unit != "samples/s":
        return None
    return price_per_hour / 3600.0 * 1e6 / samples_per_s
