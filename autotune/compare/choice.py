"""Which of several winners is taken: the fastest, with ties settled by memory and by fewer changes. Pure."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from autotune.model.effect import Effect
from autotune.statistics.intervals import expected_gain, ratio_interval, sd
from autotune.statistics.spread import LEAST_SPREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.compare.comparison import Comparison

_FEWEST_SHARED = 3
"""Cycles that hold both configs, below which neither is ahead: the interval rests on these cycles alone."""
_TIE_FRAC = 0.02
_TIE_LOSS = 0.01


def fastest_of(pool: Sequence[Comparison], kept: Callable[[Comparison], float]) -> Comparison | None:
    """The fastest; of those within a tie one with the least memory, then the one with the fewest changes.

    Args:
        pool: Those that win.
        kept: Share of its speedup, above 0 and at most 1, that a config keeps over the planned run, with its
            compile paid once.
    """
    if not pool:
        return None
    shares = {c.config: kept(c) for c in pool}

    def speedup(c: Comparison) -> float:
        return shares[c.config] * c.speedup.value

    def ties(c: Comparison) -> bool:
        return c is top or _ties(c, top, math.log(shares[top.config] / shares[c.config]))

    top = max(pool, key=speedup)
    tied = [c for c in pool if ties(c)]
    sizes = [c.peak_bytes for c in tied if c.peak_bytes is not None]
    smallest = min(sizes, default=0)

    def rank(c: Comparison) -> tuple[int, int, float]:
        more = 0 if c.peak_bytes is None or len(sizes) < len(tied) or c.peak_bytes <= 1.02 * smallest else 1
        return more, len(c.config), -speedup(c)

    return min(tied, key=rank)


def most_saving(pool: Sequence[Comparison]) -> Comparison | None:
    """The least energy; of those within a tie the one with the fewest changes."""
    savings = {c.config: c.saving.value for c in pool if c.saving is not None}
    if not savings:
        return None
    top = max(savings.values())
    tied = [c for c in pool if savings.get(c.config, 0.0) >= (1.0 - _TIE_FRAC) * top]
    return min(tied, key=lambda c: (len(c.config), -savings[c.config]))


def fastest_training(winners: Sequence[Comparison], best: Comparison | None) -> Comparison | None:
    """The fastest that changes the training, where pairs show it ahead of `best`."""
    wild = [c for c in winners if c.effect is Effect.TRAINING]
    top = max(wild, key=lambda c: c.speedup.value, default=None)
    if top is None or best is None:
        return top
    ahead = [top.logs[g] - best.logs[g] for g in top.logs if g in best.logs]
    if len(ahead) < _FEWEST_SHARED:
        return None
    return top if ratio_interval(ahead, tau=LEAST_SPREAD).low > 1.0 else None


def _ties(other: Comparison, top: Comparison, apart: float) -> bool:
    """Within 2 %, not told apart by their own pairs, and little is expected to be lost by taking it.

    Where pairs scatter by ten per cent, eight of them leave two configs within 2 % of one another that
    differ by twice as much: nothing is as fast only because nobody can tell.

    Args:
        other: Which may tie.
        top: With the fastest.
        apart: In ln ratio, what their compiles put between them, for the top where it is positive.
    """
    behind = math.log(top.speedup.value / other.speedup.value) + apart
    if behind > -math.log(1.0 - _TIE_FRAC):
        return False
    shared = [top.logs[g] - other.logs[g] + apart for g in top.logs if g in other.logs]
    if len(shared) < 2:
        return behind <= -math.log(1.0 - _TIE_LOSS)
    if ratio_interval(shared, tau=LEAST_SPREAD).low > 1.0:
        return False
    mean, error = statistics.fmean(shared), max(sd(shared), LEAST_SPREAD) / math.sqrt(len(shared))
    return expected_gain(mean, error) <= _TIE_LOSS
