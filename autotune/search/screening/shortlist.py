"""The shortlist: configs that screening passes to confirmation; pure.

Configs are ranked by the throughput model's predictions, as the highest of many noisy readings is the
luckiest as much as the best.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.compare.failed_configs import broken
from autotune.compare.finalists import finalists, may_win
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage
from autotune.search.feature_flags import DEFAULT, FeatureFlags
from autotune.search.models.throughput_model import ThroughputModel

if TYPE_CHECKING:
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study

_BASE = Config()
_IDLE = 0.02
_NOTHING = 0.005
_HARDLY, _FAR_LESS, _AHEAD = 0.01, 0.75, 1e-9


def shortlist(
    study: Study, parts: FeatureFlags = DEFAULT, *, out: frozenset[Config] = frozenset()
) -> tuple[Config, ...]:
    """Return the current finalists, best first, as if screening ended now.

    The leaders, and last a simpler config with the same predicted speed as the first.

    Args:
        study: Current study.
        parts: Enabled features of the planner.
        out: Configs ruled out by confirmation; the next best replace them.
    """
    space = study.space
    model = None if space is None else _model(study, space, parts)
    chosen = find_leaders(study, model, out=out, parts=parts)
    if not parts.ties_after_pairs or model is None or space is None or not chosen:
        return chosen
    if space.effect(chosen[0]) is Effect.TRAINING:
        return chosen
    twin = _without_idle(study, space, model, chosen[0], out, _IDLE)
    return chosen if twin is None or twin in chosen else (*chosen, twin)


def find_leaders(
    study: Study,
    model: ThroughputModel | None = None,
    *,
    out: frozenset[Config] = frozenset(),
    parts: FeatureFlags = DEFAULT,
) -> tuple[Config, ...]:
    """Return the fastest config of each kind by the model, best first.

    The first is not simplified: pairs distinguish it from a simpler one. The others lose the changes that
    together gain less than half a percent by the model.

    Args:
        study: Current study.
        model: Throughput model; fitted if it is None.
        out: Configs ruled out by confirmation; the next best replace them.
        parts: Enabled features of the planner.
    """
    space = study.space
    if model is None and space is not None:
        model = _model(study, space, parts)
    simpler = "none" if parts.ties_after_pairs else "instead"
    if model is None or space is None:
        return finalists(study, out=out, simpler=simpler)
    rates = {c: model.base * math.exp(model.predict(c)[0]) for c in model.seen}
    rates = _smaller_first(study, space, rates, model.base, out)
    idle = _NOTHING if parts.ties_after_pairs else _IDLE
    chosen: list[Config] = []
    for config in finalists(study, out=out, rates={**rates, _BASE: model.base}, simpler=simpler):
        is_distinct = parts.ties_after_pairs and not chosen and space.effect(config) is not Effect.TRAINING
        part = None if is_distinct else _without_idle(study, space, model, config, out, idle)
        wanted = part or config
        if wanted not in chosen:
            chosen.append(wanted)
    return tuple(chosen)


def readings(
    study: Study, parts: FeatureFlags = DEFAULT, *, out: frozenset[Config] = frozenset()
) -> dict[Config, float]:
    """Return the predicted ln ratio to the baseline of every measured config that `best` may recommend.

    Args:
        study: Current study.
        parts: Enabled features of the planner.
        out: Configs ruled out by confirmation.
    """
    space = study.space
    model = None if space is None else _model(study, space, parts)
    if model is None or space is None:
        return {}
    lost = out | broken(study).keys()
    return {
        c: model.predict(c)[0]
        for c in model.seen
        if c and c not in lost and space.effect(c) is not Effect.TRAINING and may_win(study, c)
    }


def _smaller_first(
    study: Study, space: SearchSpace, rates: dict[Config, float], base: float, out: frozenset[Config]
) -> dict[Config, float]:
    """Return the same rates, led by a config of nearly the highest rate that needs far less memory.

    Screening runs do not resolve one percent of speed, but they resolve a quarter of the memory.
    """
    lost = out | broken(study).keys()
    faster = [c for c, rate in rates.items() if c and rate > base and c not in lost]
    training_preserving = [c for c in faster if space.effect(c) is not Effect.TRAINING and may_win(study, c)]
    if study.spec.objective == ENERGY or not training_preserving:
        return rates
    top = max(training_preserving, key=lambda c: (rates[c], c.canonical()))
    peaks = {
        c: _screened_peak(study, c) for c in training_preserving if rates[c] >= (1.0 - _HARDLY) * rates[top]
    }
    smaller = {c: peak for c, peak in peaks.items() if 0 < peak <= _FAR_LESS * peaks[top]}
    if not smaller:
        return rates
    least = min(smaller, key=lambda c: (smaller[c], -rates[c], c.canonical()))
    return {**rates, least: rates[top] * (1.0 + _AHEAD)}


def _screened_peak(study: Study, config: Config) -> int:
    """Return the peak memory of its screening runs in bytes; 0 if unknown. Confirmation changes no order."""
    runs = [t.measurement for t in study.of(config, Stage.INITIAL, Stage.REFINE) if t.measurement is not None]
    return max((m.memory.peak_bytes or 0 for m in runs), default=0)


def _model(study: Study, space: SearchSpace, parts: FeatureFlags) -> ThroughputModel | None:
    return ThroughputModel.of(study, space, expects=parts.expects)


def trimmed(space: SearchSpace, model: ThroughputModel, config: Config, *, idle: float = _IDLE) -> Config:
    """Return the config without changes that together gain less than `idle` by the model; may be new."""
    whole = model.predict(config)[0]
    while len(config) > 1:
        wanted = space.resolved_free(config)
        parts = [space.complete({k: v for k, v in wanted.items() if k != knob}) for knob in wanted]
        smaller = [c for c in parts if isinstance(c, Config) and c and len(c) < len(config)]
        if not smaller:
            break
        best = max(smaller, key=lambda c: (model.predict(c)[0], c.canonical()))
        if whole - model.predict(best)[0] >= idle:
            break
        config = best
    return config


def _without_idle(
    study: Study,
    space: SearchSpace,
    model: ThroughputModel,
    config: Config,
    out: frozenset[Config],
    idle: float,
) -> Config | None:
    """Return the config without changes below `idle`; None if the result cannot replace it."""
    part = trimmed(space, model, config, idle=idle)
    lost = part in out or any(t.failure and t.failure.kind.teaches for t in study.of(part))
    keeps = space.effect(part) is space.effect(config)
    return None if lost or not keeps else part
