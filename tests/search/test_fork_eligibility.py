"""Which trials may be forked, and what a trial costs by the way it was started."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session_fakes import FIDELITY, RUN_FACTS, facts, measurement, spec

from autotune.model.config import Config
from autotune.model.facts import DeviceFacts
from autotune.model.study import Study
from autotune.model.trial import Stage, StartMode, StartPolicy, Trial, TrialState
from autotune.search.costs import Costs
from autotune.search.fork_eligibility import refusal, start_of, wants_forks

RUN = replace(RUN_FACTS, versions={"python": "3.11", "torch": "2.13"}, environ_set=())
WORKERS = Config({"workers": 1})


def study(*, run=RUN, start=StartPolicy.FORK, **more) -> Study:
    return Study(spec=replace(spec(), start=start, **more), facts=replace(facts(), run=run))


def trial(number=2, stage=Stage.REFINE, config=WORKERS, **more) -> Trial:
    return Trial(number=number, config=config, stage=stage, fidelity=FIDELITY, **more)


def reported(number, stage, config, start, *, seconds, startup_s=0.0) -> Trial:
    outcome = replace(measurement(), startup_s=startup_s)
    return trial(
        number, stage, config, state=TrialState.FINISHED, outcome=outcome, seconds=seconds, start=start
    )


def test_what_chooses_may_be_forked_and_what_is_claimed_may_not():
    forked = {stage for stage in Stage if start_of(study(), trial(stage=stage)) is StartMode.FORK}
    assert forked == {Stage.INITIAL, Stage.REFINE}


def test_nothing_is_forked_that_was_not_requested_nor_what_is_run_again():
    assert start_of(study(start=StartPolicy.COLD), trial()) is StartMode.COLD
    assert start_of(study(start=StartPolicy.AUTO), trial()) is StartMode.FORK
    assert start_of(study(), trial(attempt=2)) is StartMode.COLD
    assert not wants_forks(study(), trial(attempt=2))


DEVICE = DeviceFacts(name="a", uuid="GPU-1", memory_bytes=2**34)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (study(run=None), "has not run yet"),
        (study(ray_address="ray://head:1"), "on a cluster"),
        (study(run=replace(RUN, devices=(DEVICE,))), "with an accelerator"),
        (study(run=replace(RUN, versions={"python": "3.11"})), "does not use PyTorch"),
        (study(run=replace(RUN, environ_set=None)), "is not known"),
        (study(run=replace(RUN, environ_set=("A", "B", "C", "D"))), "the script sets A, B, C before"),
    ],
)
def test_where_a_fork_is_not_safe_the_reason_is_reported(changed, words):
    assert words in refusal(changed)
    assert start_of(changed, trial()) is StartMode.COLD


def test_an_accelerator_of_the_machine_is_enough():
    base = study()
    host = replace(base.facts.host, devices=(DEVICE,))
    assert "accelerator" in refusal(replace(base, facts=replace(base.facts, host=host)))
    assert refusal(base) == ""


def test_what_a_trial_costs_is_learned_for_each_way_to_start_it():
    trials = [
        reported(0, Stage.BASELINE, Config(), StartMode.COLD, seconds=12.0, startup_s=8.0),
        reported(1, Stage.BASELINE, Config(), StartMode.COLD, seconds=12.0, startup_s=8.0),
        reported(2, Stage.INITIAL, WORKERS, StartMode.FORK, seconds=5.0, startup_s=1.0),
    ]
    costs = Costs.of(replace(study(), trials=tuple(trials)))
    assert costs.plain_s == 12.0
    assert costs.screening(WORKERS) == 5.0
    # A run that is claimed pays for the start that the forked one did not have.
    plain = Costs.of(
        replace(study(), trials=(*trials[:2], replace(trials[2], start=StartMode.COLD, seconds=12.0)))
    )
    forked_s, started_s = costs.confirming(WORKERS), plain.confirming(WORKERS)
    assert forked_s >= started_s > costs.screening(WORKERS)


def test_once_trials_are_started_anew_again_they_cost_as_much_as_those():
    trials = (
        reported(0, Stage.BASELINE, Config(), StartMode.COLD, seconds=12.0),
        reported(1, Stage.INITIAL, WORKERS, StartMode.FORK, seconds=5.0),
        reported(2, Stage.REFINE, Config({"workers": 2}), StartMode.COLD, seconds=14.0),
    )
    costs = Costs.of(replace(study(), trials=trials))
    assert costs.screening(WORKERS) == costs.plain_s == 13.0
