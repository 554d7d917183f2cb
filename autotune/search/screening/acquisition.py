"""Acquisition: the expected gain of a run relative to its cost; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.model.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.model.config import Config
    from autotune.search.screening.state import SearchState

LEAST_GAIN = 0.002
"""Least expected gain, in ln rate, for which a run is worth its time."""

_COST_POWER = 0.7
_LEAST_COST_POWER = 0.5
_LAST_STRETCH = 0.8
_COOLED_AFTER = 12


def score(search: SearchState, pool: Iterable[Config], incumbent: float) -> list[tuple[float, float, Config]]:
    """Return permitted candidates in the order of the pool: (gain per cost, gain, config).

    Args:
        search: Current state.
        pool: Configs of the space.
        incumbent: Reference of a gain, in ln rate over the baseline.
    """
    power = cost_power(search)
    scored: list[tuple[float, float, Config]] = []
    for config in pool:
        if not search.may_try(config):
            continue
        gain = search.model.expected_improvement(config, incumbent) * search.feasible.works(config)
        scored.append((gain / max(0.1, search.costs.screening(config)) ** power, gain, config))
    return scored


def cost_power(search: SearchState) -> float:
    """Return the power of a run's seconds by which its gain is divided.

    It decreases over the search to 0 at the end, where nothing follows.
    """
    finished = search.study.finished(Stage.INITIAL, Stage.REFINE)
    if not search.parts.lasting_cost:
        done = sum(1 for t in search.study.trials if t.stage in (Stage.INITIAL, Stage.REFINE))
        return _COST_POWER * max(0.0, 1.0 - done / _COOLED_AFTER)
    spent_s, spare_s = sum(t.seconds for t in finished), max(0.0, search.spare_s)
    share = spent_s / (spent_s + spare_s) if spent_s + spare_s > 0.0 else 1.0
    limit = search.study.spec.budget.trials
    if limit is not None:
        share = max(share, min(1.0, search.trials / search.screening_trials(limit)))
    if share < _LAST_STRETCH:
        return _COST_POWER - (_COST_POWER - _LEAST_COST_POWER) * share / _LAST_STRETCH
    return _LEAST_COST_POWER * (1.0 - share) / (1.0 - _LAST_STRETCH)
