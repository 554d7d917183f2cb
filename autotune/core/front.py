"""The Pareto front of a study: configs that no other beats on throughput, memory and loss together. Pure."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from autotune.core.answer import FrontMember
from autotune.core.bounds import largest_peak_bytes
from autotune.core.config import Config
from autotune.core.cycles import in_own_unit
from autotune.core.loss_guard import finite_and_sane
from autotune.core.objective import Goal
from autotune.core.pareto import front
from autotune.core.rates import amortised
from autotune.core.stats import sd
from autotune.core.verdicts import loss_traces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.measurement import LossPoint, Measurement
    from autotune.core.study import Study

_BASE = Config()


def front_members(study: Study) -> tuple[FrontMember, ...]:
    """On a grid of 1 % in rate and memory and of the seed noise in loss: noise makes no member."""
    members: dict[Config, FrontMember] = {}
    samples = [t[-1].samples for t in (m.loss for m in _measured(study)) if t]
    end = min(samples, default=0)
    for trial in in_own_unit(study, study.told()):
        config, m = trial.config, trial.measurement
        if m is None or config in members or finite_and_sane(m.loss).verdict == "fail":
            continue
        runs = in_own_unit(study, study.of(config))
        rates = [amortised(study, t.measurement) for t in runs if t.measurement]
        members[config] = FrontMember(
            trial=trial.number,
            config=config,
            throughput=statistics.fmean(rates),
            peak_bytes=largest_peak_bytes(study, config),
            loss=_late_loss(m.loss, end),
        )
    base = loss_traces(study, _BASE)
    losses = [v for v in (_late_loss(t, end) for t in base.values()) if v is not None]
    grid = max(sd(losses), 1e-3 * abs(statistics.fmean(losses)) if losses else 0.0) or 1.0
    points = {
        config: (
            float(round(math.log(max(m.throughput, 1e-9)) / 0.01)),
            float(round(math.log(m.peak_bytes) / 0.01)) if m.peak_bytes else math.inf,
            float(round(m.loss / grid)) if m.loss is not None else math.inf,
        )
        for config, m in members.items()
    }
    goals = (Goal.MAXIMIZE, Goal.MINIMIZE, Goal.MINIMIZE)
    kept = front(points, goals)
    return tuple(sorted((members[c] for c in kept), key=lambda m: -m.throughput))


def _measured(study: Study) -> list[Measurement]:
    return [t.measurement for t in study.told() if t.measurement]


def _late_loss(trace: Sequence[LossPoint], end: int) -> float | None:
    late = [p.loss for p in trace if 2 * end / 3 < p.samples <= end] or [p.loss for p in trace[-3:]]
    return statistics.fmean(late) if late else None
