"""Prediction of the throughput of a config, learned from screening runs; pure.

A Gaussian process over ln(rate / baseline's rate) with one additive term per knob, one per pair of changes as
far as observations need it, and a small joint term. The wait for data gives two upper bounds: while the loop
waits, faster computing cannot exceed the loader's rate; a loop that never waits gains nothing from its
loader.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.compare.amortised_rate import amortised, objective_values_by_trial
from autotune.compare.transfer import beliefs
from autotune.knobs.registry import builtin
from autotune.model.config import Config
from autotune.model.identity_cache import IdentityCache, study_key
from autotune.model.objective import ENERGY
from autotune.search.models.linear import GaussianProcess
from autotune.search.models.priors import Priors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from autotune.model.config import Value
    from autotune.model.measurement import Measurement
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study
    from autotune.model.trial import Trial


@functools.cache
def loader_knobs() -> frozenset[str]:
    """Return the knobs that feed the loop and do not compute in it."""
    return frozenset(name for name, knob in builtin().items() if knob.feeds)


_WAITS = 0.1
_AMPLITUDES = (0.35, 0.8, 0.1)
_JOINT = 0.06
_CONSTANT = 0.1
_LENGTH = 1.3
NOISE = 0.02
"""Standard deviation of a single run, in ln rate, unless runs show a larger one."""
_SLACK = 0.03

Point = tuple["Value | None", ...]
_MODELS: IdentityCache[ThroughputModel | None] = IdentityCache(size=6)


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """Throughput model of one study at one moment; built by `ThroughputModel.of`.

    Args:
        base: Baseline's amortised rate.
        seen: Mean ln ratio to it over the runs of each config that has been measured in its own process.
        runs: Number of these runs by config.
        earlier: Observations of earlier studies: point, ln ratio, uncertainty.
        observed: Observations that condition the process: point, ln ratio, uncertainty.
    """

    study: Study
    space: SearchSpace
    base: float
    seen: dict[Config, float]
    runs: dict[Config, int]
    process: GaussianProcess
    loader_roof: dict[Config, float]
    compute_roof: dict[Config, float]
    earlier: tuple[tuple[Point, float, float], ...] = ()
    observed: tuple[tuple[object, float, float], ...] = ()

    @classmethod
    def of(
        cls,
        study: Study,
        space: SearchSpace,
        *,
        informed: bool = False,
        expects: bool = True,
        in_cycles: bool = False,
    ) -> ThroughputModel | None:
        """Fit the model; None if the baseline was not measured.

        Args:
            study: Current study.
            space: Space of the study.
            informed: Use results of earlier studies where nothing was measured here; to choose the next run
                only, never to rank results.
            expects: Start from prior knowledge of values (`autotune.search.models.priors`).
            in_cycles: Learn from confirmation and ablation runs as well.
        """
        # Without them, confirmation does not change the model.
        known = study.trials if in_cycles else tuple(t for t in study.trials if not t.group)
        key = study_key(study, space, informed, expects, in_cycles, trials=known)

        def fit() -> ThroughputModel | None:
            values = objective_values_by_trial(study, in_cycles=in_cycles)
            return cls._fit(study, space, values, informed=informed, expects=expects)

        return _MODELS.get(key, fit)

    @classmethod
    def _fit(
        cls,
        study: Study,
        space: SearchSpace,
        values: Sequence[tuple[Trial, float]],
        *,
        informed: bool,
        expects: bool,
    ) -> ThroughputModel | None:
        ran: dict[Config, list[float]] = {}
        for trial, value in values:
            ran.setdefault(trial.config, []).append(value)
        rates = {c: statistics.fmean(values) for c, values in ran.items()}
        base = rates.get(Config(), 0.0)
        if base <= 0.0:
            return None
        seen = {c: math.log(r / base) for c, r in rates.items() if r > 0}
        runs = {c: len(ran[c]) for c in seen}
        earlier = [f for f in beliefs(study).first if f.config not in seen] if informed else []
        beside = tuple((_point(space, f.config), f.log, f.sd) for f in earlier)
        known = Priors.of(study, space) if expects and study.spec.objective != ENERGY else None
        kernel = _Kernel.of(space, None if known is None else known.spreads())
        expected = None if known is None else Remembered(known.mean)
        observed = (*((_point(space, c), y, NOISE / math.sqrt(runs[c])) for c, y in seen.items()), *beside)
        process = _conditioned(observed, kernel, expected)
        # The wait for data bounds the rate, not the energy.
        loader, compute = ({}, {}) if study.spec.objective == ENERGY else _roofs(study, base)
        return cls(study, space, base, seen, runs, process, loader, compute, beside, observed)

    def predict(self, config: Config) -> tuple[float, float]:
        """Return the mean and standard deviation of ln(rate / baseline's rate)."""
        mean, sd = self.process.predict(_point(self.space, config))
        roof = self.roof(config)
        if mean + sd > roof:
            mean, sd = min(mean, roof), min(sd, max(_SLACK, (roof - mean) / 2 if mean < roof else _SLACK))
        return mean, sd

    def foreseen(self, config: Config) -> tuple[float, float]:
        """Return the prediction before anything but the baseline was measured."""
        kernel, expected = self.process.kernel, self.process.expected
        point, base = self.point(config), self.point(Config())
        variance = kernel(point, point) - 2.0 * kernel(point, base) + kernel(base, base)
        return 0.0 if expected is None else expected(point), math.sqrt(max(0.0, variance))

    def believing(self, pending: Collection[Config]) -> ThroughputModel:
        """Return the model as if pending runs had ended as predicted: little is left to learn there."""
        observed = [*self.observed, *((self.point(c), self.predict(c)[0], NOISE) for c in pending)]
        return replace(self, process=_conditioned(observed, self.process.kernel, self.process.expected))

    def doubting(self, run_sd: float) -> GaussianProcess:
        """Return the process conditioned with this standard deviation of a single run, in ln rate.

        `point` makes its points.
        """
        by_config = [(self.point(c), y, run_sd / math.sqrt(self.runs[c])) for c, y in self.seen.items()]
        observed = [*by_config, *((point, y, max(sd, run_sd)) for point, y, sd in self.earlier)]
        return _conditioned(observed, self.process.kernel, self.process.expected)

    def point(self, config: Config) -> Point:
        """Return the point of a config."""
        return _point(self.space, config)

    def roof(self, config: Config) -> float:
        """Return the upper bound of ln(rate / baseline's rate) from observed waits; infinite if open."""
        loader = self.loader_roof.get(loader_part(config), math.inf)
        compute = self.compute_roof.get(compute_part(config), math.inf)
        return min(loader, compute) + _SLACK

    def expected_improvement(self, config: Config, incumbent: float) -> float:
        """Return the expected gain in ln rate over the incumbent."""
        mean, sd = self.predict(config)
        if sd <= 0.0:
            return max(0.0, mean - incumbent)
        z = (mean - incumbent) / sd
        normal = statistics.NormalDist()
        return sd * (z * normal.cdf(z) + normal.pdf(z))


def loader_part(config: Config) -> Config:
    """Return the changes that feed the loop."""
    return Config({k: v for k, v in config.items() if k in loader_knobs()})


def compute_part(config: Config) -> Config:
    """Return the changes that compute."""
    return config.without(*loader_knobs())


def wait_frac(study: Study) -> float:
    """Return the share of the baseline's time spent waiting for data."""
    waits = [t.measurement.data_wait_frac for t in study.baseline if t.measurement]
    return statistics.fmean(waits) if waits else 0.0


def _roofs(study: Study, base: float) -> tuple[dict[Config, float], dict[Config, float]]:
    """Return upper bounds of the ln ratio by loader part and by compute part.

    With worker processes, a loop that waits runs at the loader's rate. Without, loading and computing
    alternate: their times add, and each alone bounds the rate.
    """
    loader: dict[Config, float] = {}
    compute: dict[Config, float] = {}
    for trial in study.finished():
        m = trial.measurement
        if m is None or trial.group:
            continue
        y, q = _log_ratio(study, m, base), min(0.99, max(0.0, m.data_wait_frac))
        if y is None:
            continue
        if _workers(study, trial.config) > 0:
            roof = y if q > _WAITS else math.inf
        else:
            roof = y - math.log(max(q, 0.01))
        feed, work = loader_part(trial.config), compute_part(trial.config)
        loader[feed] = max(loader.get(feed, -math.inf), roof)
        compute[work] = max(compute.get(work, -math.inf), y - math.log(1.0 - q))
    return loader, compute


def _log_ratio(study: Study, m: Measurement, base: float) -> float | None:
    rate = amortised(study, m)
    return math.log(rate / base) if rate > 0 else None


def _workers(study: Study, config: Config) -> int:
    value = config.get("num_workers")
    if value is None and study.facts is not None and study.facts.run is not None:
        loader = study.facts.run.loader
        value = loader.num_workers if loader is not None else 0
    return int(value) if isinstance(value, int) else 0


def _point(space: SearchSpace, config: Config) -> Point:
    return tuple(config.get(d.knob, d.own) for d in space.dimensions.values())


class Remembered:
    """Cached prior means of points."""

    def __init__(self, mean: Callable[[Point], float]) -> None:
        self._mean = mean
        self._known: dict[Point, float] = {}

    def __call__(self, point: object) -> float:
        assert isinstance(point, tuple)
        found = self._known.get(point)
        if found is None:
            found = self._known[point] = self._mean(point)
        return found


def _conditioned(
    observed: Sequence[tuple[object, float, float]],
    kernel: Callable[[object, object], float],
    expected: Callable[[object], float] | None,
) -> GaussianProcess:
    """Return the process given observations of (point, ln ratio, standard deviation)."""
    points, values, noise = zip(*observed, strict=True)
    return GaussianProcess.of(points, values, noise, kernel, expected)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Sum over knobs, ordinal ones smooth along their values, plus a small joint term."""

    amplitudes: tuple[float, ...]
    ranks: tuple[dict[Value | None, int] | None, ...]

    @classmethod
    def of(cls, space: SearchSpace, spreads: Sequence[float] | None = None) -> _Kernel:
        start, ratio, floor = _AMPLITUDES
        dimensions = list(space.dimensions.values())
        by_place = (max(floor, start * ratio**k) for k in range(len(dimensions)))
        return cls(
            tuple(by_place if spreads is None else spreads),
            tuple({v: i for i, v in enumerate(d.values)} if d.ordinal else None for d in dimensions),
        )

    def __call__(self, a: object, b: object) -> float:
        assert isinstance(a, tuple)
        assert isinstance(b, tuple)
        total, joint = _CONSTANT**2, _JOINT**2
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            likeness = 1.0 if x == y else self._likeness(k, x, y)
            total += self.amplitudes[k] ** 2 * likeness
            joint *= likeness if likeness > 0.0 else 0.1
        return total + joint

    def _likeness(self, k: int, x: Value | None, y: Value | None) -> float:
        ranks = self.ranks[k]
        if ranks is None or x not in ranks or y not in ranks:
            return 0.0
        return math.exp(-0.5 * ((ranks[x] - ranks[y]) / _LENGTH) ** 2)
