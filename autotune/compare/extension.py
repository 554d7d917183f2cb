"""Number of further confirmation rounds. Pure."""

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
"""Largest number of rounds if the usual ones cannot decide and time is left."""

_PAIR = 2
_FEWEST_MORE = LATE_LOOK_PAIRS[-1] - USUAL_RUNS
"""Cycles beyond the usual ones that there must be room for: as many as the next look is away."""


def cycles_left(study: Study) -> int:
    """Return the usual cycles that are left, or as many as the budget has room for where those are more.

    Computed from the end of the last run and the duration of a run. The current round is ignored, so that the
    result does not change during it.
    """
    runs = study.finished(Stage.CONFIRM)
    if not runs:
        return USUAL_RUNS
    done = max(t.group for t in runs)
    return max(USUAL_RUNS - done, min(_fits(study, runs, len(study.trials)), MOST_CYCLES - done), 0)


def goes_on(study: Study) -> bool:
    """Return whether, after the usual rounds, there was room for enough more for another analysis.

    It depends on time and the number of trials only, never on measurements: the levels of analyses depend on
    it. It does not change later, unless the budget itself is changed. Always False for a search for the least
    energy, and for a verification of one config.
    """
    if study.spec.objective == ENERGY or study.spec.purpose:
        return False
    usual = [t for t in study.finished(Stage.CONFIRM) if t.group <= USUAL_RUNS]
    if sum(t.group == USUAL_RUNS for t in usual) < _PAIR:
        return False
    proposed = sum(1 for t in study.trials if t.number <= max(u.number for u in usual))
    return _fits(study, usual, proposed) >= _FEWEST_MORE


def _fits(study: Study, runs: Sequence[Trial], proposed: int) -> int:
    """Return the rounds of two runs that fit into the budget after these, given the trials so far."""
    left_s = study.spec.budget.seconds - max(t.finished_s for t in runs)
    cycle_s = 2.0 * max(0.1, fmean(t.seconds for t in runs))
    fits = int(max(0.0, min(left_s / cycle_s, MOST_CYCLES)))
    if study.spec.budget.trials is not None:
        fits = min(fits, max(0, study.spec.budget.trials - proposed) // 2)
    return fits
