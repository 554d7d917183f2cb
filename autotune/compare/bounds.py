"""Memory and energy bounds of a study. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.energy import energy
from autotune.model.config import Config

if TYPE_CHECKING:
    from autotune.model.study import Study

_BASE = Config()
_MEMORY_SLACK = 1.0


def largest_peak_bytes(study: Study, config: Config) -> int | None:
    """Return the largest peak memory of a config's runs in bytes; None if it was never measured."""
    peaks = [t.measurement.memory.peak_bytes for t in study.of(config) if t.measurement]
    return max((p for p in peaks if p is not None), default=None)


def fits(study: Study, peak_bytes: int | None) -> bool:
    """Return whether a peak is within the memory bounds; an unknown peak counts as within.

    Args:
        study: Its constraints and its memory limit apply.
        peak_bytes: From `largest_peak_bytes`.
    """
    bounds = [c.at_most for c in study.spec.constraints if c.metric == "peak_memory"]
    if study.spec.max_memory_bytes is not None:
        bounds.append(float(study.spec.max_memory_bytes))
    return peak_bytes is None or all(peak_bytes <= bound * _MEMORY_SLACK for bound in bounds)


def is_within_budget(study: Study, config: Config) -> bool:
    """Return whether a config is within the energy bounds; an uncounted config is not."""
    bounds = [c.at_most for c in study.spec.constraints if c.metric == "joules_per_sample"]
    if not bounds:
        return True
    own, used = energy(study, _BASE), energy(study, config)
    # A figure from other counters than the script's would not be comparable.
    counted = own is not None and used is not None and used.of == own.of
    return counted and used is not None and used.joules_per_sample <= min(bounds)
