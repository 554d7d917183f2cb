"""Configs that deserve confirmation, from screening and failures. Pure."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

from autotune.compare.amortised_rate import amortised, objective_values, screened
from autotune.compare.bounds import fits, largest_peak_bytes
from autotune.compare.failed_configs import broken
from autotune.compare.loss_verdicts import loss_traces, trace_steps
from autotune.loss.delayed_harm_rules import barred
from autotune.loss.loss_guard import finite_and_sane
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage
from autotune.statistics.intervals import sd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.model.study import Study

_BASE = Config()
_SCREEN_NOISE = (0.02, 0.05)
_FASTEST_AHEAD = 1.05


def finalists(
    study: Study,
    *,
    out: frozenset[Config] = frozenset(),
    rates: Mapping[Config, float] | None = None,
    simpler: Literal["beside", "instead", "none"] = "beside",
) -> tuple[Config, ...]:
    """Return configs that deserve confirmation by their screening runs, best first.

    These are the fastest config that leaves the training unchanged, and the fastest EXACT one, if different.
    A config that changes the training follows if it is clearly faster still. Last is one with a part of the
    first one's changes and equal speed within the noise. Pairs decide which of these two is recommended, as
    single runs differ by several per cent anyway. None of them is slower than the baseline in screening.
    Order and choice depend on screening runs and failures only, so they do not change during confirmation.

    Args:
        study: As of now.
        out: Configs that confirmation has ruled out; the next best take their places.
        rates: Rates for the ranking in place of the raw screening means. The largest of many noisy figures is
            biased, so a search passes the estimates of its model.
        simpler: Use of the simpler config of equal speed: confirmed beside the first, in its place before any
            pair was run, or left to the caller.
    """
    ranked = objective_values(study) if rates is None else rates
    base = ranked.get(Config())
    if base is None or study.space is None:
        return ()
    space = study.space
    lost = out | broken(study).keys() | _not_faster(study)
    fast = {
        config: rate
        for config, rate in ranked.items()
        if rate > base and config not in lost and not config.is_baseline and may_win(study, config)
    }
    noise = _screen_noise(study)
    pick = partial(_simplest, noise=noise if simpler == "instead" else 0.0)
    training_preserving = {c: r for c, r in fast.items() if space.effect(c) is not Effect.TRAINING}
    exact = {c: r for c, r in training_preserving.items() if space.effect(c) is Effect.EXACT}
    chosen: list[Config] = []
    for pool in (training_preserving, exact):
        config = pick(pool)
        if config is not None and config not in chosen:
            chosen.append(config)
    wild = {c: r for c, r in fast.items() if c not in training_preserving}
    boldest = pick(wild)
    top = fast[chosen[0]] if chosen else base
    if boldest is not None and wild[boldest] > _FASTEST_AHEAD * top:
        chosen.append(boldest)
    twin = _simplest(training_preserving, noise) if simpler == "beside" else None
    if twin is not None and twin not in chosen:
        chosen.append(twin)
    return tuple(chosen)


def _not_faster(study: Study) -> set[Config]:
    """Return configs that are no pick for least energy, since they were not faster than the script."""
    if study.spec.objective != ENERGY:
        return set()
    rates = screened(study)
    return {config for config, rate in rates.items() if rate <= rates.get(_BASE, 0.0)}


def may_win(study: Study, config: Config) -> bool:
    """Return whether no result so far excludes a recommendation of this config."""
    if not fits_and_is_sane(study, config):
        return False
    if barred(study, config, trace_steps(study)) is not None:
        return False
    # Without a loss no confirmation, however long, can show that anything but an EXACT config learns as well.
    is_exact = study.space is not None and study.space.effect(config) is Effect.EXACT
    return is_exact or bool(loss_traces(study, _BASE))


def fits_and_is_sane(study: Study, config: Config) -> bool:
    """Within the bounds on memory, and no loss of its screening runs fails the guard at level 0."""
    if not fits(study, largest_peak_bytes(study, config)):
        return False
    return all(
        finite_and_sane(t.measurement.loss).verdict != "fail"
        for t in study.of(config, Stage.INITIAL, Stage.REFINE)
        if t.measurement
    )


def fastest_fitting(study: Study) -> Config | None:
    """Return the fastest config in screening within the memory limit, without the script itself."""
    rates = {c: r for c, r in screened(study).items() if not c.is_baseline and fits_and_is_sane(study, c)}
    return max(rates, key=lambda c: (rates[c], c.canonical()), default=None)


def _screen_noise(study: Study) -> float:
    rates = [amortised(study, t.measurement) for t in study.baseline if t.measurement]
    low, high = _SCREEN_NOISE
    if len(rates) < 2 or min(rates) <= 0:
        return low
    return min(high, max(low, sd([math.log(r) for r in rates])))


def _simplest(rates: Mapping[Config, float], noise: float) -> Config | None:
    """Return the fastest, or a part of its changes that is as fast within the noise."""
    if not rates:
        return None
    top = max(rates, key=lambda c: (rates[c], -len(c), c.canonical()))
    parts = [
        c for c, r in rates.items() if set(c.items()) <= set(top.items()) and r >= (1.0 - noise) * rates[top]
    ]
    return min(parts, key=lambda c: (len(c), -rates[c], c.canonical()))
