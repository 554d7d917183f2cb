"""The most that a part of a step can gain, by how the baseline spent its time."""

import math
from dataclasses import replace

import pytest
from search_world import World, measurement, spec, usual_space

from autotune.answer.ceilings import PROVABLE, SHORTEST_COMPILE_S, ceilings, hopeless, not_required
from autotune.model.config import Config
from autotune.model.facts import ModelFacts
from autotune.model.measurement import Contamination, Measurement
from autotune.model.roofline import HEADROOM, Remainder
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Stage, Trial, TrialState

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
            state=TrialState.FINISHED,
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


def test_a_ceiling_that_nothing_comes_near_is_called_none() -> None:
    assert [c.text for c in ceilings(study(0.002))] == ["loading: at most 1.00x", "computing: no ceiling"]


def test_of_several_runs_the_one_that_rules_out_least_counts() -> None:
    found = ratios(study(0.01, 0.5))
    assert found["loading"] == pytest.approx(2.0)
    assert found["computing"] == pytest.approx(100.0)


def test_families_below_what_can_be_proved_are_hopeless() -> None:
    assert hopeless(study(0.01)) == {"loader"}
    assert {"precision", "compile"} <= hopeless(study(1.0 - 0.5 * (PROVABLE - 1.0)))
    assert hopeless(study(0.5)) == frozenset()


@pytest.mark.parametrize(("run_s", "is_over"), [(0.9, True), (1.1, False), (None, False)])
def test_a_run_that_is_over_before_any_compile_gains_nothing_from_one(
    run_s: float | None, is_over: bool
) -> None:
    made = study(0.5)
    step_s = next(t.measurement.step_time_s.value for t in made.trials if t.measurement is not None)
    steps = None if run_s is None else round(run_s * SHORTEST_COMPILE_S / step_s)
    made = replace(made, spec=replace(made.spec, run_steps=steps))
    assert hopeless(made) == ({"compile"} if is_over else frozenset())
    assert ("compiling: at most 1.00x" in [c.text for c in ceilings(made)]) is is_over
    assert not_required(made) == hopeless(made)
    assert made.facts is not None
    assert made.facts.run is not None
    compiled = replace(made.facts, run=replace(made.facts.run, own_compile=True))
    assert hopeless(replace(made, facts=compiled)) == frozenset(), "it may be faster without its compile"


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
        stage=Stage.INITIAL,
        outcome=measurement(500.0, wait=0.1),
    )
    assert hopeless(replace(made, trials=(*made.trials, fast))) == frozenset()
    fed = replace(fast, config=Config({"num_workers": 4}))
    assert hopeless(replace(made, trials=(*made.trials, fed))) == {"loader"}, "workers wait in another way"


# Counted steps. The made-up runs take 0.32 s a step.


def counted(
    bound: Remainder,
    *,
    wait: float = 0.0,
    workers: int = 0,
    cpus: int = 4,
    busy: float | None = None,
    seen: Contamination | None = None,
) -> Study:
    """The study of one baseline run whose process counted some steps."""
    made = study(wait, workers=workers, cpus=cpus)
    (trial,) = made.trials
    assert isinstance(trial.outcome, Measurement)
    extra = bound.figures() | ({} if busy is None else {"device_busy_frac": busy})
    outcome = replace(trial.outcome, extra=extra, contamination=seen or Contamination())
    return replace(made, trials=(replace(trial, outcome=outcome),))


def with_precision(made: Study, *, free: bool = True) -> Study:
    """Precision is known as the family of its knob, which may be varied or not."""
    assert made.space is not None
    knobs = dict(made.space.dimensions)
    own = knobs["precision"]
    knobs["precision"] = replace(own, family="precision", values=own.values if free else ("fp32",))
    return replace(made, space=replace(made.space, dimensions=knobs))


ON_CPU = Remainder(ops_s=0.24, reduced_s=0.08, outside_s=0.06, kernels_s=0.16)


def test_counted_steps_bound_number_formats_and_starts_by_what_stays() -> None:
    found = ratios(with_precision(counted(ON_CPU)))
    assert found["precision"] == pytest.approx(0.32 / (0.32 - 0.16))
    assert found["launch overhead"] == pytest.approx(0.32 / (0.32 - 0.06))
    assert [c.text for c in ceilings(with_precision(counted(ON_CPU)))] == [
        "loading: at most 1.00x",
        "computing: no ceiling",
        "precision: at most 2.00x",
        "launch overhead: at most 1.23x",
    ]


def test_neither_exceeds_what_is_left_when_computing_takes_no_time() -> None:
    found = ratios(with_precision(counted(ON_CPU, wait=0.75)))
    assert found["precision"] == pytest.approx(found["computing"])
    assert found["launch overhead"] == pytest.approx(0.32 / 0.26)


def test_a_counted_step_longer_than_the_usual_one_leaves_what_its_operations_need() -> None:
    long = replace(ON_CPU, ops_s=0.9, outside_s=0.5)
    found = ratios(with_precision(counted(long)))
    assert found["precision"] == pytest.approx(0.32 / 0.08)
    assert found["launch overhead"] == pytest.approx(0.32 / 0.16)


def test_time_in_which_the_thread_waited_for_a_cpu_is_no_part_of_what_stays() -> None:
    found = ratios(with_precision(counted(ON_CPU, seen=Contamination(run_queue_frac=0.1))))
    assert found["precision"] == pytest.approx(0.288 / (0.288 - 0.16))


def test_precision_is_skipped_where_operations_take_next_to_no_time() -> None:
    tiny = with_precision(counted(replace(ON_CPU, ops_s=0.005, reduced_s=0.003)))
    assert "precision" in hopeless(tiny)
    assert "compile" not in hopeless(tiny), "it acts on what lies between operations as well"
    assert "precision" not in hopeless(with_precision(counted(ON_CPU)))


@pytest.mark.parametrize("flag", ["cpu_contended", "neighbour", "cpu_throttled", "stopped"])
def test_steps_of_a_run_that_was_slowed_down_bound_nothing(flag: str) -> None:
    found = ratios(with_precision(counted(ON_CPU, seen=Contamination(flags=(flag,)))))
    assert set(found) == {"loading", "computing"}


def test_steps_counted_beside_workers_that_take_their_cores_bound_nothing() -> None:
    assert set(ratios(with_precision(counted(ON_CPU, workers=4, cpus=2)))) == {"loading", "computing"}


def test_no_ceiling_is_reported_for_a_format_that_cannot_be_chosen() -> None:
    assert "precision" not in ratios(with_precision(counted(ON_CPU), free=False))


def test_on_a_device_formats_save_a_part_of_what_its_counters_saw_and_starts_the_rest() -> None:
    busy = with_precision(counted(Remainder(reduced_s=0.064, gaps_s=0.032), busy=0.6))
    found = ratios(busy)
    assert found["precision"] == pytest.approx(1.0 / (1.0 - 0.6 + 0.2))
    assert found["launch overhead"] == pytest.approx(1.0 / (0.6 - 0.1))
    late = with_precision(counted(Remainder(reduced_s=9.0, gaps_s=0.0), busy=0.6))
    assert ratios(late)["precision"] == pytest.approx(1.0 / (1.0 - 0.6 + 0.6 / HEADROOM))


def test_without_counters_of_the_device_its_least_time_bounds_formats_and_nothing_bounds_starts() -> None:
    found = ratios(with_precision(counted(Remainder(reduced_s=0.064, gaps_s=0.032))))
    assert found["precision"] == pytest.approx(0.32 / 0.064)
    assert "launch overhead" not in found


def test_a_wait_that_workers_may_take_away_does_not_rule_out_a_format() -> None:
    waiting = with_precision(counted(replace(ON_CPU, ops_s=0.012, reduced_s=0.007), wait=0.95))
    assert ratios(waiting)["precision"] < PROVABLE
    assert "precision" not in hopeless(waiting)


def on_device(made: Study, **more: object) -> Study:
    assert made.facts is not None
    assert made.facts.run is not None
    run = replace(made.facts.run, model=ModelFacts(name="Net", device="cuda:0"), **more)
    return replace(made, facts=replace(made.facts, run=run))


def test_smaller_batches_cost_an_accelerator_what_the_host_does_for_each_of_them() -> None:
    made = on_device(counted(ON_CPU, wait=0.1, busy=0.2))
    assert ratios(made)["splitting batches"] == pytest.approx(1.0 / 1.7)
    assert "batch" in not_required(made)
    assert "batch" not in hopeless(made), "larger batches may still be faster"


def test_splitting_has_no_ceiling_where_the_script_splits_batches_or_trains_on_a_cpu() -> None:
    accumulates = on_device(counted(ON_CPU, busy=0.2), own_accumulation=True, backward_per_step=4.0)
    assert "splitting batches" not in ratios(accumulates)
    assert "splitting batches" not in ratios(counted(ON_CPU, busy=0.2))
    assert "batch" not in not_required(counted(ON_CPU, busy=0.2))
