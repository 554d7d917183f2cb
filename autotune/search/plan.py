"""What a search does in which order, and what of its budget is spoken for before anything has run; pure."""

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
    """The order of a search, and bounds that hold whatever a run turns out to take.

    Args:
        stages: In their order.
        baselines: Runs of the unchanged script that begin it.
        first_run_s: The first of them is ended after so long.
        cycles: Of confirmation, in each the script and every finalist once, that screening leaves time for.
        more_cycles: As many, as far as they fit into `more_cycles_s`.
        more_cycles_s: Seconds of wall time.
        screened: Trials that may come before confirmation, baselines included; None where their number has no
            limit.
    """

    stages: tuple[Stage, ...]
    baselines: int
    first_run_s: float
    cycles: int
    more_cycles: int
    more_cycles_s: float
    screened: int | None


def course(spec: StudySpec) -> SearchPlan:
    """What is settled about a search by what was asked alone."""
    budget = spec.budget
    first = Costs.of(Study(spec=spec)).fidelity(
        Stage.BASELINE, Config(), remaining_s=budget.seconds, reserve_s=0.0
    )
    # A pure sampler takes the place of the start points, too.
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
