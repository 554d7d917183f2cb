"""What each knob of a winner buys: the winner against itself without the knob, in cycles of fresh runs. Pure.

One knob at a time is sound around a winner, where it is unsound as a search: what the others bring is
there. Two knobs that each look free may still need one another, so what is left after taking all of them
out is confirmed anew before it is recommended.
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
"""Cycles below which nothing is concluded from an ablation."""

WORTH: Final = 1.02
"""A knob that brings less, and is not shown to bring anything, is taken out; the tie rule of the picks."""

_LEAST_SPREAD: Final = 0.005


def variants(study: Study, config: Config) -> dict[str, Config]:
    """Knob -> the config without it; knobs that a rule sets, and those that cannot be taken out, are absent.

    Args:
        study: Its space completes what is left.
        config: The winner.
    """
    space = study.space
    if space is None:
        return {}
    wanted = space.resolved_free(config)
    found: dict[str, Config] = {}
    for knob in wanted:
        if knob in space.fixed:
            continue
        other = space.complete({k: v for k, v in wanted.items() if k != knob})
        if isinstance(other, Config) and other != config and other not in found.values():
            found[knob] = other
    return found


def ablated(study: Study) -> Config | None:
    """The winner whose knobs were, or are being, taken out one by one; None before that."""
    seen = [t.config for t in study.trials if t.stage is Stage.ABLATE]
    # Every variant has at least one change less.
    return max(seen, key=lambda c: (len(c), c.canonical()), default=None)


def knob_gains(study: Study) -> dict[str, Estimate]:
    """Knob -> how much faster the ablated winner is with it than without, largest first."""
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
    """The ablated winner without the knobs that buy nothing; None while open, or where all buy something.

    A variant that failed keeps its knob: without it the config does not run.
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
    """Knobs that were not shown to bring anything, and that would bring less than what counts."""
    return tuple(k for k, g in found.items() if g.n >= FEWEST_CYCLES and g.low <= 1.0 and g.value < WORTH)


def late_members(study: Study) -> frozenset[Config]:
    """Configs that were confirmed only after an ablation had found them: parts of the winner taken apart.

    What comes in then for a finalist that was ruled out is one more chance, and none of them; so is a part
    of a winner that failed since, which is no winner any more.
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
    """It has some of the other's changes and no others; those that follow from others are left aside."""
    return _sampled(study, config) < _sampled(study, whole)


def _sampled(study: Study, config: Config) -> set[tuple[str, Value]]:
    """Its changes without those that follow from others, which differ between a winner and a part of it."""
    dimensions = () if study.space is None else study.space.dimensions.values()
    follows = {d.knob for d in dimensions if d.derived}
    return {(knob, value) for knob, value in config.items() if knob not in follows}
