"""A winner is taken apart where that fits, and what is left is confirmed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import World, dimension, measurement, simulate, spec, tell, usual_space
from session_fakes import FIDELITY

from autotune.answer.pick import answer
from autotune.compare.ablation import ablated, variants
from autotune.model.config import Config
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Outcome, Proposal, Stage
from autotune.search.confirmation.ablation_runs import next_ablation, under_way
from autotune.search.costs import Costs
from autotune.search.stages import Staged

SPACE = usual_space(training=False)
SPEED = {
    ("precision", "bf16"): 1.6,
    ("threads", 4): 1.15,
    ("channels_last", True): 1.004,
    ("fused_optimizer", True): 1.003,
    ("threads", 1): 0.8,
    ("batch_size", 8): 0.7,
    ("batch_size", 16): 0.9,
}


def taken_apart(*runs: tuple[Config, Outcome]) -> Study:
    """A study whose ablation has come so far in its first cycle."""
    study = Study(spec=spec(seconds=900.0), space=SPACE)
    line = [(Config(), measurement(100.0), Stage.BASELINE, 0)] * 2
    line += [(config, outcome, Stage.ABLATE, 1) for config, outcome in runs]
    for config, outcome, stage, group in line:
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", group=group)
        study = tell(study, proposal, outcome, 7.0)
    return study


WINNER = Config({"precision": "bf16", "threads": 4})
GIVEN_UP = Failure(kind=FailureKind.KILLED_USER, message="the search ended while it ran")
BROKEN = Failure(kind=FailureKind.CRASH_EXIT, message="crash")


def through(study: Study) -> list[tuple[int, Config]]:
    """Group and config of all that the ablation still asks for."""
    found: list[tuple[int, Config]] = []
    while (proposal := next_ablation(study, Costs.of(study), 900.0)) is not None:
        found.append((proposal.group, proposal.config))
        study = tell(study, proposal, measurement(100.0), 7.0)
    assert not under_way(study, Costs.of(study))
    return found


def test_a_run_that_was_given_up_with_its_driver_is_proposed_again_in_the_next_cycle() -> None:
    variant = Config({"threads": 4})
    for config, other in ((WINNER, variant), (variant, WINNER)):
        study = taken_apart((other, measurement(100.0)), (config, GIVEN_UP))
        assert under_way(study, Costs.of(study))
        assert (2, config) in through(study)
        assert (1, config) not in through(study)
        broken = taken_apart((other, measurement(100.0)), (config, BROKEN))
        assert (2, config) not in through(broken)


def test_a_winner_that_failed_in_a_pair_is_taken_apart_no_further() -> None:
    study = taken_apart((WINNER, measurement(100.0)))
    proposal = Proposal(stage=Stage.CONFIRM, config=WINNER, fidelity=FIDELITY, reason="x", group=4)
    study = tell(study, proposal, BROKEN, 7.0)
    assert not under_way(study, Costs.of(study))
    assert through(study) == []


def test_what_an_ablation_left_and_does_not_run_is_requested_once() -> None:
    space = SearchSpace(dimensions={name: dimension(name, (0, 1), 0) for name in "abc"})
    whole, left = Config({"a": 1, "b": 1, "c": 1}), Config({"a": 1, "b": 1})
    rates = {Config(): 100.0, whole: 200.0, left: 200.0, whole.without("a"): 150.0, whole.without("b"): 150.0}
    line = [Config(), whole], [whole, *(whole.without(knob) for knob in "abc")]
    runs = [(Stage.BASELINE, Config(), 0)] * 2 + [(Stage.REFINE, whole, 0)]
    for stage, members in zip((Stage.CONFIRM, Stage.ABLATE), line, strict=True):
        runs += [(stage, config, group) for group in (1, 2, 3) for config in members]
    study, strategy = Study(spec=spec(seconds=900.0), space=space), Staged()
    for number, (stage, config, group) in enumerate(runs):
        requested = Proposal(
            stage=stage, config=config, fidelity=FIDELITY, reason="x", group=group, seed=number
        )
        wavers = 1.0 + 0.02 * (number % 3)
        study = tell(study, requested, measurement(wavers * rates[config]), 7.0)
    while (proposal := strategy.ask(study, 300.0)) is not None and len(study.trials) < 60:
        wavers = 1.0 + 0.02 * (len(study.trials) % 3)
        outcome = BROKEN if proposal.config == left else measurement(wavers * rates[proposal.config])
        study = tell(study, proposal, outcome, 7.0)
    assert [t.failure for t in study.of(left, Stage.CONFIRM)] == [BROKEN]
    assert answer(study).best.config == whole


def test_nothing_more_is_run_in_a_cycle_that_was_cut() -> None:
    study = taken_apart((WINNER, measurement(100.0)))
    assert through(study)[0][0] == 1
    study = replace(study, cut=frozenset({(Stage.ABLATE, 1)}))
    assert under_way(study, Costs.of(study))
    assert through(study)[0][0] == 2
    last = Costs.of(study).ablation_cycles
    study = replace(
        study,
        trials=tuple(replace(t, group=last if t.group else 0) for t in study.trials),
        cut=frozenset({(Stage.ABLATE, last)}),
    )
    assert through(study) == []


@pytest.mark.slow  # a whole long search
def test_a_long_search_takes_its_winner_apart_and_keeps_what_pays() -> None:
    world = World(space=SPACE, speed=SPEED, input_s=0.0, noise=0.01)
    study = simulate(Staged(), world, spec(seconds=2400.0))
    winner = ablated(study)
    assert winner is not None
    runs = [t for t in study.trials if t.stage is Stage.ABLATE]
    line = {winner, *variants(study, winner).values()} - {Config()}
    for group in {t.group for t in runs}:
        assert {t.config for t in runs if t.group == group} == line
    assert len({t.config for t in runs if t.group == 1 and t.number == runs[0].number}) == 1
    begins = {min((t for t in runs if t.group == g), key=lambda t: t.number).config for g in (1, 2, 3)}
    assert len(begins) > 1
    best = answer(study).best.config
    assert {"precision", "threads"} <= set(best)
    assert world.rate(best) > 0.97 * world.oracle()


def test_a_short_search_takes_nothing_apart() -> None:
    world = World(space=SPACE, speed=SPEED, noise=0.01)
    study = simulate(Staged(), world, spec(seconds=180.0))
    assert ablated(study) is None
    assert answer(study).is_better


@pytest.mark.thorough
def test_a_limit_of_trials_is_kept() -> None:
    world = World(space=SPACE, speed=SPEED, noise=0.01)
    for limit in (1, 3, 9, 12, 40):
        study = simulate(Staged(), world, spec(seconds=7200.0, trials=limit))
        assert len(study.trials) <= limit
        assert answer(study).is_better is (limit >= 9)
