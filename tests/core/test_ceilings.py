"""The most that loading and computing can gain, by how the baseline spent its time."""

import math
from dataclasses import replace

import pytest
from search_world import World, measurement, spec, usual_space

from autotune.core.ceilings import PROVABLE, ceilings, hopeless
from autotune.core.config import Config
from autotune.core.facts import ModelFacts
from autotune.core.study import Study
from autotune.core.trial import Fidelity, Stage, Trial, TrialState

FIDELITY = Fidelity(
    min_window_s=1.0, max_window_s=2.0, min_steps=5, target_width=0.05, setup_s=9.0, deadline_s=9.0
)


def study(*waits: float, workers: int | None = 0, cpus: int = 4, threads: int = 4) -> Study:
    """Baseline runs that waited for data for these shares of their time."""
    facts = World(space=usual_space(), speed={}, cores=cpus).facts()
    assert facts.run is not None
    assert facts.run.loader is not None
    loader = None if workers is None else replace(facts.run.loader, num_workers=workers)
    run = replace(facts.run, loader=loader, threads=threads, model=ModelFacts(name="Net", device="cpu"))
    trials = tuple(
        Trial(
            number=n,
            config=Config(),
            stage=Stage.BASELINE,
            fidelity=FIDELITY,
            state=TrialState.TOLD,
            outcome=measurement(100.0, wait=wait),
            seconds=5.0,
        )
        for n, wait in enumerate(waits)
    )
    return Study(spec=spec(), facts=replace(facts, run=run), space=usual_space(), trials=trials)


def ratios(made: Study) -> dict[str, float]:
    return {c.part: c.ratio for c in ceilings(made)}


def test_the_wait_bounds_loading_and_the_rest_bounds_computing() -> None:
    found = ratios(study(0.6))
    assert found["loading"] == pytest.approx(2.5)
    assert found["computing"] == pytest.approx(1.0 / 0.6)
    assert [c.text for c in ceilings(study(0.6))] == ["loading: at most 2.50x", "computing: at most 1.67x"]


def test_of_several_runs_the_one_that_rules_out_least_counts() -> None:
    found = ratios(study(0.01, 0.5))
    assert found["loading"] == pytest.approx(2.0)
    assert found["computing"] == pytest.approx(100.0)


def test_families_below_what_can_be_proved_are_hopeless() -> None:
    assert hopeless(study(0.01)) == {"loader"}
    assert {"precision", "compile"} <= hopeless(study(1.0 - 0.5 * (PROVABLE - 1.0)))
    assert hopeless(study(0.5)) == frozenset()


def test_workers_that_take_cores_from_the_training_leave_loading_without_a_ceiling() -> None:
    crowded = study(0.01, workers=4, cpus=2, threads=2)
    assert math.isinf(ratios(crowded)["loading"])
    assert "loader" not in hopeless(crowded)
    assert "loader" in hopeless(study(0.01, workers=2, cpus=16, threads=8))


def test_a_script_without_a_loader_gains_nothing_from_loading() -> None:
    assert ratios(study(0.0, workers=None))["loading"] == 1.0


def test_before_the_baseline_was_measured_nothing_is_bounded() -> None:
    assert ceilings(study()) == ()


def test_a_part_that_is_large_beside_a_faster_configuration_is_not_hopeless() -> None:
    plain = usual_space()
    workers = replace(plain.dimensions["num_workers"], family="loader")
    space = replace(plain, dimensions={**plain.dimensions, "num_workers": workers})
    made = replace(study(0.01), space=space)
    fast = replace(
        made.trials[0],
        number=1,
        config=Config({"precision": "bf16"}),
        stage=Stage.START,
        outcome=measurement(500.0, wait=0.1),
    )
    assert hopeless(replace(made, trials=(*made.trials, fast))) == frozenset()
    fed = replace(fast, config=Config({"num_workers": 4}))
    assert hopeless(replace(made, trials=(*made.trials, fed))) == {"loader"}, "workers wait in another way"
