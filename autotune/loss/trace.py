"""Losses of a run by the samples it has seen: which runs can be compared, and means over a part. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from autotune.model.measurement import LossPoint

Traces = Mapping[int, Sequence[LossPoint]]
"""Losses by the seed of their run."""

FEWEST_POINTS: Final = 6
FEWEST_PAIRS: Final = 2
FEWEST_SEEDS: Final = 3


def is_usable(trace: Sequence[LossPoint]) -> bool:
    """Long enough to be compared."""
    return len(trace) >= FEWEST_POINTS and trace[-1].samples > 0


def common_part(
    ours: Traces, theirs: Traces, *, paired: bool
) -> tuple[dict[int, Sequence[LossPoint]], dict[int, Sequence[LossPoint]], float]:
    """Return the runs to compare and the samples all of them reached.

    Much shorter runs are left out where enough remain, since they would cut the others.
    """
    longest = min(max(t[-1].samples for t in side.values()) for side in (ours, theirs))
    long_ours = {s: t for s, t in ours.items() if t[-1].samples >= 0.6 * longest}
    long_theirs = {s: t for s, t in theirs.items() if t[-1].samples >= 0.6 * longest}
    matched = len(set(long_ours) & set(long_theirs)) if paired else len(long_ours)
    enough = matched >= (FEWEST_PAIRS if paired else FEWEST_SEEDS) and len(long_theirs) >= FEWEST_SEEDS
    if not enough:
        long_ours, long_theirs = dict(ours), dict(theirs)
    end = min(t[-1].samples for side in (long_ours, long_theirs) for t in side.values())
    return long_ours, long_theirs, float(end)


def mean_between(trace: Sequence[LossPoint], begin: float, end: float) -> float:
    """Mean over (begin, end] on the samples axis; a point stands for the samples since the last.

    Runs on the same samples thus pair even where one trace is thinned more than the other.
    """
    weighed, weight, last = 0.0, 0.0, 0.0
    for point in trace:
        inside = min(float(point.samples), end) - max(last, begin)
        if inside > 0:
            weighed += inside * point.loss
            weight += inside
        last = float(point.samples)
    return weighed / weight if weight else trace[-1].loss
