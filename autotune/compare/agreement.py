"""Agreement between runs of a config within a running process and in a fresh process. Pure.

Used for old journals, in which a process visited several configs, each for a segment of steps. A config that
was measured both ways is a pair. A knob whose pairs disagree is not trusted: its segments do not count.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.model.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.model.live import Observation
    from autotune.model.study import Study
    from autotune.model.trial import Trial

BOUND: Final = 0.03
"""Largest difference between segments and fresh processes, in ln rate."""

ENOUGH: Final = 3
"""Configs beyond the bound from which a knob is distrusted."""

PROCESS_SD: Final = 0.02
"""Standard deviation between processes, in ln rate, as in the search model (docs/decisions/0052)."""

UNCLEAR: Final = 0.1
"""Standard deviation of ln ratio above which a segment is ignored."""

_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One config that was measured both ways.

    Args:
        live: ln of its rate over that of its process's own config, from segments.
        fresh: The same from fresh processes.
        sd: Standard deviation of the difference, as far as known.
    """

    config: Config
    live: float
    fresh: float
    sd: float

    @property
    def bias(self) -> float:
        """Excess of its segments' rate, in ln rate."""
        return self.live - self.fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The pairs of one knob.

    Args:
        knob: Changed in each of these configs.
        segments: Number of configs that segments measured.
        pairs: Those that were also measured in a fresh process.
    """

    knob: str
    segments: int
    pairs: tuple[Pair, ...] = ()

    @property
    def bias(self) -> float | None:
        """Mean bias of the pairs, in ln rate; None without a pair."""
        return statistics.fmean(p.bias for p in self.pairs) if self.pairs else None

    @property
    def rank(self) -> float | None:
        """Kendall's tau between both ways, with the unchanged config; None without a pair.

        1: the same order. -1: the opposite order.
        """
        if not self.pairs:
            return None
        points = [(0.0, 0.0), *((p.live, p.fresh) for p in self.pairs)]
        signs = [
            math.copysign(1.0, (a[0] - b[0]) * (a[1] - b[1])) if a[0] != b[0] and a[1] != b[1] else 0.0
            for a, b in itertools.combinations(points, 2)
        ]
        return statistics.fmean(signs)

    @property
    def is_live(self) -> bool:
        """Whether its segments are trusted: few pairs and not their mean exceed the bound."""
        if sum(abs(p.bias) > BOUND for p in self.pairs) >= ENOUGH:
            return False
        if not self.pairs:
            return True
        error = math.sqrt(math.fsum(p.sd**2 for p in self.pairs)) / len(self.pairs)
        return abs(statistics.fmean(p.bias for p in self.pairs)) - _NORMAL * error <= BOUND

    @property
    def text(self) -> str:
        """Sentence for the user."""
        if self.bias is None:
            return f"{self.knob}: {self.segments} measured in a running process, none in one of its own."
        percent = 100.0 * math.expm1(self.bias)
        found = f"{self.knob} is {percent:+.1f} % faster in a running process than in one of its own"
        count = f"{len(self.pairs)} configuration" + ("s" if len(self.pairs) != 1 else "")
        end = "" if self.is_live else "; it is no longer switched in a running process"
        return f"{found} ({count}){end}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The result of a config's segments.

    Args:
        anchor: The config of the process that measured it.
        log_ratio: ln of its rate over the anchor's.
        sd: Standard deviation of `log_ratio` from its windows alone.
    """

    anchor: Config
    log_ratio: float
    sd: float


def agreements(study: Study) -> tuple[Agreement, ...]:
    """Return the agreement of each knob that was measured by segments, sorted by name."""
    if not study.visits:
        return ()
    rates = _fresh(study)
    measured: dict[str, set[Config]] = {}
    pairs: dict[str, list[Pair]] = {}
    for trial, observation in _observed(study):
        pair = _pair(trial.config, observation, rates)
        for knob in changed(trial.config, observation.config):
            measured.setdefault(knob, set()).add(observation.config)
            if pair is not None:
                pairs.setdefault(knob, []).append(pair)
    return tuple(
        Agreement(knob=knob, segments=len(measured[knob]), pairs=tuple(pairs.get(knob, ())))
        for knob in sorted(measured)
    )


def distrusted(study: Study) -> frozenset[str]:
    """Return the knobs whose segments are not trusted."""
    return frozenset(a.knob for a in agreements(study) if not a.is_live)


def trusted(study: Study) -> dict[Config, Known]:
    """Return config -> its last result by segments, without those of a distrusted knob."""
    if not study.visits:
        return {}
    excluded = distrusted(study)
    found: dict[Config, Known] = {}
    for trial, observation in _observed(study):
        if observation.ratio is None or excluded & set(changed(trial.config, observation.config)):
            continue
        found[observation.config] = Known(
            anchor=trial.config, log_ratio=math.log(observation.ratio.value), sd=observation.log_sd
        )
    return found


def changed(anchor: Config, config: Config) -> tuple[str, ...]:
    """Return the knobs in which a segment differs from its process's own config."""
    return tuple(k for k in {**anchor, **config} if anchor.get(k) != config.get(k))


def _observed(study: Study) -> Iterator[tuple[Trial, Observation]]:
    for trial in study.visits:
        if trial.visited is not None:
            yield from ((trial, o) for o in trial.visited.observations if o.log_sd <= UNCLEAR)


def _fresh(study: Study) -> dict[Config, Sequence[float]]:
    """Return config -> ln rates of fresh processes, in the unit of the script's own runs."""
    runs = [t for t in study.told() if t.measurement is not None and t.measurement.throughput.value > 0]
    units = {t.measurement.throughput.unit for t in runs if t.config.is_baseline and t.measurement}
    found: dict[Config, list[float]] = {}
    for trial in runs:
        if trial.measurement is not None and trial.measurement.throughput.unit in units:
            found.setdefault(trial.config, []).append(math.log(trial.measurement.throughput.value))
    return dict(found)


def _pair(anchor: Config, observation: Observation, rates: dict[Config, Sequence[float]]) -> Pair | None:
    own, base = rates.get(observation.config), rates.get(anchor)
    if not own or not base or observation.ratio is None:
        return None
    variance = observation.log_sd**2 + PROCESS_SD**2 * (1.0 / len(own) + 1.0 / len(base))
    return Pair(
        config=observation.config,
        live=math.log(observation.ratio.value),
        fresh=statistics.fmean(own) - statistics.fmean(base),
        sd=math.sqrt(variance),
    )
