"""How many cycles of confirmation there may still be. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from autotune.compare.alpha_spending import LATE_LOOK_PAIRS
from autotune.loss.non_inferiority import USUAL_RUNS
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial

MOST_CYCLES: Final = 32
"""Of confirmation, where the usual ones cannot tell a gain or a loss that scatters, and there is time."""

_PAIR = 2
_FEWEST_MORE = LATE_LOOK_PAIRS[-1] - USUAL_RUNS
"""Cycles beyond the usual ones that there must be room for: as many as the next look is away."""


def cycles_left(study: Study) -> int:
    """Return the usual cycles that are left, or as many as the budget has room for where those are more.

    By when the last run ended and by how long a run takes. Of the study without the cycle under way it stays
    as it is throughout that cycle.
    """
    runs = study.told(Stage.CONFIRM)
    if not runs:
        return USUAL_RUNS
    done = max(t.group for t in runs)
    return max(USUAL_RUNS - done, min(_fits(study, runs, len(study.trials)), MOST_CYCLES - done), 0)


def goes_on(study: Study) -> bool:
    """When the usual cycles were over there was room for so many more that another look makes sense.

    By time and by the number of trials alone, never by what was measured: by it the levels of looks are
    chosen, and it stays as it is from then on, unless the budget itself is changed. Never for a search for
    the least energy, nor where one config is measured against the script again: these end as ever.
    """
    if study.spec.objective == ENERGY or study.spec.purpose:
        return False
    usual = [t for t in study.told(Stage.CONFIRM) if t.group <= USUAL_RUNS]
    if sum(t.group == USUAL_RUNS for t in usual) < _PAIR:
        return False
    asked = sum(1 for t in study.trials if t.number <= max(u.number for u in usual))
    return _fits(study, usual, asked) >= _FEWEST_MORE


def _fits(study: Study, runs: Sequence[Trial], asked: int) -> int:
    """Cycles of two runs that the budget has room for after these, when so many trials were asked for."""
    left_s = study.spec.budget.seconds - max(t.finished_s for t in runs)
    cycle_s = 2.0 * max(0.1, fmean(t.seconds for t in runs))
    fits = int(max(0.0, min(left_s / cycle_s, MOST_CYCLES)))
    if study.spec.budget.trials is not None:
        fits = min(fits, max(0, study.spec.budget.trials - asked) // 2)
    return fits
