"""What each value of a knob is likely to do, fitted to undisturbed single runs of screening. Pure.

An additive fit of ln(rate / the script's rate): one term per changed value, and one per pair of knobs
that were changed together, all held towards zero. It describes the runs that were made; what a knob brings in
the winner is measured in pairs where the search took the winner apart, and that is what counts.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.core.config import Config, Value
from autotune.core.disturbances import without_disturbed
from autotune.core.measurement import Estimate
from autotune.core.rates import screened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.core.study import Study

_SPREAD: Final = 0.5
_JOINT_SPREAD: Final = 0.12
_LEAST_NOISE: Final = 0.03
"""Two single runs of a config differ by this much by themselves."""
_MOST_PAIRS: Final = 40
_FEWEST_TOGETHER: Final = 2
_Z: Final = 1.96
_MATTERS: Final = 0.03

Term = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEffect:
    """One value of one knob, estimated.

    Args:
        ratio: How many times as fast as with the script's own value, all else equal.
        low, high: Interval of about 95 % under the fit.
        configs: Configurations that had it.
    """

    knob: str
    value: Value
    ratio: float
    low: float
    high: float
    configs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two knobs that do together what neither does alone, estimated.

    Args:
        ratio: Their joint gain over the product of their own: 0.9 is a tenth less than apart.
        configs: Configurations that changed both.
    """

    knobs: tuple[str, str]
    ratio: float
    low: float
    high: float
    configs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Of all knobs that were tried; largest first."""

    values: tuple[ValueEffect, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    configs: int = 0


class _Fit(NamedTuple):
    """The model of a study's single runs.

    Args:
        rates: Configuration -> ln of its rate over the script's; the script itself is not among them.
        singles: Term -> knob and value.
        pairs: Terms of two knobs that were changed together and apart.
        together: Pair -> how many configurations changed both.
        places: Term -> its place in `mean`.
        mean: Of each term.
        spread: Their covariances.
    """

    rates: Mapping[Config, float]
    singles: Mapping[Term, tuple[str, Value]]
    pairs: Sequence[Term]
    together: Mapping[Term, int]
    places: Mapping[Term, int]
    mean: Sequence[float]
    spread: Sequence[Sequence[float]]

    def ratio(self, terms: Iterable[int]) -> dict[str, float]:
        """What these terms make together, with its interval."""
        some = list(terms)
        mean = math.fsum(self.mean[i] for i in some)
        variance = math.fsum(self.spread[i][j] for i in some for j in some)
        sd = math.sqrt(max(0.0, variance))
        return {
            "ratio": math.exp(mean),
            "low": math.exp(mean - _Z * sd),
            "high": math.exp(mean + _Z * sd),
        }


def estimated(study: Study) -> Effects:
    """Fit the screening runs; empty where nothing but the script was measured."""
    fit = _fit_of(study)
    if fit is None:
        return Effects()
    own = Counter(item for c in fit.rates for item in c.items())
    values = [
        ValueEffect(knob=knob, value=value, configs=own[knob, value], **fit.ratio([fit.places[term]]))
        for term, (knob, value) in fit.singles.items()
    ]
    interactions = [
        Interaction(knobs=(p[0], p[1]), configs=fit.together[p], **fit.ratio([place]))
        for p in fit.pairs
        for place in (fit.places[p],)
        if abs(fit.mean[place]) > max(_MATTERS, _Z * math.sqrt(max(0.0, fit.spread[place][place])))
    ]
    return Effects(
        values=tuple(sorted(values, key=lambda e: -e.ratio)),
        interactions=tuple(sorted(interactions, key=lambda e: -abs(math.log(e.ratio)))),
        configs=len(fit.rates),
    )


def parts(study: Study, config: Config) -> dict[tuple[str, ...], Estimate]:
    """Return how many times as fast a configuration is with some of its knobs as without, by the fit.

    Knobs that no single run had apart are one part. Knobs that no single run had are left out, and so is the
    configuration as a whole, which pairs measure. Largest first; n is 0, as no pair measured it.
    """
    fit = _fit_of(study)
    if fit is None:
        return {}
    groups: dict[tuple[bool, ...], list[str]] = {}
    for knob, value in config.items():
        having = tuple(knob in c and repr(c[knob]) == repr(value) for c in fit.rates)
        if any(having):
            groups.setdefault(having, []).append(knob)
    whole = set(_terms(config, fit.places))
    found: dict[tuple[str, ...], Estimate] = {}
    for knobs in groups.values():
        if len(knobs) < len(config):
            some = fit.ratio(whole - set(_terms(config.without(*knobs), fit.places)))
            found[tuple(knobs)] = Estimate(
                value=some["ratio"], low=some["low"], high=some["high"], n=0, unit="ratio"
            )
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


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
    rates = screened(study)
    base = rates.get(Config(), 0.0)
    seen = {c: math.log(r / base) for c, r in rates.items() if r > 0} if base > 0 else {}
    tried = {c: y for c, y in seen.items() if not c.is_baseline}
    if not tried:
        return None
    own = Counter(item for c in tried for item in c.items())
    joint: Counter[Term] = Counter(pair for c in tried for pair in itertools.combinations(sorted(c), 2))
    singles: dict[Term, tuple[str, Value]] = {(k, repr(v)): (k, v) for k, v in own}
    pairs = [p for p, count in joint.most_common(_MOST_PAIRS) if count >= _FEWEST_TOGETHER]
    # Two knobs that were never changed apart cannot be told from one another.
    pairs = [p for p in pairs if joint[p] < min(_having(tried, p[0]), _having(tried, p[1]))]
    terms: list[Term] = [*singles, *pairs]
    places = {term: i for i, term in enumerate(terms)}
    prior = [_SPREAD if term in singles else _JOINT_SPREAD for term in terms]
    rows = [_terms(c, places) for c in tried]
    mean, spread = _solved(rows, list(tried.values()), prior, _noise(study, base))
    return _Fit(tried, singles, pairs, joint, places, mean, spread)


def _terms(config: Mapping[str, Value], places: Mapping[Term, int]) -> list[int]:
    """The places of the terms that a configuration holds."""
    own: list[Term] = [(k, repr(v)) for k, v in config.items()]
    own += itertools.combinations(sorted(config), 2)
    return [places[term] for term in own if term in places]


def best_of_each(effects: Effects) -> list[ValueEffect]:
    """Of every knob the value that is estimated best, largest effect first."""
    found: dict[str, ValueEffect] = {}
    for effect in effects.values:
        found.setdefault(effect.knob, effect)
    return list(found.values())


def _having(tried: Mapping[Config, float], knob: str) -> int:
    return sum(1 for c in tried if knob in c)


def _noise(study: Study, base: float) -> float:
    rates = [t.measurement.throughput.value for t in study.baseline if t.measurement]
    logs = [math.log(r / base) for r in rates if r > 0]
    return max(_LEAST_NOISE, statistics.stdev(logs)) if len(logs) > 1 else _LEAST_NOISE


def _solved(
    rows: Sequence[Sequence[int]], values: Sequence[float], prior: Sequence[float], noise: float
) -> tuple[list[float], list[list[float]]]:
    """Posterior mean of each term, and their covariances; a row lists the terms it holds.

    Bayesian linear regression with independent normal priors: (X'X / s2 + D)^-1 X'y / s2.
    """
    size = len(prior)
    weight = 1.0 / noise**2
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for i, spread in enumerate(prior):
        matrix[i][i] = 1.0 / spread**2
    for row, value in zip(rows, values, strict=True):
        for i in row:
            right[i] += weight * value
            line = matrix[i]
            for j in row:
                line[j] += weight
    inverse = _inverse(matrix)
    mean = [math.fsum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]
    return mean, inverse


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Of a symmetric positive definite matrix, by Gauss and Jordan; the priors keep every pivot positive."""
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
