"""Ablation: the winner against itself without one knob, in cycles of fresh runs. Pure.

Changing one knob at a time is sound around a winner, where the other knobs have their effect, but not as a
search. Two knobs that each look idle may need one another, so the config without all idle knobs is confirmed
again before it is recommended.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from autotune.compare.amortised_rate import amortised
from autotune.compare.failed_configs import broken
from autotune.compare.rounds import alike_cycles
from autotune.model.config import Config, Value
from autotune.model.trial import Stage
from autotune.statistics.intervals import ratio_interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.model.measurement import Estimate
    from autotune.model.study import Study

FEWEST_CYCLES: Final = 3
"""Fewest cycles for a conclusion from an ablation."""

WORTH: Final = 1.02
"""A knob with a smaller gain, and none beyond doubt, is removed; the tie rule of the picks."""

_LEAST_SPREAD: Final = 0.005
"""Lower bound of the spread of pairs, in ln ratio."""


def variants(study: Study, config: Config) -> dict[str, Config]:
    """Return knob -> the config without it; derived knobs and those that cannot be removed are absent.

    Args:
        study: Its space completes the remaining knobs.
        config: The winner.
    """
    space = study.space
    if space is None:
        return {}
    free = space.resolved_free(config)
    found: dict[str, Config] = {}
    for knob in free:
        if knob in space.fixed:
            continue
        other = space.complete({k: v for k, v in free.items() if k != knob})
        if isinstance(other, Config) and other != config and other not in found.values():
            found[knob] = other
    return found


def ablated(study: Study) -> Config | None:
    """Return the winner of the ablation, or None before an ablation started."""
    configs = [t.config for t in study.trials if t.stage is Stage.ABLATE]
    # Every variant has at least one change less.
    return max(configs, key=lambda c: (len(c), c.canonical()), default=None)


def knob_gains(study: Study) -> dict[str, Estimate]:
    """Return knob -> speedup of the ablated winner over the variant without it, largest first."""
    winner = ablated(study)
    if winner is None:
        return {}
    found: dict[str, Estimate] = {}
    runs = alike_cycles(study, Stage.ABLATE, winner)
    for knob, variant in variants(study, winner).items():
        logs: list[float] = []
        for members in runs.values():
            if winner not in members or variant not in members:
                continue
            pair = [
                amortised(study, t.measurement) for t in (members[winner], members[variant]) if t.measurement
            ]
            if len(pair) == 2 and min(pair) > 0:
                logs.append(math.log(pair[0] / pair[1]))
        if logs:
            found[knob] = ratio_interval(logs, tau=_LEAST_SPREAD)
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


def without_idle(study: Study) -> Config | None:
    """Return the ablated winner without its idle knobs; None before that is known, or without idle knobs.

    A knob whose variant failed is retained: the config does not run without it.
    """
    winner, space = ablated(study), study.space
    if winner is None or space is None:
        return None
    idle = idle_knobs(knob_gains(study))
    if not idle:
        return None
    left = {k: v for k, v in space.resolved_free(winner).items() if k not in idle}
    config = space.complete(left)
    return config if isinstance(config, Config) and config and len(config) < len(winner) else None


def idle_knobs(found: Mapping[str, Estimate]) -> tuple[str, ...]:
    """Return the knobs whose gain is neither shown nor large enough to count."""
    return tuple(k for k, g in found.items() if g.n >= FEWEST_CYCLES and g.low <= 1.0 and g.value < WORTH)


def late_members(study: Study) -> frozenset[Config]:
    """Return the parts of the ablated winner that were first confirmed after the ablation started.

    Finalists that join after that are not among them, as each is one more chance of a false gain. Without a
    winner that still runs, no part is.
    """
    whole = ablated(study)
    if whole is None or whole in broken(study):
        return frozenset()
    early: set[Config] = set()
    late: set[Config] = set()
    began = False
    for trial in study.trials:
        began = began or trial.stage is Stage.ABLATE
        if trial.stage is Stage.CONFIRM and not trial.config.is_baseline:
            (late if began else early).add(trial.config)
    return frozenset(c for c in late - early if is_part(study, c, whole))


def is_part(study: Study, config: Config, whole: Config) -> bool:
    """Return whether a config has a proper subset of the changes of another, derived ones aside."""
    return _sampled(study, config) < _sampled(study, whole)


def _sampled(study: Study, config: Config) -> set[tuple[str, Value]]:
    """Return its changes without derived ones, which differ between a winner and a part of it."""
    dimensions = () if study.space is None else study.space.dimensions.values()
    follows = {d.knob for d in dimensions if d.derived}
    return {(knob, value) for knob, value in config.items() if knob not in follows}
