"""What a search says of itself before anything has run is what it then does."""

from __future__ import annotations

import pytest
from search_world import spec

from autotune.model.study import Budget, Study
from autotune.model.trial import Stage
from autotune.search.plan import course
from autotune.search.stages import Staged


@pytest.mark.parametrize("seconds", [60.0, 600.0, 7200.0])
def test_the_first_run_is_the_one_that_is_proposed_first(seconds: float) -> None:
    requested = spec(budget=Budget(seconds=seconds))
    proposal = Staged().ask(Study(spec=requested), seconds)
    assert proposal is not None
    assert proposal.stage is course(requested).stages[0]
    assert proposal.config.is_baseline
    assert proposal.fidelity.deadline_s == course(requested).first_run_s


def test_more_rounds_are_kept_as_far_as_they_fit_into_their_share() -> None:
    known = course(spec(budget=Budget(seconds=600.0)))
    assert (known.cycles, known.more_cycles, known.more_cycles_s) == (2, 5, pytest.approx(240.0))
    assert known.screened is None


def test_a_limit_on_trials_bounds_what_comes_before_confirming() -> None:
    assert course(spec(budget=Budget(seconds=600.0, trials=20))).screened == 14
    short = course(spec(budget=Budget(seconds=600.0, trials=1)))
    assert (short.baselines, short.screened) == (1, 1)


def test_a_pure_sampler_has_no_start_points() -> None:
    assert Stage.INITIAL in course(spec()).stages
    assert course(spec(sampler="tpe")).stages == (
        Stage.BASELINE,
        Stage.REFINE,
        Stage.CONFIRM,
        Stage.ABLATE,
    )
