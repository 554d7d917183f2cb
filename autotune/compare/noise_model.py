"""Scatter of confirmation pairs, from all noise estimates of a study. Pure.

Model: ln rate of a run = configuration + cycle + e, with e ~ N(0, sigma^2). Two or three pairs estimate sigma
badly, so a prior on it is combined with every residual of the confirmation phase. Each source counts with its
degrees of freedom, as a scaled inverse chi-square prior and a normal likelihood do. The interval of the ratio
is the marginal t interval (Gelman et al., *Bayesian Data Analysis*, 3.2). The prior has few degrees of
freedom, so its tail is heavy: a scatter ten times as large stays possible. A source that disagrees with the
pairs is dropped.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.compare.rounds import alike, foreign_cores, in_own_unit
from autotune.model.config import Config
from autotune.model.trial import Stage
from autotune.statistics.intervals import OWN_SPREAD, sd
from autotune.statistics.spread import run_spread
from autotune.statistics.window_means import relative_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial

PRIOR_DF: Final = 2.0
"""Degrees of freedom of the prior (experiments/confirmation_noise): two pairs then prove a gain of 2x, and a
scatter that grows tenfold after screening causes no more false wins than allowed."""

LEAST_PRIOR: Final = 0.01
"""Smallest standard deviation of a pair's ln ratio in the prior, however well earlier runs agree."""

MOST_BELOW: Final = 1.5
"""The prior is dropped where the confirmation scatters by more than this factor of it."""

MOST_ABOVE: Final = 3.0
"""A source is dropped where it exceeds the scatter of three or more pairs by more than this factor: then
screening was disturbed, not the confirmation."""

_FEWEST_TO_DROP: Final = 3
"""Pairs below which a small scatter may be luck, so that no source is dropped for being larger."""
_SCREENING: Final = (Stage.BASELINE, Stage.INITIAL, Stage.REFINE, Stage.DRIFT_CHECK)
_BASE: Final = Config()


@dataclass(frozen=True, slots=True)
class Scatter:
    """Standard deviation of the ln ratio of one pair, and the degrees of freedom that it is known with."""

    sd: float
    df: float


def screening_logs(study: Study, cycles: Mapping[int, Mapping[Config, Trial]]) -> dict[Config, list[float]]:
    """Ln throughput of screening runs by config, in the order in which they were run.

    Runs beside another load than the confirmation had are left out, as in a pair.

    Args:
        study: As of now.
        cycles: Of `confirmation_cycles`.
    """
    base = [foreign_cores(runs[_BASE]) for runs in cycles.values() if _BASE in runs]
    usual, cpus = statistics.median(base or [0.0]), study.facts.host.cpus if study.facts is not None else 0
    found: dict[Config, list[float]] = {}
    for trial in in_own_unit(study, study.finished(*_SCREENING)):
        rate = trial.measurement.throughput.value if trial.measurement else 0.0
        if rate > 0.0 and alike(foreign_cores(trial), usual, cpus):
            found.setdefault(trial.config, []).append(math.log(rate))
    return found


def prior_scatter(screened: Mapping[Config, Sequence[float]], confirmed: Iterable[Trial]) -> Scatter:
    """Return the estimated scatter of pairs before the first pair.

    Estimated from repeats of the baseline and of other configs, with `autotune.statistics.spread.BELIEVED_SD`
    if there are few; at least the scatter within the windows, since runs differ by that anyway.

    Args:
        screened: From `screening_logs`.
        confirmed: Runs whose windows give the within-run error.
    """
    errors = [relative_error(t.measurement.throughput) for t in confirmed if t.measurement]
    within = statistics.median([e for e in errors if math.isfinite(e)] or [0.0])
    return Scatter(max(LEAST_PRIOR, math.sqrt(2.0) * max(run_spread(screened.values()), within)), PRIOR_DF)


def screening_gap(
    config: Config,
    screened: Mapping[Config, Sequence[float]],
    cycles: Mapping[int, Mapping[Config, Trial]],
) -> float | None:
    """Mean ln throughput ratio in the pairs of a config minus that of its screening runs; None without them.

    Compile time is in neither. A machine that is steady leaves only the scatter of runs in this figure.
    """
    if config not in screened or _BASE not in screened:
        return None
    rates = [
        (ours.throughput.value, own.throughput.value)
        for runs in cycles.values()
        if config in runs
        and _BASE in runs
        and (ours := runs[config].measurement) is not None
        and (own := runs[_BASE].measurement) is not None
    ]
    logs = [math.log(rate / base) for rate, base in rates if min(rate, base) > 0.0]
    if not logs:
        return None
    before = statistics.median(screened[config]) - statistics.median(screened[_BASE])
    return statistics.fmean(logs) - before


def pair_scatter(
    log_ratios: Sequence[float],
    *,
    floor: float,
    pooled: Scatter = Scatter(0.0, 0.0),
    prior: Scatter | None = None,
    gap: float | None = None,
) -> Scatter:
    """Scatter of a config's pairs, from the prior and all residuals of the confirmation phase.

    Args:
        log_ratios: ln(candidate / baseline), one per pair; at least one.
        floor: Smallest standard deviation that is returned.
        pooled: Residuals of all members of the same cycles (`autotune.statistics.spread.pooled_spread`).
        Pairs that
            scatter by more than `OWN_SPREAD` of it count by themselves.
        prior: Of `prior_scatter`; None where the pairs are not ratios of rates.
        gap: Of `screening_gap`: one residual more, with the variance of a mean of pairs and of one pair.

    Returns:
        No degrees of freedom where one pair is all there is.
    """
    n, own = len(log_ratios), sd(log_ratios)
    spread, df = max(own, floor), n - 1.0
    if pooled.df > 0.0 and own <= OWN_SPREAD * max(pooled.sd, floor):
        spread, df = max(spread, pooled.sd), max(df, pooled.df)
    most = MOST_ABOVE * spread if n >= _FEWEST_TO_DROP else math.inf
    squares = df * spread**2
    gap_sd = None if gap is None else abs(gap) / math.sqrt(1.0 + 1.0 / n)
    if gap_sd is not None and gap_sd <= most:
        squares, df = squares + gap_sd**2, df + 1.0
    if prior is not None and prior.sd <= most and squares <= df * (MOST_BELOW * prior.sd) ** 2:
        squares, df = squares + prior.df * prior.sd**2, df + prior.df
    return Scatter(max(floor, math.sqrt(squares / df)) if df else floor, df)
