"""How fast is a config likely to be? Learned from screening runs; pure.

A Gaussian process over ln(rate / baseline's rate) with one additive term per knob, one per pair of
changes as far as what was seen asks for it, and a small joint one, under two roofs that the wait for
data proves: while the loop waits, faster computing cannot help beyond the loader's rate, and a loop
that never waits gains nothing from its loader.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autotune.compare.agreement import trusted
from autotune.compare.amortised_rate import amortised, merits_by_trial
from autotune.compare.transfer import beliefs
from autotune.model.config import Config
from autotune.model.identity_cache import Memo, study_key
from autotune.model.objective import ENERGY
from autotune.search.models.drift_model import NOISE, OnMachine, Run, fitted
from autotune.search.models.linear import Process, covariance
from autotune.search.models.priors import Expectations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from autotune.model.config import Value
    from autotune.model.measurement import Measurement
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study
    from autotune.model.trial import Trial

LOADER_KNOBS = frozenset(
    {"num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "mp_context", "in_order"}
)
"""Knobs that feed the loop and do not compute in it."""

_WAITS = 0.1
_AMPLITUDES = (0.35, 0.8, 0.1)
_JOINT = 0.06
_CONSTANT = 0.1
_LENGTH = 1.3
_LIVE_NOISE = 0.03
"""Beside it, of a segment in a running process: it may be biased by as much before its knob is distrusted."""
_PAIRS = (0.05, 0.15, 0.4)
"""Tried beside 0, where gains add up: standard deviations of what two changes bring beyond their sum."""
_MORE_LIKELY = 1.0
_SLACK = 0.03

Point = tuple["Value | None", ...]
_MODELS: Memo[ThroughputModel | None] = Memo(size=6)


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """Built by `ThroughputModel.of` for one study at one moment.

    Args:
        base: Baseline's amortised rate.
        seen: ln ratio to it by config that a process of its own has measured, the mean of its runs.
        runs: How many these were.
        earlier: What it heeds beside these, of segments and of earlier studies: point, ln ratio, its doubt.
        live: ln ratio of those that segments of a visit alone have measured.
        observed: What the process is conditioned on: point, of a run with its time, ln ratio, its doubt.
        noise: Of a single run, in ln rate.
    """

    study: Study
    space: SearchSpace
    base: float
    seen: dict[Config, float]
    runs: dict[Config, int]
    process: Process
    loader_roof: dict[Config, float]
    compute_roof: dict[Config, float]
    earlier: tuple[tuple[Point, float, float], ...] = ()
    live: dict[Config, float] = field(default_factory=dict[Config, float])
    observed: tuple[tuple[object, float, float], ...] = ()
    noise: float = NOISE

    @classmethod
    def of(
        cls,
        study: Study,
        space: SearchSpace,
        *,
        pairs: bool = False,
        informed: bool = False,
        expects: bool = True,
        in_cycles: bool = False,
        follows: bool = False,
    ) -> ThroughputModel | None:
        """Fit; None as long as the baseline was not measured.

        Args:
            study: As of now.
            space: Of the study.
            pairs: Let pairs of changes differ from the sum of their gains where what was seen asks for it.
            informed: Believe what earlier studies tell, as far as it has not been measured here; to choose
                what to run next, and never to say what is fastest.
            expects: Begin from what is known of values beforehand (`autotune.search.models.priors`).
            in_cycles: Learn from the runs of confirmation and ablation as well.
            follows: Tell changes of the machine from what configs do.
        """
        # Else confirmation teaches it nothing, so that what it knew before still holds.
        known = study.trials if in_cycles else tuple(t for t in study.trials if not t.group)
        key = study_key(study, space, pairs, informed, expects, in_cycles, follows, trials=known)

        def fit() -> ThroughputModel | None:
            told = merits_by_trial(study, in_cycles=in_cycles)
            return cls._fit(
                study, space, told, pairs=pairs, informed=informed, expects=expects, follows=follows
            )

        return _MODELS.get(key, fit)

    @classmethod
    def _fit(
        cls,
        study: Study,
        space: SearchSpace,
        told: Sequence[tuple[Trial, float]],
        *,
        pairs: bool,
        informed: bool,
        expects: bool,
        follows: bool,
    ) -> ThroughputModel | None:
        ran: dict[Config, list[float]] = {}
        for trial, value in told:
            ran.setdefault(trial.config, []).append(value)
        rates = {c: statistics.fmean(values) for c, values in ran.items()}
        base = rates.get(Config(), 0.0)
        if base <= 0.0:
            return None
        seen = {c: math.log(r / base) for c, r in rates.items() if r > 0}
        runs = {c: len(ran[c]) for c in seen}
        segments = _segments(study, space, seen)
        live = {c: y for c, (y, _) in segments.items()}
        earlier = [f for f in beliefs(study).first if f.config not in seen] if informed else []
        beside = (
            *((_point(space, c), y, sd) for c, (y, sd) in segments.items()),
            *((_point(space, f.config), f.log, f.sd) for f in earlier if f.config not in live),
        )
        known = Expectations.of(study, space) if expects and study.spec.objective != ENERGY else None
        kernel = _Kernel.of(space, None if known is None else known.spreads())
        expected = None if known is None else Remembered(known.mean)
        noise = NOISE
        if follows and not pairs:
            each = [
                (Run(_point(space, t.config), t.finished_s - 0.5 * t.seconds), math.log(value / base))
                for t, value in told
                if value > 0.0
            ]
            process, noise = fitted(each, beside, kernel, expected)
            observed = (*((run, y, noise) for run, y in each), *beside)
        else:
            plain = [(_point(space, c), y, NOISE / math.sqrt(runs[c])) for c, y in seen.items()]
            observed = (*plain, *beside)
            points, values = [p for p, _, _ in (*plain, *beside)], [y for _, y, _ in observed]
            doubts = [sd for _, _, sd in observed]
            process = _fitted(kernel, points, values, doubts, expected, pairs=pairs)
        # What the loop waits for bounds how fast it can get, not how little energy it takes.
        loader, compute = ({}, {}) if study.spec.objective == ENERGY else _roofs(study, base)
        return cls(study, space, base, seen, runs, process, loader, compute, beside, live, observed, noise)

    @property
    def known(self) -> dict[Config, float]:
        """Ln ratio to the baseline's rate by config, however it was measured."""
        return {**self.live, **self.seen}

    @property
    def kernel(self) -> object:
        """Prior covariance of configs, whatever the machine does."""
        kernel = self.process.kernel
        return kernel.configs if isinstance(kernel, OnMachine) else kernel

    @property
    def pair_sd(self) -> float:
        """How far two changes may differ from the sum of their gains, in ln rate; 0 where gains add up."""
        kernel = self.kernel
        return kernel.pair_sd if isinstance(kernel, _Kernel) else 0.0

    def predict(self, config: Config) -> tuple[float, float]:
        """Mean and standard deviation of ln(rate / baseline's rate)."""
        mean, sd = self.process.predict(_point(self.space, config))
        roof = self.roof(config)
        if mean + sd > roof:
            mean, sd = min(mean, roof), min(sd, max(_SLACK, (roof - mean) / 2 if mean < roof else _SLACK))
        return mean, sd

    def foreseen(self, config: Config) -> tuple[float, float]:
        """As `predict`, before anything but the baseline was measured."""
        kernel, expected = self.process.kernel, self.process.expected
        point, base = self.point(config), self.point(Config())
        variance = kernel(point, point) - 2.0 * kernel(point, base) + kernel(base, base)
        return 0.0 if expected is None else expected(point), math.sqrt(max(0.0, variance))

    def believing(self, pending: Collection[Config]) -> ThroughputModel:
        """As if what runs at the moment had ended as expected: little is left to be learned there."""
        told = [*self.observed, *((self.point(c), self.predict(c)[0], NOISE) for c in pending)]
        points, values, noise = [p for p, _, _ in told], [y for _, y, _ in told], [sd for _, _, sd in told]
        process = self.process
        return replace(self, process=Process.of(points, values, noise, process.kernel, process.expected))

    def doubting(self, run_sd: float) -> Process:
        """What was seen, by somebody who takes every single run for so uncertain (ln rate).

        As far as the machine's changes are followed they are part of that. Points of it are made by `point`.
        """
        kernel = self.process.kernel
        followed = kernel.sd if isinstance(kernel, OnMachine) else 0.0
        doubt = math.sqrt(max(self.noise**2, run_sd**2 - followed**2)) if followed else run_sd
        by_run = [(p, y, doubt) for p, y, _ in self.observed if isinstance(p, Run)]
        by_config = [(self.point(c), y, run_sd / math.sqrt(self.runs[c])) for c, y in self.seen.items()]
        told = [*(by_run or by_config), *((point, y, max(sd, run_sd)) for point, y, sd in self.earlier)]
        points, values, noise = [p for p, _, _ in told], [y for _, y, _ in told], [sd for _, _, sd in told]
        return Process.of(points, values, noise, kernel, self.process.expected)

    def point(self, config: Config) -> Point:
        """Where the process has a config."""
        return _point(self.space, config)

    def roof(self, config: Config) -> float:
        """What ln(rate / baseline's rate) cannot exceed by the waits seen so far; infinite if open."""
        loader = self.loader_roof.get(loader_part(config), math.inf)
        compute = self.compute_roof.get(compute_part(config), math.inf)
        return min(loader, compute) + _SLACK

    def expected_improvement(self, config: Config, incumbent: float) -> float:
        """Expected gain in ln rate over the incumbent."""
        mean, sd = self.predict(config)
        if sd <= 0.0:
            return max(0.0, mean - incumbent)
        z = (mean - incumbent) / sd
        normal = statistics.NormalDist()
        return sd * (z * normal.cdf(z) + normal.pdf(z))


def _segments(
    study: Study, space: SearchSpace, seen: dict[Config, float]
) -> dict[Config, tuple[float, float]]:
    """What segments say of configs that no process of its own has measured or failed with.

    Returns:
        ln ratio to the baseline's rate and its standard deviation, by config.
    """
    screening = replace(study, trials=tuple(t for t in study.trials if not t.group))
    failed = {t.config for t in screening.told() if t.failure is not None and t.failure.kind.teaches}
    return {
        c: (seen[k.anchor] + k.log_ratio, math.hypot(NOISE, _LIVE_NOISE, k.sd))
        for c, k in trusted(screening).items()
        if c not in seen and c not in failed and k.anchor in seen and space.contains(c)
    }


def loader_part(config: Config) -> Config:
    """The changes that feed the loop."""
    return Config({k: v for k, v in config.items() if k in LOADER_KNOBS})


def compute_part(config: Config) -> Config:
    """The changes that compute."""
    return config.without(*LOADER_KNOBS)


def wait_frac(study: Study) -> float:
    """Share of the baseline's time spent waiting for data."""
    waits = [t.measurement.data_wait_frac for t in study.baseline if t.measurement]
    return statistics.fmean(waits) if waits else 0.0


def _roofs(study: Study, base: float) -> tuple[dict[Config, float], dict[Config, float]]:
    """Upper bounds of ln ratio by what feeds the loop, and by what computes in it.

    With worker processes, a loop that waits runs at the loader's rate. Without, loading and
    computing take turns: their times add, and each alone bounds the rate.
    """
    loader: dict[Config, float] = {}
    compute: dict[Config, float] = {}
    for trial in study.told():
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
    """What is expected of points, each reckoned once."""

    def __init__(self, mean: Callable[[Point], float]) -> None:
        self._mean = mean
        self._known: dict[Point, float] = {}

    def __call__(self, point: object) -> float:
        assert isinstance(point, tuple)
        found = self._known.get(point)
        if found is None:
            found = self._known[point] = self._mean(point)
        return found


def _fitted(
    kernel: _Kernel,
    points: list[Point],
    values: list[float],
    noise: list[float],
    expected: Remembered | None,
    *,
    pairs: bool,
) -> Process:
    """With the size of pair terms under which what was seen is likeliest; larger ones have to be clearly so.

    Nothing but configs with two changes or more tells of pairs, so as long as gains add up the size stays 0.
    """
    plain = covariance(points, kernel)
    best = Process.from_covariance(plain, points, values, noise, kernel, expected)
    if not pairs:
        return best
    shared = covariance(points, kernel.pairs)
    if not any(row[-1] for row in shared):
        return best
    for pair_sd in _PAIRS:
        matrix = [
            [p + pair_sd**2 * s for p, s in zip(*rows, strict=True)]
            for rows in zip(plain, shared, strict=True)
        ]
        wider = replace(kernel, pair_sd=pair_sd)
        other = Process.from_covariance(matrix, points, values, noise, wider, expected)
        if other.evidence > best.evidence + _MORE_LIKELY:
            best = other
    return best


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Sum over knobs, ordinal ones smooth along their values, and over pairs, plus a small joint term."""

    amplitudes: tuple[float, ...]
    ranks: tuple[dict[Value | None, int] | None, ...]
    owns: Point
    pair_sd: float = 0.0

    @classmethod
    def of(cls, space: SearchSpace, spreads: Sequence[float] | None = None) -> _Kernel:
        start, ratio, floor = _AMPLITUDES
        dimensions = list(space.dimensions.values())
        by_place = (max(floor, start * ratio**k) for k in range(len(dimensions)))
        return cls(
            tuple(by_place if spreads is None else spreads),
            tuple({v: i for i, v in enumerate(d.values)} if d.ordinal else None for d in dimensions),
            tuple(d.own for d in dimensions),
        )

    def __call__(self, a: object, b: object) -> float:
        assert isinstance(a, tuple)
        assert isinstance(b, tuple)
        total, joint = _CONSTANT**2, _JOINT**2
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            likeness = 1.0 if x == y else self._likeness(k, x, y)
            total += self.amplitudes[k] ** 2 * likeness
            joint *= likeness if likeness > 0.0 else 0.1
        if self.pair_sd:
            total += self.pair_sd**2 * self.pairs(a, b)
        return total + joint

    def pairs(self, a: object, b: object) -> float:
        """How many pairs of knobs both points change alike; of ordinal ones that are near, a part counts.

        A single change is in no pair, so that pairs explain nothing that a knob does by itself.
        """
        assert isinstance(a, tuple)
        assert isinstance(b, tuple)
        once = squared = 0.0
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            if x == self.owns[k] or y == self.owns[k]:
                continue
            likeness = 1.0 if x == y else self._likeness(k, x, y)
            once += likeness
            squared += likeness * likeness
        return 0.5 * (once * once - squared)

    def _likeness(self, k: int, x: Value | None, y: Value | None) -> float:
        ranks = self.ranks[k]
        if ranks is None or x not in ranks or y not in ranks:
            return 0.0
        return math.exp(-0.5 * ((ranks[x] - ranks[y]) / _LENGTH) ** 2)
