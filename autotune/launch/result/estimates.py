"""Throughput and step time of a window, with intervals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.launch.result.window import MIN_BLOCK_S
from autotune.statistics.intervals import Block, form_blocks, window_estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.launch.result.window import Window
    from autotune.model.measurement import Estimate

_BLOCKS = 8
"""Fewest blocks of the usual size; a shorter window has smaller ones."""
_FEWEST_BLOCKS = 3
"""With fewer blocks, each one round of the loader's workers, each step is a block."""
_WIDEN: Mapping[str, float] = {"steady": 1.0, "drifting": 1.5, "no_steady_state": 2.0}


def estimates_of(window: Window) -> tuple[Estimate, Estimate]:
    """Return throughput and seconds per step, as ratios of sums over the window's blocks."""
    loader = window.reports.facts.loader if window.reports.facts else None
    least_s = min(MIN_BLOCK_S, math.fsum(s for _, s in window.clean_rows()) / _BLOCKS)
    blocks = _blocks(window, least_s, max(1, loader.num_workers if loader else 1))
    if len(blocks) < _FEWEST_BLOCKS:
        blocks = _blocks(window, 0.0, 1)
    unit = "samples/s" if window.counts_samples else "steps/s"
    produced = window.kept_frac()
    wide = _WIDEN.get(window.closed.steady, 1.0)
    tight = window.closed.ended == "tight"
    rate = window_estimate(blocks, unit=unit, is_stopped=tight)
    each = window_estimate(blocks, unit="s", per_step=True, is_stopped=tight)
    throughput, step_time = _adjusted(rate, produced, wide), _adjusted(each, 1.0 / produced, wide)
    throughput, step_time = _doubted(throughput, step_time, window.closed.counters)
    if window.is_from_queue():
        # The window cannot show the loader's own rate.
        return replace(throughput, low=0.0), replace(step_time, high=math.inf)
    return throughput, step_time


def _blocks(window: Window, min_block_s: float, min_steps: int) -> tuple[Block, ...]:
    rows = window.clean_rows()
    ends = list(itertools.accumulate(period for _, period in rows))
    return form_blocks(
        [0.0, *ends[:-1]],
        ends,
        [r.samples if window.counts_samples else 1 for r, _ in rows],
        [r.wait_ns / 1e9 for r, _ in rows],
        [d for d, s in zip(window.dirty, window.trained_s, strict=True) if s is not None],
        min_block_s=min_block_s,
        min_steps=min_steps,
    )


def _adjusted(estimate: Estimate, factor: float, widen: float) -> Estimate:
    value = estimate.value * factor
    return replace(
        estimate,
        value=value,
        low=max(0.0, value - (estimate.value - estimate.low) * factor * widen),
        high=value + (estimate.high - estimate.value) * factor * widen,
    )


def _doubted(rate: Estimate, step: Estimate, counters: Mapping[str, float]) -> tuple[Estimate, Estimate]:
    """Return intervals that also hold if the steps cut off at the start were no start-up effect."""
    low, high = counters.get("doubt_low", 1.0), counters.get("doubt_high", 1.0)
    slowest = step.value / low if low > 0.0 else math.inf
    return (
        replace(rate, low=min(rate.low, low * rate.value), high=max(rate.high, high * rate.value)),
        replace(step, low=min(step.low, step.value / high), high=max(step.high, slowest)),
    )
