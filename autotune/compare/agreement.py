"""Do segments of a visit say what fresh processes say? Knob by knob; pure, standard library only.

A config that was measured both ways is a pair. A knob whose pairs disagree is not switched in a running
process any more in this study, and what its segments had said no longer counts.
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
"""In ln rate: segments of a knob may differ by so much from fresh processes."""

ENOUGH: Final = 3
"""Configs of a knob that differ by more, after which it is not probed live any more."""

PROCESS_SD: Final = 0.02
"""Between processes, in ln rate: what the planner's model takes it to be (docs/decisions/0052)."""

UNCLEAR: Final = 0.1
"""Standard deviation of ln ratio above which a segment says nothing, as if there were none."""

_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One config, measured both ways.

    Args:
        live: ln of its rate over that of its process's own config, by segments.
        fresh: The same by processes of their own.
        sd: Standard deviation of the difference as far as it is known.
    """

    config: Config
    live: float
    fresh: float
    sd: float

    @property
    def bias(self) -> float:
        """How much faster it looks live, in ln rate."""
        return self.live - self.fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the pairs of one knob say.

    Args:
        knob: Changed in every one of these configs.
        segments: Configs that segments have measured with it.
        pairs: Those of them that have had a process of their own as well.
    """

    knob: str
    segments: int
    pairs: tuple[Pair, ...] = ()

    @property
    def bias(self) -> float | None:
        """Mean over the pairs, in ln rate; None without one."""
        return statistics.fmean(p.bias for p in self.pairs) if self.pairs else None

    @property
    def rank(self) -> float | None:
        """Kendall's tau between both ways, the unchanged config among them; None without a pair.

        1: the same order. -1: the opposite one.
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
        """Nothing speaks against its segments: too few pairs are beyond the bound, and not their mean."""
        if sum(abs(p.bias) > BOUND for p in self.pairs) >= ENOUGH:
            return False
        if not self.pairs:
            return True
        error = math.sqrt(math.fsum(p.sd**2 for p in self.pairs)) / len(self.pairs)
        return abs(statistics.fmean(p.bias for p in self.pairs)) - _NORMAL * error <= BOUND

    @property
    def text(self) -> str:
        """One sentence for people."""
        if self.bias is None:
            return f"{self.knob}: {self.segments} measured in a running process, none in one of its own."
        percent = 100.0 * math.expm1(self.bias)
        said = f"{self.knob} looks {percent:+.1f} % faster in a running process than in one of its own"
        count = f"{len(self.pairs)} configuration" + ("s" if len(self.pairs) != 1 else "")
        end = "" if self.is_live else "; it is no longer switched in a running process"
        return f"{said} ({count}){end}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What segments say of one config, as long as its knobs are trusted.

    Args:
        anchor: The config of the process that measured it.
        log_ratio: ln of its rate over the anchor's.
        sd: Of that, by its windows alone.
    """

    anchor: Config
    log_ratio: float
    sd: float


def agreements(study: Study) -> tuple[Agreement, ...]:
    """Of every knob of which a segment has told something, by name."""
    if not study.visits:
        return ()
    rates = _fresh(study)
    seen: dict[str, set[Config]] = {}
    pairs: dict[str, list[Pair]] = {}
    for trial, observation in _observed(study):
        pair = _pair(trial.config, observation, rates)
        for knob in changed(trial.config, observation.config):
            seen.setdefault(knob, set()).add(observation.config)
            if pair is not None:
                pairs.setdefault(knob, []).append(pair)
    return tuple(
        Agreement(knob=knob, segments=len(seen[knob]), pairs=tuple(pairs.get(knob, ())))
        for knob in sorted(seen)
    )


def distrusted(study: Study) -> frozenset[str]:
    """Knobs that are not switched in a running process any more."""
    return frozenset(a.knob for a in agreements(study) if not a.is_live)


def trusted(study: Study) -> dict[Config, Known]:
    """What segments tell of configs, by their last reading; without those of a distrusted knob."""
    if not study.visits:
        return {}
    out = distrusted(study)
    found: dict[Config, Known] = {}
    for trial, observation in _observed(study):
        if observation.ratio is None or out & set(changed(trial.config, observation.config)):
            continue
        found[observation.config] = Known(
            anchor=trial.config, log_ratio=math.log(observation.ratio.value), sd=observation.log_sd
        )
    return found


def changed(anchor: Config, config: Config) -> tuple[str, ...]:
    """Knobs in which a segment differs from its process's own config."""
    return tuple(k for k in {**anchor, **config} if anchor.get(k) != config.get(k))


def _observed(study: Study) -> Iterator[tuple[Trial, Observation]]:
    for trial in study.visits:
        if trial.visited is not None:
            yield from ((trial, o) for o in trial.visited.observations if o.log_sd <= UNCLEAR)


def _fresh(study: Study) -> dict[Config, Sequence[float]]:
    """Ln rates of fresh processes by config, in the unit of the script's own runs."""
    told = [t for t in study.told() if t.measurement is not None and t.measurement.throughput.value > 0]
    units = {t.measurement.throughput.unit for t in told if t.config.is_baseline and t.measurement}
    found: dict[Config, list[float]] = {}
    for trial in told:
        if trial.measurement is not None and trial.measurement.throughput.unit in units:
            found.setdefault(trial.config, []).append(math.log(trial.measurement.throughput.value))
    return dict(found)


def _pair(anchor: Config, observation: Observation, rates: dict[Config, Sequence[float]]) -> Pair | None:
    ours, base = rates.get(observation.config), rates.get(anchor)
    if not ours or not base or observation.ratio is None:
        return None
    variance = observation.log_sd**2 + PROCESS_SD**2 * (1.0 / len(ours) + 1.0 / len(base))
    return Pair(
        config=observation.config,
        live=math.log(observation.ratio.value),
        fresh=statistics.fmean(ours) - statistics.fmean(base),
        sd=math.sqrt(variance),
    )
