"""Intervals, steady state and paired comparison, with their sources. Pure; standard library only.

A throughput is a ratio of sums over blocks of steps, never a median: a loop that waits for data
stalls every few steps, and a median deletes exactly those costs. Its interval comes from batch
means with a correction for lag-1 correlation (Law, *Simulation Modeling and Analysis*, ch. 9).
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core.measurement import Estimate

_MAX_RHO = 0.9
_FEWEST_FOR_RHO = 4
_FEWEST_FOR_STEADY = 6
_DRIFT_FRAC = 0.02
_DRIFT_CONFIDENCE = 0.998
_PREFIX_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps that count as one observation.

    Args:
        seconds: Wall time of its steps, the wait for data included.
        samples: Samples consumed.
        steps: Optimizer steps.
        wait_s: Seconds of it spent waiting for batches.
        clean: Nothing foreign happened inside; only clean blocks make an estimate.
    """

    seconds: float
    samples: int
    steps: int
    wait_s: float
    clean: bool


@functools.lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The value that a t distributed variable stays below with probability `p`.

    Args:
        p: Probability, strictly between 0 and 1.
        df: Degrees of freedom, above 0; need not be whole. Infinity gives the normal quantile.

    Raises:
        ValueError: `p` or `df` lies outside its range.
    """
    if not 0.0 < p < 1.0 or not df > 0.0:
        message = f"no t quantile for p={p!r}, df={df!r}"
        raise ValueError(message)
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    if math.isinf(df) or df > 1e7:
        return statistics.NormalDist().inv_cdf(p)
    low, high = 0.0, 2.0
    while _t_upper_tail(high, df) > 1.0 - p:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if _t_upper_tail(middle, df) > 1.0 - p:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return (low + high) / 2.0


def _t_upper_tail(t: float, df: float) -> float:
    """P(T > t) for t >= 0, by the incomplete beta function."""
    return 0.5 * _incomplete_beta(df / 2.0, 0.5, df / (df + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised; continued fraction by Lentz (Press et al., *Numerical Recipes*, 6.4)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300

    def kept(value: float) -> float:
        return value if abs(value) > tiny else tiny

    c, d = 1.0, 1.0 / kept(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / kept(1.0 + numerator * d)
            c = kept(1.0 + numerator / c)
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return result


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of independent values with its two-sided t interval.

    Returns:
        (mean, low, high); infinite ends where one value says nothing about the spread.

    Raises:
        ValueError: There is no value.
    """
    if not values:
        message = "no values, no mean"
        raise ValueError(message)
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, -math.inf, math.inf
    half = t_quantile(0.5 + confidence / 2.0, len(values) - 1) * sd(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def sd(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def ratio_interval(
    log_ratios: Sequence[float], *, confidence: float = 0.95, tau: float = 0.0, df: float | None = None
) -> Estimate:
    """Ratio from paired log ratios: geometric mean and two-sided t interval.

    Args:
        log_ratios: ln(candidate / baseline), one per pair.
        confidence: Of the interval; raise it where several candidates or looks share one claim.
        tau: Smallest standard deviation of a log ratio that is believed. Two or three pairs agree
            by luck often enough; what the baseline's processes differ among themselves is the floor.
        df: Degrees of freedom of the spread where `tau` pools more runs than these; n - 1 otherwise.

    Returns:
        Unit ``ratio``, n = pairs. One pair has no interval: (0, infinity).

    Raises:
        ValueError: There is no pair.
    """
    if not log_ratios:
        message = "no pairs, no ratio"
        raise ValueError(message)
    n = len(log_ratios)
    mean = statistics.fmean(log_ratios)
    if n == 1:
        return Estimate(
            value=math.exp(mean), low=0.0, high=math.inf, n=1, unit="ratio", confidence=confidence
        )
    own = sd(log_ratios)
    # A spread of one's own that is larger than the pooled one was seen in these pairs only.
    freedom = n - 1 if own > tau or df is None else max(df, n - 1)
    half = t_quantile(0.5 + confidence / 2.0, freedom) * max(own, tau) / math.sqrt(n)
    return Estimate(
        value=math.exp(mean),
        low=_exp(mean - half),
        high=_exp(mean + half),
        n=n,
        unit="ratio",
        confidence=confidence,
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf


def form_blocks(
    begin_s: Sequence[float],
    end_s: Sequence[float],
    samples: Sequence[int],
    wait_s: Sequence[float],
    dirty: Sequence[bool],
    *,
    min_block_s: float = 0.25,
    min_steps: int = 1,
) -> tuple[Block, ...]:
    """Group consecutive steps into blocks.

    Args:
        begin_s: When each step's period began (the end of the step before).
        end_s: When each step ended.
        samples: Samples of each step.
        wait_s: Seconds of each step spent waiting for its batch.
        dirty: Steps during which something foreign happened; they spoil their block.
        min_block_s: Shortest block.
        min_steps: Fewest steps of a block: the number of loader workers, whose stalls are periodic.

    Returns:
        Blocks in order. What is left at the end joins the last block, so no step is lost.
    """
    groups: list[list[int]] = []
    current: list[int] = []
    seconds = 0.0
    for index in range(len(end_s)):
        current.append(index)
        seconds += end_s[index] - begin_s[index]
        if seconds >= min_block_s * (1.0 - 1e-9) and len(current) >= min_steps:
            groups.append(current)
            current, seconds = [], 0.0
    if current and groups:
        groups[-1].extend(current)
    elif current:
        groups.append(current)
    return tuple(
        Block(
            seconds=math.fsum(end_s[i] - begin_s[i] for i in group),
            samples=sum(samples[i] for i in group),
            steps=len(group),
            wait_s=math.fsum(wait_s[i] for i in group),
            clean=not any(dirty[i] for i in group),
        )
        for group in groups
    )


def window_estimate(blocks: Sequence[Block], *, unit: str, per_step: bool = False) -> Estimate:
    """Throughput, or seconds per step, of a window: a ratio of sums over its clean blocks.

    The interval is the 95 % t interval of batch means for a ratio, its variance raised by
    (1 + rho) / (1 - rho) where neighbouring blocks are alike. It holds what varies within this
    process only; what differs between processes no window can tell.

    Args:
        blocks: As `form_blocks` gives them. Where none is clean, all of them count: a number with
            its flags is worth more than none.
        unit: Of the result: ``samples/s``, or ``steps/s`` where samples are not known (then
            steps are counted); ``s`` with `per_step`.
        per_step: Seconds per step in place of a rate.

    Raises:
        ValueError: There is no block with a duration.
    """
    kept = [b for b in blocks if b.clean and b.seconds > 0] or [b for b in blocks if b.seconds > 0]
    if not kept:
        message = "no block with a duration, no estimate"
        raise ValueError(message)
    if per_step:
        above, below = [b.seconds for b in kept], [float(b.steps) for b in kept]
    elif unit == "steps/s":
        above, below = [float(b.steps) for b in kept], [b.seconds for b in kept]
    else:
        above, below = [float(b.samples) for b in kept], [b.seconds for b in kept]
    return _ratio_of_sums(above, below, unit)


def _ratio_of_sums(above: Sequence[float], below: Sequence[float], unit: str) -> Estimate:
    n, total = len(above), math.fsum(below)
    ratio = math.fsum(above) / total if total else 0.0
    if n < 2:
        return Estimate(value=ratio, low=0.0, high=math.inf, n=n, unit=unit)
    residuals = [a - ratio * b for a, b in zip(above, below, strict=True)]
    variance = math.fsum(e * e for e in residuals) / (n - 1)
    rho = lag1(residuals)
    effective = n * (1.0 - rho) / (1.0 + rho)
    half = t_quantile(0.975, max(1.0, min(n, effective) - 1.0)) * math.sqrt(variance / effective) * n / total
    return Estimate(value=ratio, low=max(0.0, ratio - half), high=ratio + half, n=n, unit=unit)


def lag1(residuals: Sequence[float]) -> float:
    """Lag-1 correlation of values with mean zero, 0 to 0.9.

    Negative ones count as 0 (they would narrow an interval on weak evidence), and the estimate is
    raised by what a short series biases it downwards, about (1 + 3 rho) / n (Kendall, 1954).
    """
    n = len(residuals)
    power = math.fsum(e * e for e in residuals)
    if n < _FEWEST_FOR_RHO or power <= 0.0:
        return 0.0
    raw = math.fsum(a * b for a, b in itertools.pairwise(residuals)) / power
    return min(_MAX_RHO, max(0.0, raw + (1.0 + 3.0 * max(0.0, raw)) / n))


def steady_start(block_rates: Sequence[float]) -> tuple[int, str]:
    """Where the steady part of a window begins, and whether there is one.

    MSER (White, 1997) on the logarithm of block rates, over the first half; a prefix is cut only
    where it differs clearly from the rest, so that noise costs no data. The rest is then split in
    two: halves that differ by more than 2 %, beyond what their noise explains, are a drift.

    Returns:
        Index of the first steady block, and ``steady``, ``drifting`` or ``no_steady_state`` (still
        settling when the window ended: the cut lies at half of it and the rest drifts). Fewer
        than 6 blocks are taken as steady from the start: nothing can be said against it.
    """
    n = len(block_rates)
    if n < _FEWEST_FOR_STEADY or min(block_rates) <= 0.0:
        return 0, "steady"
    logs = [math.log(rate) for rate in block_rates]
    cut = min(range(n // 2 + 1), key=lambda d: (_mser(logs[d:]), d))
    rest = logs[cut:]
    if cut:
        noise = sd(rest) * math.sqrt(1.0 / cut + 1.0 / len(rest))
        if abs(statistics.fmean(logs[:cut]) - statistics.fmean(rest)) <= _PREFIX_SIGMAS * noise:
            cut, rest = 0, logs
    if not _drifts(rest):
        return cut, "steady"
    return cut, "no_steady_state" if cut >= n // 2 - 1 else "drifting"


def _mser(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return math.fsum((v - mean) ** 2 for v in values) / len(values) ** 2


def _drifts(values: Sequence[float]) -> bool:
    half = len(values) // 2
    first, last = values[:half], values[len(values) - half :]
    if half < 2:
        return False
    apart = abs(statistics.fmean(first) - statistics.fmean(last))
    variance = (sd(first) ** 2 + sd(last) ** 2) / half
    limit = t_quantile(0.5 + _DRIFT_CONFIDENCE / 2.0, 2 * half - 2) * math.sqrt(variance)
    return apart > max(_DRIFT_FRAC, limit)
