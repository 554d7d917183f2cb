"""Forecast of what a budget allows, from the duration of the script's first run; pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.compare.alpha_spending import FEWEST_PAIRS
from autotune.model.config import Config
from autotune.model.knob_families import applicable
from autotune.model.run_length import planned_seconds
from autotune.search.costs import Costs

if TYPE_CHECKING:
    from autotune.model.study import Study

_PAIRS = FEWEST_PAIRS + 1
"""Pairs that a recommended budget has time for: one may be disturbed."""
_LEAST_CANDIDATES = 4
_MINUTE_S = 60.0
_SHORT_RUN_S = 600.0
"""Runs, in seconds, of which a compile of one minute is a tenth or more."""


def forecast(study: Study, remaining_s: float) -> str:
    """Return how many candidates the remaining budget allows, and whether it can confirm one.

    Args:
        study: Study with a measured baseline.
        remaining_s: Budget left for trials, in seconds.

    Returns:
        One to three sentences for people; empty before the baseline was measured.
    """
    costs, space = Costs.of(study), study.space
    if costs.plain_s <= 0 or space is None:
        return ""
    pairs_s, run_s = costs.fewest(Config()), costs.screen_s or costs.plain_s
    begun = f"One run takes about {costs.plain_s:.0f} s."
    budget = _budget_text(study.spec.budget.seconds)
    confirmed = int((remaining_s - pairs_s) / run_s)
    if confirmed >= 1:
        what = "1 candidate" if confirmed == 1 else f"{confirmed} candidates"
        return f"{begun} {budget} allows about {what} and the confirmation of one.{_short_run(study)}"
    rough = max(0, int(remaining_s / run_s))
    candidates = max(_LEAST_CANDIDATES, len(applicable(space)))
    spent_s = study.spec.budget.seconds - remaining_s
    wanted_s = spent_s + candidates * run_s + _PAIRS / FEWEST_PAIRS * pairs_s
    wanted = f"--budget {math.ceil(wanted_s / _MINUTE_S)}m allows a confirmed one."
    if rough == 0:
        return f"{begun} {budget} allows no candidate; {wanted}"
    what = "1 candidate" if rough == 1 else f"{rough} candidates"
    return f"{begun} {budget} allows about {what} and a rough answer; {wanted}{_short_run(study)}"


def _short_run(study: Study) -> str:
    """Return the length of the planned run if a compile may not pay back within it, else an empty string."""
    run_s, space = planned_seconds(study), study.space
    if run_s is None or run_s > _SHORT_RUN_S or study.spec.run_steps is not None:
        return ""
    if space is None or "compile" not in applicable(space):
        return ""
    length = f"{run_s:.0f} s" if run_s < 2 * _MINUTE_S else f"{run_s / _MINUTE_S:.0f} min"
    return f" Your run is about {length}, and compile time is charged to it; for a longer one: --run-steps N."


def _budget_text(seconds: float) -> str:
    """Format seconds as a value of an option: ``90s``, ``2m``."""
    return f"{seconds / _MINUTE_S:g}m" if seconds % _MINUTE_S == 0 else f"{seconds:.0f}s"
