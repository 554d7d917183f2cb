"""Order of the stages of a search, and the budget reserved before the first run; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.compare.alpha_spending import FEWEST_PAIRS
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Stage
from autotune.search.costs import PLANNED_CYCLES, PLANNED_SHARE, Costs
from autotune.search.samplers.registry import PLANNER
from autotune.search.trial_limit import BASELINES, left_for_screening

if TYPE_CHECKING:
    from autotune.model.study import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """Stages of a search, and bounds that hold for any duration of a run.

    Args:
        stages: Stages in order.
        baselines: Runs of the unchanged script at the start.
        first_run_s: Time limit of the first of them, in seconds.
        cycles: Confirmation rounds, of the script and every finalist, that screening leaves time for.
        more_cycles: More such rounds, as far as they fit into `more_cycles_s`.
        more_cycles_s: Seconds of wall time.
        screened: Maximum trials before confirmation, baselines included; None without a limit.
    """

    stages: tuple[Stage, ...]
    baselines: int
    first_run_s: float
    cycles: int
    more_cycles: int
    more_cycles_s: float
    screened: int | None


def course(spec: StudySpec) -> SearchPlan:
    """Return the plan that follows from the request alone."""
    budget = spec.budget
    first = Costs.of(Study(spec=spec)).fidelity(
        Stage.BASELINE, Config(), remaining_s=budget.seconds, reserve_s=0.0
    )
    # A pure sampler replaces the start points as well.
    exploring = (Stage.INITIAL, Stage.REFINE) if spec.sampler == PLANNER else (Stage.REFINE,)
    limit = budget.trials
    return SearchPlan(
        stages=(Stage.BASELINE, *exploring, Stage.CONFIRM, Stage.ABLATE),
        baselines=BASELINES if limit is None else min(BASELINES, limit),
        first_run_s=first.deadline_s,
        cycles=FEWEST_PAIRS,
        more_cycles=PLANNED_CYCLES,
        more_cycles_s=PLANNED_SHARE * budget.seconds,
        screened=None if limit is None else min(limit, left_for_screening(limit, 1)),
    )
