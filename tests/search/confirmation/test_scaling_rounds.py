"""Rounds of fresh runs over the numbers of processes: their order, their end, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from search_world import World, measurement, spec, tell, usual_space

from autotune.compare.scaling import config_of, processes_of
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Stage
from autotune.search.confirmation.scaling_rounds import ScalingRounds

if TYPE_CHECKING:
    from autotune.model.trial import Outcome

COUNTS = (1, 2, 4)


def run(
    *, rounds: int = 2, budget_s: float = 1000.0, ends: dict[int, Outcome] | None = None, run_s: float = 10.0
) -> list[tuple[int, int]]:
    """Ask until nothing is left; return round and number of processes of each run."""
    strategy = ScalingRounds(COUNTS, rounds=rounds)
    world = World(space=usual_space(), speed={})
    study, left_s, ran = Study(spec=spec(), facts=world.facts(), space=world.space), budget_s, []
    while (proposal := strategy.ask(study, left_s)) is not None:
        count = processes_of(proposal.config, COUNTS[0])
        assert (proposal.stage is Stage.BASELINE) == (not study.trials)
        ran.append((proposal.group, count))
        study = tell(study, proposal, (ends or {}).get(count, measurement(100.0)), run_s)
        left_s -= run_s
        assert len(ran) < 50
    assert strategy.is_finished(study, left_s)
    return ran


def test_rounds_follow_a_first_run_and_turn_their_order() -> None:
    assert run() == [(0, 1), (1, 1), (1, 2), (1, 4), (2, 4), (2, 2), (2, 1)]


def test_a_round_that_cannot_be_ended_is_not_begun() -> None:
    ran = run(rounds=50, budget_s=300.0)
    assert 3 <= len(ran) < 30
    assert len(ran) % 3 == 1


@pytest.mark.parametrize(("kind", "again"), [(FailureKind.CRASH_EXIT, False), (FailureKind.INFRA_LOST, True)])
def test_a_number_that_fails_by_its_own_fault_is_left_out(kind: FailureKind, again: bool) -> None:
    ran = run(ends={4: Failure(kind=kind, message="no")})
    assert ((2, 4) in ran) == again
    assert (2, 2) in ran


def test_nothing_follows_a_first_run_that_failed() -> None:
    assert run(ends={1: Failure(kind=FailureKind.CRASH_EXIT, message="no")}) == [(0, 1)]


def test_the_fewest_processes_are_the_config_without_a_change() -> None:
    assert config_of(2, 2).is_baseline
    assert processes_of(config_of(4, 2), 2) == 4
