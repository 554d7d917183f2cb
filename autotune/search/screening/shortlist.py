"""The shortlist: configs that screening passes to confirmation. Pure.

They are ranked by the predictions of the throughput model, because the maximum of many noisy measurements is
biased upwards.
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
_SMALL_LN_GAIN = 0.02
"""Gain that pairs can hardly prove (`autotune.answer.ceilings.PROVABLE`)."""
_NEGLIGIBLE_LN_GAIN = 0.005
_EQUAL_RATE_FRAC = 0.01
"""Screening runs cannot distinguish rates within one percent."""
_LESS_MEMORY = 0.75
"""Ratio of peaks that one run of each shows."""
_TIE_BREAK = 1e-9


def shortlist(
    study: Study, parts: FeatureFlags = DEFAULT, *, out: frozenset[Config] = frozenset()
) -> tuple[Config, ...]:
    """Return the configs to confirm if screening ended now, best first.

    With `ties_after_pairs`, and a first config that preserves the training, the last one is a simpler config
    with a predicted speed within two percent of the first.

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
    twin = _simplified(study, space, model, chosen[0], out, _SMALL_LN_GAIN)
    return chosen if twin is None or twin in chosen else (*chosen, twin)


def find_leaders(
    study: Study,
    model: ThroughputModel | None = None,
    *,
    out: frozenset[Config] = frozenset(),
    parts: FeatureFlags = DEFAULT,
) -> tuple[Config, ...]:
    """Return the fastest configs by predicted rate, best first: one of each kind that `finalists` names.

    Changes that together gain less than two percent by the model are left out. With `ties_after_pairs` the
    bound is half a percent, and a first config that preserves the training is kept whole, as pairs compare it
    with a simpler one.

    Args:
        study: Current study.
        model: Throughput model; None fits one.
        out: Configs ruled out by confirmation; the next best replace them.
        parts: Enabled features of the planner.
    """
    space = study.space
    if model is None and space is not None:
        model = _model(study, space, parts)
    simpler, max_loss = "instead", _SMALL_LN_GAIN
    if parts.ties_after_pairs:
        simpler, max_loss = "none", _NEGLIGIBLE_LN_GAIN
    if model is None or space is None:
        return finalists(study, out=out, simpler=simpler)
    rates = {c: model.base * math.exp(model.predict(c)[0]) for c in model.seen}
    rates = _with_less_memory_first(study, space, rates, model.base, out)
    chosen: list[Config] = []
    for config in finalists(study, out=out, rates={**rates, _BASE: model.base}, simpler=simpler):
        keep_whole = parts.ties_after_pairs and not chosen and space.effect(config) is not Effect.TRAINING
        simplified = None if keep_whole else _simplified(study, space, model, config, out, max_loss)
        candidate = simplified or config
        if candidate not in chosen:
            chosen.append(candidate)
    return tuple(chosen)


def predicted_log_ratios(
    study: Study, parts: FeatureFlags = DEFAULT, *, out: frozenset[Config] = frozenset()
) -> dict[Config, float]:
    """Return the predicted ln ratio to the baseline of each measured config that may be the pick `best`.

    Args:
        study: Current study.
        parts: Enabled features of the planner.
        out: Configs ruled out by confirmation.
    """
    space = study.space
    model = None if space is None else _model(study, space, parts)
    if model is None or space is None:
        return {}
    excluded = out | broken(study).keys()
    return {
        c: model.predict(c)[0]
        for c in model.seen
        if c and c not in excluded and space.effect(c) is not Effect.TRAINING and may_win(study, c)
    }


def _with_less_memory_first(
    study: Study, space: SearchSpace, rates: dict[Config, float], base: float, out: frozenset[Config]
) -> dict[Config, float]:
    """Return the rates, with one raised to just above the highest.

    It is the config with the least memory among those within one percent of the highest rate that need at
    most three quarters of its memory. Unchanged without one, and if energy is the objective.
    """
    excluded = out | broken(study).keys()
    faster = [c for c, rate in rates.items() if c and rate > base and c not in excluded]
    training_preserving = [c for c in faster if space.effect(c) is not Effect.TRAINING and may_win(study, c)]
    if study.spec.objective == ENERGY or not training_preserving:
        return rates
    top = max(training_preserving, key=lambda c: (rates[c], c.canonical()))
    equal = [c for c in training_preserving if rates[c] >= (1.0 - _EQUAL_RATE_FRAC) * rates[top]]
    peaks = {c: _screened_peak(study, c) for c in equal}
    # No peak is below that of a first config whose own is unknown.
    smaller = {c: peak for c, peak in peaks.items() if 0 < peak <= _LESS_MEMORY * peaks[top]}
    if not smaller:
        return rates
    smallest = min(smaller, key=lambda c: (smaller[c], -rates[c], c.canonical()))
    return {**rates, smallest: rates[top] * (1.0 + _TIE_BREAK)}


def _screened_peak(study: Study, config: Config) -> int:
    """Return the largest peak memory in bytes of a config's screening runs; 0 if unknown.

    Runs of the confirmation are ignored, so that the order does not change meanwhile.
    """
    runs = [t.measurement for t in study.of(config, Stage.INITIAL, Stage.REFINE) if t.measurement is not None]
    return max((m.memory.peak_bytes or 0 for m in runs), default=0)


def _model(study: Study, space: SearchSpace, parts: FeatureFlags) -> ThroughputModel | None:
    return ThroughputModel.of(study, space, expects=parts.expects)


def trimmed(
    space: SearchSpace, model: ThroughputModel, config: Config, *, max_loss: float = _SMALL_LN_GAIN
) -> Config:
    """Return the config without changes that together gain little; it may never have been measured.

    Args:
        space: The search space.
        model: Predicts throughput.
        config: Config to simplify, one change at a time.
        max_loss: Bound of the predicted loss, in ln of the rate.
    """
    full = model.predict(config)[0]
    while len(config) > 1:
        values = space.resolved_free(config)
        reduced = [space.complete({k: v for k, v in values.items() if k != knob}) for knob in values]
        smaller = [c for c in reduced if isinstance(c, Config) and c and len(c) < len(config)]
        if not smaller:
            break
        best = max(smaller, key=lambda c: (model.predict(c)[0], c.canonical()))
        if full - model.predict(best)[0] >= max_loss:
            break
        config = best
    return config


def _simplified(
    study: Study,
    space: SearchSpace,
    model: ThroughputModel,
    config: Config,
    out: frozenset[Config],
    max_loss: float,
) -> Config | None:
    """Return the trimmed config; None if it is ruled out, has failed, or affects the training differently."""
    candidate = trimmed(space, model, config, max_loss=max_loss)
    is_excluded = candidate in out or any(t.failure and t.failure.kind.teaches for t in study.of(candidate))
    has_same_effect = space.effect(candidate) is space.effect(config)
    return candidate if has_same_effect and not is_excluded else None
