"""Intervals, steady state and paired comparison, with their sources. Pure; standard library only.

A throughput is a ratio of sums over blocks of steps, never a median. A loop that waits for data stalls every
few steps, and a median deletes exactly those costs. Its interval comes from the slowest waves in the blocks,
which show correlation of neighbours, and is longer on the side of the longer tail.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.model.measurement import Estimate

OWN_SPREAD = 1.5
"""So many times the pooled spread, one's own counts with its own degrees of freedom."""

_LARGEST_LOG = math.log(sys.float_info.max)
_MAX_RHO = 0.9
_FEWEST_FOR_RHO = 4
_FEWEST_FOR_STEADY = 6
_DRIFT_FRAC = 0.02
_DRIFT_CONFIDENCE = 0.995
_DRIFT_WAVES = 9
_PREFIX_SIGMAS = 3.0
_LEAST_RHO = 0.15
_LEAST_SKEWNESS = 0.1
_LOST_POWER_FRAC = 0.05
_TIGHT_CONFIDENCE = 0.7
_SURE_START = 0.999
_FEWEST_MORE = 2
_FEWEST_WAVES, _MOST_WAVES = 2, 24


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
    """Return the value that a t distributed variable stays below with probability `p`.

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
        (mean, low, high); infinite ends for a single value.

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


def sd_bounds(spread: float, df: float, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return one-sided bounds on the standard deviation of normal values, estimated as `spread`.

    Five values determine their spread to a factor of two at best. The chi-square quantiles are those of
    Wilson and Hilferty (1931): bounds are right to 3 % from 4 degrees of freedom on, and too wide below.

    Args:
        spread: The sample standard deviation.
        df: Its degrees of freedom.
        confidence: Of each bound by itself.

    Returns:
        (low, high); (0, infinity) without degrees of freedom.
    """
    if df <= 0.0:
        return 0.0, math.inf if spread > 0.0 else 0.0
    z = statistics.NormalDist().inv_cdf(confidence)
    part = 2.0 / (9.0 * df)
    few, many = (max(0.0, 1.0 - part + side * z * math.sqrt(part)) ** 1.5 for side in (-1.0, 1.0))
    return spread / many, spread / few if few > 0.0 else math.inf


def ratio_interval(log_ratios: Sequence[float], *, confidence: float = 0.95, tau: float = 0.0) -> Estimate:
    """Ratio from paired log ratios: geometric mean and two-sided t interval.

    Args:
        log_ratios: ln(candidate / baseline), one per pair.
        confidence: Of the interval; raise it where several candidates or looks share one claim.
        tau: Smallest standard deviation of a log ratio that is believed. Two or three pairs agree
            by luck often enough; what the baseline's processes differ among themselves is the floor.

    Returns:
        Unit ``ratio``, n = pairs. One pair has no interval: (0, infinity).

    Raises:
        ValueError: There is no pair.
    """
    return ratio_from(log_ratios, max(sd(log_ratios), tau), len(log_ratios) - 1, confidence=confidence)


def ratio_from(
    log_ratios: Sequence[float], spread: float, df: float, *, confidence: float = 0.95
) -> Estimate:
    """Ratio from paired log ratios whose scatter was estimated elsewhere.

    Args:
        log_ratios: ln(candidate / baseline), one per pair.
        spread: Standard deviation of the log ratio of one pair.
        df: Degrees of freedom of `spread`; 0 gives the interval (0, infinity).
        confidence: Of the interval.

    Raises:
        ValueError: There is no pair.
    """
    if not log_ratios:
        message = "no pairs, no ratio"
        raise ValueError(message)
    n, mean = len(log_ratios), statistics.fmean(log_ratios)
    half = t_quantile(0.5 + confidence / 2.0, df) * spread / math.sqrt(n) if df > 0.0 else math.inf
    return ratio_of_log(mean, half, n, confidence=confidence)


def ratio_of_log(mean: float, half: float, n: int, *, confidence: float = 0.95) -> Estimate:
    """Ratio whose logarithm is `mean`, give or take `half`; an end too large for a number is infinity."""
    low, high = (math.exp(x) if x < _LARGEST_LOG else math.inf for x in (mean - half, mean + half))
    return Estimate(value=math.exp(mean), low=low, high=high, n=n, unit="ratio", confidence=confidence)


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
        min_steps: A block has a multiple of so many: the number of loader workers, whose stalls are
            periodic, so that every block holds as many of them.

    Returns:
        Blocks in order. What is left at the end joins the last block, so no step is lost.
    """
    groups: list[list[int]] = []
    current: list[int] = []
    seconds = 0.0
    for index in range(len(end_s)):
        current.append(index)
        seconds += end_s[index] - begin_s[index]
        if seconds >= min_block_s * (1.0 - 1e-9) and len(current) % min_steps == 0:
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


def window_estimate(
    blocks: Sequence[Block], *, unit: str, per_step: bool = False, is_stopped: bool = False
) -> Estimate:
    """Return throughput, or seconds per step, of a window: a ratio of sums over its clean blocks.

    The interval has 95 % confidence for a ratio of sums. It uses the long-run variation of the blocks
    (`long_run_sd`) and its skewness. It covers variation within this process only; a window cannot show
    differences between processes.

    Args:
        blocks: As `form_blocks` gives them. Where none is clean, all of them count: a number with
            its flags is worth more than none.
        unit: Of the result: ``samples/s``, or ``steps/s`` where samples are not known (then
            steps are counted); ``s`` with `per_step`.
        per_step: Seconds per step in place of a rate.
        is_stopped: It ended because `is_tight` held, and its interval has to allow for that.

    Raises:
        ValueError: There is no block with a duration.
    """
    spread_at = _TIGHT_CONFIDENCE if is_stopped else None
    return _ratio_of_sums(*_sums(blocks, unit, per_step), unit, spread_at=spread_at)


def is_tight(blocks: Sequence[Block], width: float, *, unit: str, per_step: bool = False) -> bool:
    """Return whether the interval of a window is no wider than this, with repeated analyses allowed for.

    Repeated checks until an interval is narrow select moments at which it is too narrow by chance: a few
    equal blocks. So the spread counts as its upper bound (one-sided, 70 %), here and in the interval of such
    a window. That is a third more with half a dozen blocks, hardly more with many. By simulation 93 to 97 of
    100 such intervals then contain the true value, and 90 without.

    Args:
        blocks: As `window_estimate` has them.
        width: Of the interval, as a share of the value.
        unit: Of the estimate.
        per_step: Seconds per step in place of a rate.

    Raises:
        ValueError: There is no block with a duration.
    """
    found = window_estimate(blocks, unit=unit, per_step=per_step, is_stopped=True)
    return found.relative_width <= width


def _sums(blocks: Sequence[Block], unit: str, per_step: bool) -> tuple[list[float], list[float]]:
    """Numerators and denominators of the clean blocks, or of all where none is."""
    kept = [b for b in blocks if b.clean and b.seconds > 0] or [b for b in blocks if b.seconds > 0]
    if not kept:
        message = "no block with a duration, no estimate"
        raise ValueError(message)
    if per_step:
        return [b.seconds for b in kept], [float(b.steps) for b in kept]
    if unit == "steps/s":
        return [float(b.steps) for b in kept], [b.seconds for b in kept]
    return [float(b.samples) for b in kept], [b.seconds for b in kept]


def _ratio_of_sums(
    above: Sequence[float], below: Sequence[float], unit: str, *, spread_at: float | None = None
) -> Estimate:
    """Return the estimate; with `spread_at` by the upper bound of the spread at this confidence."""
    n, total = len(above), math.fsum(below)
    ratio = math.fsum(above) / total if total else 0.0
    if n < 2:
        return Estimate(value=ratio, low=0.0, high=math.inf, n=n, unit=unit)
    residuals = [a - ratio * b for a, b in zip(above, below, strict=True)]
    spread, df = long_run_sd(residuals)
    if spread_at is not None:
        spread = sd_bounds(spread, df, confidence=spread_at)[1]
    low, high = _mean_bounds(t_quantile(0.975, df) / math.sqrt(n), spread, _skewness(residuals), n)
    scale = n / total
    return Estimate(value=ratio, low=max(0.0, ratio + low * scale), high=ratio + high * scale, n=n, unit=unit)


def _mean_bounds(t: float, spread: float, skewness: float, n: int) -> tuple[float, float]:
    """Bounds on the true mean where the sample's is zero, longer on the side of the longer tail.

    Hall's monotone cubic transformation (*On the removal of skewness by transformation*, 1992): with rare
    large values, the mean of a few is mostly too small, and so is their spread.

    Args:
        t: Quantile over sqrt(n).
        spread: Standard deviation in the long run.
        skewness: Of the values.
        n: Number of values.
    """
    if abs(skewness) < _LEAST_SKEWNESS:
        return -t * spread, t * spread

    def back(y: float) -> float:
        inner = 1.0 + skewness * (y - skewness / (6.0 * n))
        return 3.0 / skewness * (math.copysign(abs(inner) ** (1.0 / 3.0), inner) - 1.0)

    return -spread * back(t), -spread * back(-t)


def _skewness(residuals: Sequence[float]) -> float:
    n = len(residuals)
    power = math.fsum(e * e for e in residuals) / n
    return math.fsum(e**3 for e in residuals) / n / power**1.5 if power > 0.0 else 0.0


def long_run_sd(residuals: Sequence[float]) -> tuple[float, int]:
    """Standard deviation that the sum of n values has, over sqrt(n), and its degrees of freedom.

    The values are decomposed into cosine waves. The slowest of them show the variation of sums: correlation
    of neighbours does not average out in them, while alternation (a stall every few steps) does. The mean of
    their squares estimates the variance, and a t quantile with as many degrees of freedom belongs to it
    (Mueller, 2004; Lazarus, Lewis, Stock and Watson, 2018). For independent values that is exact. The more
    alike neighbours are, the fewer waves are slow enough.

    Args:
        residuals: At least two values with mean zero, in order of time.
    """
    waves = _waves(residuals, _slow_enough(len(residuals), lag1(residuals)))
    return math.sqrt(math.fsum(w * w for w in waves) / len(waves)), len(waves)


def _slow_enough(n: int, rho: float) -> int:
    """Waves over which a first-order process with this lag-1 correlation looks almost white.

    At the angular frequency w its spectrum falls by the factor 1 - rho w^2 / (1 - rho)^2. The mean over the
    first k of n waves falls by a third of that, here by 5 per cent at most.
    """
    rho = max(_LEAST_RHO, rho)
    slow = n / math.pi * math.sqrt(3.0 * _LOST_POWER_FRAC / rho) * (1.0 - rho)
    return min(n - 1, _MOST_WAVES, max(_FEWEST_WAVES, round(slow)))


def _waves(values: Sequence[float], count: int) -> list[float]:
    """Return the slowest orthonormal cosine coefficients, without the constant one."""
    n = len(values)
    scale = math.sqrt(2.0 / n)
    return [
        scale * math.fsum(v * math.cos(math.pi * j * (k + 0.5) / n) for k, v in enumerate(values))
        for j in range(1, count + 1)
    ]


def lag1(residuals: Sequence[float]) -> float:
    """Lag-1 correlation of values with mean zero, 0 to 0.9.

    Negative ones count as 0, as they would narrow an interval on weak evidence. The estimate is corrected for
    the bias of a short series, about (1 + 3 rho) / n (Kendall, 1954).
    """
    n = len(residuals)
    power = math.fsum(e * e for e in residuals)
    if n < _FEWEST_FOR_RHO or power <= 0.0:
        return 0.0
    raw = math.fsum(a * b for a, b in itertools.pairwise(residuals)) / power
    return min(_MAX_RHO, max(0.0, raw + (1.0 + 3.0 * max(0.0, raw)) / n))


def steady_start(block_rates: Sequence[float]) -> tuple[int, str]:
    """Return the start of the steady part of a window, and whether there is one.

    MSER (White, 1997) on the logarithm of block rates, over the first half, gives the latest end of a slow
    (or fast) start. It is cut only under three conditions. It has two blocks or more; all of them are beyond
    the quartile of the rest, by more than chance; the rest has no stretch like it. A stall at the start does
    not qualify, as cutting it would bias every figure. The rest drifts if its slowest wave, half a period
    over the whole of it, exceeds the faster ones, and its halves differ by more than 2 %.

    Returns:
        Index of the first steady block, and ``steady``, ``drifting`` or ``no_steady_state`` (still
        settling when half of the window was over). Fewer than 6 blocks are taken as steady from the
        start, for lack of evidence.
    """
    n = len(block_rates)
    if n < _FEWEST_FOR_STEADY or min(block_rates) <= 0.0:
        return 0, "steady"
    logs = [math.log(rate) for rate in block_rates]
    best = min(range(n // 2 + 1), key=lambda d: (_mser(logs[d:]), d))
    cut = next((d for d in range(best, 1, -1) if _is_start(logs[:d], logs[d:])), 0)
    # What fades away is longer than it shows.
    first = min(n // 2, cut + max(_FEWEST_MORE, (cut + 1) // 2)) if cut else 0
    if cut and best >= n // 2 - 1:
        return first, "no_steady_state"
    return first, "drifting" if _drifts(logs[first:]) else "steady"


def doubted_start(blocks: Sequence[Block], cut: int) -> tuple[float, float]:
    """Return alternative factors on the rate, in case the cut part of a window was no start-up effect.

    Correlated steps form stretches that resemble a start. With few remaining blocks for comparison the cut
    may be right or wrong, and an interval has to hold either way.

    Args:
        blocks: Blocks of the whole window.
        cut: Number of blocks cut off at its start.

    Returns:
        Ends of the interval of the whole window, as factors on the rate of the rest: at most 1 and at least
            1. (1, 1) without a cut, or if the start is certain.
    """
    by_samples = any(b.samples for b in blocks)

    def logs(part: Sequence[Block]) -> list[float]:
        used = [b for b in part if b.clean and b.seconds > 0]
        rates = [(b.samples if by_samples else b.steps) / b.seconds for b in used]
        return [math.log(rate) for rate in rates if rate > 0.0]

    first, rest = logs(blocks[:cut]), logs(blocks[cut:])
    if not first or len(rest) < 2:
        return 1.0, 1.0
    middle = statistics.fmean(rest)
    spread, df = long_run_sd([v - middle for v in rest])
    reach = t_quantile(_SURE_START, df) * spread * math.sqrt(1.0 / len(first) + 1.0 / len(rest))
    if abs(statistics.fmean(first) - middle) > reach:
        return 1.0, 1.0
    unit = "samples/s" if by_samples else "steps/s"
    whole, left = window_estimate(blocks, unit=unit), window_estimate(blocks[cut:], unit=unit).value
    return min(1.0, whole.low / left), max(1.0, whole.high / left)


def _mser(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return math.fsum((v - mean) ** 2 for v in values) / len(values) ** 2


def _is_start(first: Sequence[float], rest: Sequence[float]) -> bool:
    """Return whether these blocks, two or more, are a start of its own kind before the rest."""
    d, n = len(first), len(rest)
    low, _, high = statistics.quantiles(rest, n=4)
    if not (max(first) < low or min(first) > high):
        return False
    mean, middle = statistics.fmean(first), statistics.fmean(rest)
    spread, _ = long_run_sd([v - middle for v in rest])
    if abs(mean - middle) <= _PREFIX_SIGMAS * spread * math.sqrt(1.0 / d + 1.0 / n):
        return False
    stretches = [statistics.fmean(rest[k : k + d]) for k in range(n - d + 1)]
    return mean < min(stretches) or mean > max(stretches)


def _drifts(values: Sequence[float]) -> bool:
    n = len(values)
    half = n // 2
    if half < 2 or abs(statistics.fmean(values[:half]) - statistics.fmean(values[n - half :])) <= _DRIFT_FRAC:
        return False
    mean = statistics.fmean(values)
    first, *others = _waves([v - mean for v in values], min(n - 1, _DRIFT_WAVES))
    noise = math.sqrt(math.fsum(w * w for w in others) / len(others))
    return abs(first) > t_quantile(0.5 + _DRIFT_CONFIDENCE / 2.0, len(others)) * noise


def expected_gain(mean: float, sd: float) -> float:
    """Return the expected gain of a normal variable above zero, with negative values counted as zero."""
    if sd <= 0.0:
        return max(0.0, mean)
    normal = statistics.NormalDist()
    z = mean / sd
    return sd * (z * normal.cdf(z) + normal.pdf(z))
