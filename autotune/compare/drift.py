"""Does the machine get faster or slower while a search runs?

The unchanged script runs at the start, now and then in between, and in every confirmation cycle. All these
runs do the same, so a trend in them is the machine's: heat, a neighbour that stays, a disk that fills.
Comparisons are made within cycles and do not feel it; screening figures do, and a person who reads both has
to know.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from autotune.compare.rounds import in_own_unit
from autotune.statistics.intervals import ratio_of_log, t_quantile
from autotune.statistics.spread import run_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.measurement import Estimate
    from autotune.model.study import Study

FEWEST_RUNS = 5
LEAST_DRIFT = 0.05

_LIKELY_CHANGE = 0.02
"""Expected change of a machine between two parts of a search, as a standard deviation in ln rate."""


def drift(study: Study) -> Estimate | None:
    """Rate of the unchanged script at the end of the search over that at its start.

    The slope of the log rate of all its runs over the time they ended, by least squares, across the time
    between the first and the last of them. The interval is the slope's 95 % t interval: runs scatter for
    other reasons as well. Runs that count in another unit than its first one are left out.

    Returns:
        None with fewer than `FEWEST_RUNS` runs, or where all ended at the same time.
    """
    own = [trial for trial in study.finished() if trial.config.is_baseline]
    runs = [
        (trial.finished_s, math.log(trial.measurement.throughput.value))
        for trial in in_own_unit(study, own)
        if trial.measurement is not None and trial.measurement.throughput.value > 0
    ]
    if len(runs) < FEWEST_RUNS:
        return None
    times, logs = zip(*runs, strict=True)
    span_s = max(times) - min(times)
    middle = statistics.fmean(times)
    power = math.fsum((t - middle) ** 2 for t in times)
    if not span_s > 0:
        return None
    level = statistics.fmean(logs)
    slope = math.fsum((t - middle) * (y - level) for t, y in runs) / power
    rest = math.fsum((y - level - slope * (t - middle)) ** 2 for t, y in runs)
    df = len(runs) - 2
    half = t_quantile(0.975, df) * math.sqrt(rest / df / power)
    return ratio_of_log(slope * span_s, half * span_s, len(runs))


def drifted(study: Study) -> Estimate | None:
    """Return a drift of at least `LEAST_DRIFT` that the scatter of the runs does not explain."""
    found = drift(study)
    if found is None or found.low <= 1.0 <= found.high:
        return None
    return found if abs(math.log(found.value)) >= math.log1p(LEAST_DRIFT) else None


def change_between(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the change of a machine that probably exceeds scatter, in ln rate.

    Args:
        before: Ln rates of runs of one config in an earlier part of a search.
        after: The same in a later one. Without runs in both it is 0.
    """
    if not before or not after:
        return 0.0
    error = run_spread((before, after)) ** 2 * (1 / len(before) + 1 / len(after))
    share = _LIKELY_CHANGE**2 / (_LIKELY_CHANGE**2 + error)
    return share * (statistics.fmean(after) - statistics.fmean(before))
