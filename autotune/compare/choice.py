"""Choice among winners: the fastest, with ties settled by memory and by fewer changes. Pure."""

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
"""Fewest cycles that hold both configs for a difference: the interval rests on these cycles alone."""
_TIE_FRAC = 0.02
_TIE_LOSS = 0.01


def fastest_of(pool: Sequence[Comparison], kept: Callable[[Comparison], float]) -> Comparison | None:
    """Return the fastest config; of those tied with it, one with the least memory, then fewest changes.

    Args:
        pool: Configs that win.
        kept: Function of a config: the share of its speedup, above 0 and at most 1, that remains over the
            planned run.
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
    """Return the config with the least energy; of those tied with it, the one with fewest changes."""
    savings = {c.config: c.saving.value for c in pool if c.saving is not None}
    if not savings:
        return None
    top = max(savings.values())
    tied = [c for c in pool if savings.get(c.config, 0.0) >= (1.0 - _TIE_FRAC) * top]
    return min(tied, key=lambda c: (len(c.config), -savings[c.config]))


def fastest_training(winners: Sequence[Comparison], best: Comparison | None) -> Comparison | None:
    """Return the fastest training-changing config if pairs show it ahead of `best`, else None."""
    changing = [c for c in winners if c.effect is Effect.TRAINING]
    top = max(changing, key=lambda c: c.speedup.value, default=None)
    if top is None or best is None:
        return top
    ahead = [top.logs[g] - best.logs[g] for g in top.logs if g in best.logs]
    if len(ahead) < _FEWEST_SHARED:
        return None
    return top if ratio_interval(ahead, tau=LEAST_SPREAD).low > 1.0 else None


def _ties(other: Comparison, top: Comparison, apart: float) -> bool:
    """Return whether `other` ties: within 2 %, not separated by pairs, and with little expected loss.

    With a scatter of ten per cent, eight pairs can show two configs within 2 % that differ by twice as much.
    A missing difference is therefore not enough.

    Args:
        other: The config that may tie.
        top: The fastest config.
        apart: Difference by their compile times in ln ratio, positive in favour of `top`.
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
