"""How much sooner another curve of losses reaches what the script reaches. Pure."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from autotune.core.loss_trace import is_usable, mean_between
from autotune.core.stats import ratio_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.loss_trace import Traces
    from autotune.core.measurement import Estimate, LossPoint

_LEVELS = (0.5, 0.6, 0.7, 0.8)
_SMOOTH_FRAC = 0.15


def time_to_equal_loss(
    candidate: Traces,
    baseline: Traces,
    *,
    candidate_rate: Mapping[int, float] | None = None,
    baseline_rate: Mapping[int, float] | None = None,
    confidence: float = 0.95,
) -> Estimate | None:
    """How much sooner the candidate reaches the loss that the baseline has at 50 to 80 % of its run.

    For configs whose effective batch differs, so that equal samples mean nothing. Both curves are
    smoothed over the same number of samples. Runs pair by seed.

    Args:
        candidate: Loss traces by seed.
        baseline: The same of the script as it is.
        candidate_rate: Samples per second by seed; the time is then samples over rate. Without it
            the traces' own clock counts, compiling and pauses included.
        baseline_rate: The same of the baseline.
        confidence: Of the interval.

    Returns:
        Unit ``ratio``, above 1 where the candidate is sooner, n = pairs of runs. None where there
        is no pair, the baseline learns nothing, or a candidate run never gets there: what it did
        not reach cannot be claimed.
    """
    logs: list[float] = []
    for seed in sorted(set(candidate) & set(baseline)):
        ours, theirs = candidate[seed], baseline[seed]
        if not (is_usable(ours) and is_usable(theirs)):
            continue
        if not all(math.isfinite(p.loss) for p in (*ours, *theirs)):
            return None
        pair = _sooner(
            ours,
            theirs,
            candidate_rate.get(seed) if candidate_rate else None,
            baseline_rate.get(seed) if baseline_rate else None,
        )
        if pair is None:
            return None
        logs.append(pair)
    return ratio_interval(logs, confidence=confidence) if logs else None


def _sooner(
    ours: Sequence[LossPoint], theirs: Sequence[LossPoint], our_rate: float | None, their_rate: float | None
) -> float | None:
    width = _SMOOTH_FRAC * theirs[-1].samples
    smooth = _smoothed(theirs, width)
    start, end = theirs[0].samples, theirs[-1].samples
    ratios: list[float] = []
    for level in _LEVELS:
        target = min(value for at, value in smooth if at <= start + level * (end - start))
        if not target < smooth[0][1]:
            continue
        mine = _reached(_smoothed(ours, width), target)
        base = _reached(smooth, target)
        if base is None or mine is None:
            return None
        seconds = mine / our_rate if our_rate else _time_at(ours, mine)
        base_seconds = base / their_rate if their_rate else _time_at(theirs, base)
        if seconds <= 0 or base_seconds <= 0:
            return None
        ratios.append(math.log(base_seconds / seconds))
    return statistics.fmean(ratios) if len(ratios) >= 2 else None


def _smoothed(trace: Sequence[LossPoint], width: float) -> list[tuple[float, float]]:
    """Mean over the last `width` samples at each point that has that much behind it."""
    return [
        (point.samples, mean_between(trace, max(0.0, point.samples - width), point.samples))
        for point in trace
        if point.samples >= width or point is trace[-1]
    ]


def _reached(smooth: Sequence[tuple[float, float]], target: float) -> float | None:
    before: tuple[float, float] | None = None
    for at, value in smooth:
        if value <= target:
            if before is None or before[1] <= value:
                return at
            return before[0] + (at - before[0]) * (before[1] - target) / (before[1] - value)
        before = (at, value)
    return None


def _time_at(trace: Sequence[LossPoint], samples: float) -> float:
    before = (0.0, 0.0)
    for point in trace:
        if point.samples >= samples:
            width = point.samples - before[0]
            return before[1] + (point.t_s - before[1]) * ((samples - before[0]) / width if width else 1.0)
        before = (float(point.samples), point.t_s)
    return trace[-1].t_s
