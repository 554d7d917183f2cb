"""Mean of several runs whose windows say something of their own error. Pure; standard library only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.model.measurement import Estimate
from autotune.statistics.intervals import mean_interval, sd, t_quantile


def mean_of_windows(
    values: Sequence[float], errors: Sequence[float], *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of what several windows say, with an interval that three of them cannot make too narrow by chance.

    Windows that all met a machine in the same of its states agree better than they should. So what they say
    of themselves counts as one degree of freedom beside the spread between them, and the interval is the
    wider one of that and of `mean_interval`.

    Args:
        values: One of each window; at least one.
        errors: Standard error that each window gives itself; infinite where it gives none.
        confidence: Of the interval.

    Returns:
        (mean, low, high); infinite ends where there is one value.

    Raises:
        ValueError: There is no value.
    """
    mean, low, high = mean_interval(values, confidence=confidence)
    known = [error for error in errors if math.isfinite(error)]
    if len(values) == 1 or not known:
        return mean, low, high
    df = len(values)
    own = statistics.fmean(error**2 for error in known)
    variance = (own + (df - 1) * sd(values) ** 2) / df
    half = t_quantile(0.5 + confidence / 2.0, df) * math.sqrt(variance / df)
    return mean, min(low, mean - half), max(high, mean + half)


def relative_error(estimate: Estimate) -> float:
    """Standard error that an interval amounts to, as a share of its value; infinite without one."""
    z = statistics.NormalDist().inv_cdf(0.5 + estimate.confidence / 2.0)
    return estimate.relative_width / (2.0 * z)
