"""Likely effect of each value of a knob, fitted to undisturbed single runs of screening. Pure.

The fit of ln(rate / the script's rate) is additive. It has one term per changed value, one per pair of knobs
changed together, and one for the script itself, all shrunk towards zero. The scatter is estimated from
repeated runs and from residuals. So an interval is wide if few runs were repeated, or if more than pairs of
knobs interact. A knob's contribution to the winner is measured in pairs if the search ablated the winner;
that takes precedence.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.compare.amortised_rate import paired_runs, screened_runs
from autotune.compare.disturbances import without_disturbed
from autotune.model.config import Config, Value
from autotune.model.measurement import Estimate
from autotune.statistics.intervals import ratio_of_log, t_quantile
from autotune.statistics.spread import BELIEVED_RUNS, BELIEVED_SD, run_spread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autotune.model.study import Study

_SPREAD: Final = 0.5
_JOINT_SPREAD: Final = 0.12
_MOST_PAIRS: Final = 40
_FEWEST_TOGETHER: Final = 2
_CONFIDENCE: Final = 0.95
_TOGETHER: Final = 0.5
"""Largest ratio of the joint interval to the narrower single one at which two parts are merged.

Chance correlation in a few runs stays separate; parts that nearly always change together do not.
"""
_MATTERS: Final = 0.03

_BASE: Final = Config()

Term = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEffect:
    """One value of one knob, estimated.

    Args:
        ratio: How many times as fast as with the script's own value, all else equal; the interval is about
            95 % under the fit.
        configs: Configurations that had it.
    """

    knob: str
    value: Value
    ratio: Estimate
    configs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two knobs that do together what neither does alone, estimated.

    Args:
        ratio: Their joint gain over the product of their own: 0.9 is a tenth less than apart.
        configs: Configurations that changed both.
    """

    knobs: tuple[str, str]
    ratio: Estimate
    configs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of all knobs that were tried, largest first."""

    values: tuple[ValueEffect, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    configs: int = 0


class _Fit(NamedTuple):
    """The model of a study's single runs.

    Args:
        configs: That were tried; the script itself is not among them.
        singles: Term -> knob and value.
        pairs: Terms of two knobs that were changed together and apart.
        together: Pair -> how many configurations changed both.
        places: Term -> its place in `mean`.
        mean: Of each term.
        spread: Their covariances.
        quantile: Of the t distribution with the degrees of freedom of the scatter, for an interval.
    """

    configs: Sequence[Config]
    singles: Mapping[Term, tuple[str, Value]]
    pairs: Sequence[Term]
    together: Mapping[Term, int]
    places: Mapping[Term, int]
    mean: Sequence[float]
    spread: Sequence[Sequence[float]]
    quantile: float

    def half_width(self, terms: Sequence[int]) -> float:
        """Half the interval of the sum of these terms."""
        variance = math.fsum(self.spread[i][j] for i in terms for j in terms)
        return self.quantile * math.sqrt(max(0.0, variance))

    def ratio(self, terms: Sequence[int]) -> Estimate:
        """Return the joint ratio of these terms; n is 0, as no pair measured it."""
        return ratio_of_log(math.fsum(self.mean[i] for i in terms), self.half_width(terms), 0)


class _Row(NamedTuple):
    """Measurements of one config.

    Args:
        terms: Indices of its terms, the script's own included.
        value: Mean ln of its rate over the script's.
        runs: Number of runs.
    """

    terms: Sequence[int]
    value: float
    runs: int


def estimated(study: Study) -> Effects:
    """Fit the screening runs; empty where nothing but the script was measured."""
    fit = _fit_of(study)
    if fit is None:
        return Effects()
    own = Counter(item for c in fit.configs for item in c.items())
    values = [
        ValueEffect(knob=knob, value=value, configs=own[knob, value], ratio=fit.ratio([fit.places[term]]))
        for term, (knob, value) in fit.singles.items()
    ]
    interactions = [
        Interaction(knobs=(p[0], p[1]), configs=fit.together[p], ratio=fit.ratio([place]))
        for p in fit.pairs
        for place in (fit.places[p],)
        if abs(fit.mean[place]) > max(_MATTERS, fit.half_width([place]))
    ]
    return Effects(
        values=tuple(sorted(values, key=lambda e: -e.ratio.value)),
        interactions=tuple(sorted(interactions, key=lambda e: -abs(math.log(e.ratio.value)))),
        configs=len(fit.configs),
    )


def parts(study: Study, config: Config) -> dict[tuple[str, ...], Estimate]:
    """Return how many times as fast a configuration is with some of its knobs as without, by the fit.

    Knobs that no single run had apart are one part, and so are those that are known better together than
    each by itself, as hardly any run had them apart. Knobs that no single run had are left out, and so is the
    configuration as a whole, which pairs measure. Largest first; n is 0, as no pair measured it.
    """
    fit = _fit_of(study)
    if fit is None:
        return {}
    groups: dict[tuple[bool, ...], list[str]] = {}
    for knob, value in config.items():
        having = tuple(knob in c and repr(c[knob]) == repr(value) for c in fit.configs)
        if any(having):
            groups.setdefault(having, []).append(knob)
    whole = set(_terms(config, fit.places))

    def taken(knobs: Collection[str]) -> list[int]:
        return sorted(whole - set(_terms(config.without(*knobs), fit.places)))

    found: dict[tuple[str, ...], Estimate] = {}
    for knobs in _known_together([tuple(group) for group in groups.values()], taken, fit):
        if len(knobs) < len(config):
            found[knobs] = fit.ratio(taken(knobs))
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


def _known_together(
    groups: list[tuple[str, ...]], taken: Callable[[Collection[str]], Sequence[int]], fit: _Fit
) -> list[tuple[str, ...]]:
    """Return the groups; two are joined if their joint interval is much narrower (`_TOGETHER`)."""
    widths = {group: fit.half_width(taken(group)) for group in groups}
    while len(widths) > 1:
        pairs = itertools.combinations(widths, 2)
        shares = {(a, b): fit.half_width(taken(a + b)) / min(widths[a], widths[b]) for a, b in pairs}
        first, second = pair = min(shares, key=lambda two: shares[two])
        if shares[pair] > _TOGETHER:
            break
        widths = {group: width for group, width in widths.items() if group not in pair}
        widths[first + second] = fit.half_width(taken(first + second))
    return list(widths)


_latest: list[tuple[Study, _Fit | None]] = []
"""The study that was fitted last: one answer asks for the same fit several times."""


def _fit_of(study: Study) -> _Fit | None:
    for known, fit in _latest:
        if known is study:
            return fit
    made = _fitted(study)
    _latest[:] = [(study, made)]
    return made


def _fitted(study: Study) -> _Fit | None:
    study = without_disturbed(study)
    logs = _logs(screened_runs(study))
    tried = [c for c in logs if not c.is_baseline]
    if not tried or _BASE not in logs:
        return None
    own = Counter(item for c in tried for item in c.items())
    joint: Counter[Term] = Counter(pair for c in tried for pair in itertools.combinations(sorted(c), 2))
    singles: dict[Term, tuple[str, Value]] = {(k, repr(v)): (k, v) for k, v in own}
    pairs = [p for p, count in joint.most_common(_MOST_PAIRS) if count >= _FEWEST_TOGETHER]
    # Two knobs that were always changed together cannot be distinguished.
    pairs = [p for p in pairs if joint[p] < min(_having(tried, p[0]), _having(tried, p[1]))]
    terms: list[Term] = [*singles, *pairs]
    places = {term: i for i, term in enumerate(terms)}
    script = len(terms)
    prior = [_SPREAD if term in singles else _JOINT_SPREAD for term in terms] + [_SPREAD]
    base = fmean(logs[_BASE])
    rows = [_Row([*_terms(c, places), script], fmean(logs[c]) - base, len(logs[c])) for c in (_BASE, *tried)]
    # Pairs measure no single change, but they show how far runs of one config scatter.
    alike = [*logs.values(), *_logs(paired_runs(study)).values()]
    noise, df = run_spread(alike), BELIEVED_RUNS + sum(len(some) - 1 for some in alike)
    mean, spread = _solved(rows, prior, noise)
    # What the terms leave over is scatter as well, or what they cannot describe.
    left = math.fsum(row.runs * (row.value - math.fsum(mean[i] for i in row.terms)) ** 2 for row in rows)
    taken = math.fsum(row.runs * spread[i][j] for row in rows for i in row.terms for j in row.terms)
    squares, df = df * noise**2 + left, df + len(rows) - taken / noise**2
    believed = BELIEVED_RUNS * BELIEVED_SD**2
    own_df = df - BELIEVED_RUNS
    if own_df >= 1.0 and (squares - believed) / own_df > BELIEVED_SD**2:
        # The runs scatter by more than is believed, and a belief in less would make intervals too narrow.
        # With less than one degree of freedom they show no scatter: what is left over is the priors' pull.
        squares, df = squares - believed, own_df
    noise = math.sqrt(squares / df)
    mean, spread = _solved(rows, prior, noise)
    return _Fit(tried, singles, pairs, joint, places, mean, spread, _quantile(df))


def _logs(runs: Mapping[Config, Sequence[float]]) -> dict[Config, list[float]]:
    """Return the same in ln rate, without runs that count for nothing."""
    logs = {c: [math.log(r) for r in rates if r > 0] for c, rates in runs.items()}
    return {c: some for c, some in logs.items() if some}


def _quantile(df: float) -> float:
    return t_quantile((1.0 + _CONFIDENCE) / 2.0, df)


def _terms(config: Mapping[str, Value], places: Mapping[Term, int]) -> list[int]:
    """Return the places of the terms that a configuration holds."""
    own: list[Term] = [(k, repr(v)) for k, v in config.items()]
    own += itertools.combinations(sorted(config), 2)
    return [places[term] for term in own if term in places]


def best_of_each(effects: Effects) -> list[ValueEffect]:
    """Return the value with the best estimate for every knob, largest effect first."""
    found: dict[str, ValueEffect] = {}
    for effect in effects.values:
        found.setdefault(effect.knob, effect)
    return list(found.values())


def _having(tried: Sequence[Config], knob: str) -> int:
    return sum(1 for c in tried if knob in c)


def _solved(
    rows: Sequence[_Row], prior: Sequence[float], noise: float
) -> tuple[list[float], list[list[float]]]:
    """Posterior mean of each term, and their covariances.

    Bayesian linear regression with independent normal priors: (X'WX + D)^-1 X'Wy.

    Args:
        rows: One for each config.
        prior: Standard deviation of each term beforehand.
        noise: Standard deviation of a single run.
    """
    size = len(prior)
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for i, spread in enumerate(prior):
        matrix[i][i] = 1.0 / spread**2
    for row in rows:
        weight = row.runs / noise**2
        for i in row.terms:
            right[i] += weight * row.value
            line = matrix[i]
            for j in row.terms:
                line[j] += weight
    inverse = _inverse(matrix)
    mean = [math.fsum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]
    return mean, inverse


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the inverse of a positive definite matrix, by Gauss-Jordan; priors keep pivots positive."""
    size = len(matrix)
    work = [[*line, *(1.0 if i == j else 0.0 for j in range(size))] for i, line in enumerate(matrix)]
    for i in range(size):
        pivot = work[i][i]
        top = [v / pivot for v in work[i]]
        work[i] = top
        for j in range(size):
            factor = work[j][i]
            if j != i and factor != 0.0:
                work[j] = [a - factor * b for a, b in zip(work[j], top, strict=True)]
    return [line[size:] for line in work]
