"""How many cycles of confirmation there may still be. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from autotune.core.inferiority import USUAL_RUNS
from autotune.core.trial import Stage

if TYPE_CHECKING:
    from autotune.core.study import Study

MOST_CYCLES: Final = 32
"""Of confirmation, where losses scatter so much that the usual ones cannot tell, and there is time."""


def cycles_left(study: Study) -> int:
    """The usual cycles that are left, or as many as the budget has room for where those are more.

    By when the last run ended and by how long a run takes. Of the study without the cycle under way it stays
    as it is throughout that cycle.
    """
    runs = study.told(Stage.CONFIRM)
    if not runs:
        return USUAL_RUNS
    done = max(t.group for t in runs)
    left_s = study.spec.budget.seconds - max(t.finished_s for t in runs)
    cycle_s = 2.0 * max(0.1, fmean(t.seconds for t in runs))
    fits = int(max(0.0, min(left_s / cycle_s, MOST_CYCLES)))
    if study.spec.budget.trials is not None:
        fits = min(fits, max(0, study.spec.budget.trials - len(study.trials)) // 2)
    return max(USUAL_RUNS - done, min(fits, MOST_CYCLES - done), 0)
