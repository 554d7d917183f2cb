"""What the models learn, and what they rule out."""

from __future__ import annotations

import math

import pytest
from search_world import GIB, dimension, measurement, spec, tell, usual_space

from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage
from autotune.search.models.linear import GaussianProcess, Ridge
from autotune.search.models.memory_model import MemoryModel
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.screening.feasible import Feasible, suspect
from autotune.search.stages import Staged

SPACE = usual_space()
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
OOM = Failure(kind=FailureKind.OOM_CUDA, message="out of memory")
CRASH = Failure(kind=FailureKind.CRASH_EXIT, message="crash")


def study(*runs: tuple[dict[str, object], Measurement | Failure], stage: Stage = Stage.REFINE) -> Study:
    built = Study(spec=spec(), space=SPACE)
    for values, outcome in runs:
        at = stage if values else Stage.BASELINE
        config = Config(values)  # type: ignore[arg-type]
        built = tell(built, Proposal(stage=at, config=config, fidelity=FIDELITY, reason="x"), outcome, 7.0)
    return built


def test_a_process_returns_to_its_observations_and_doubts_far_from_them() -> None:
    process = GaussianProcess.of(
        [0.0, 2.0], [1.0, 3.0], [1e-3] * 2, lambda a, b: 4 * math.exp(-((a - b) ** 2))
    )  # type: ignore[operator]
    assert process.predict(0.0)[0] == pytest.approx(1.0, abs=1e-2)
    assert process.predict(2.0)[1] < 0.01
    assert process.predict(9.0)[1] > 1.9


def test_a_ridge_adds_up_what_its_columns_do() -> None:
    rows = [{"": 1.0}, {"": 1.0, "a": 1.0}, {"": 1.0, "b": 1.0}]
    ridge = Ridge.of(rows, [0.0, 0.5, 0.2], [0.01] * 3, {"": 10.0}, 1.0)
    assert ridge.predict({"": 1.0, "a": 1.0, "b": 1.0})[0] == pytest.approx(0.7, abs=0.01)


def test_more_of_what_ran_out_of_memory_is_ruled_out() -> None:
    seen = study(({}, measurement(100.0)), ({"batch_size": 64}, OOM))
    memory = MemoryModel.of(seen, SPACE)
    assert memory.fits(Config({"batch_size": 128})) == 0.0
    assert memory.fits(Config({"batch_size": 128, "num_workers": 4})) == 0.0
    assert memory.fits(Config({"batch_size": 16})) == 1.0
    assert memory.fits(Config({"batch_size": 64, "precision": "bf16"})) > 0.0


def test_peaks_that_grow_with_the_batch_predict_where_memory_ends() -> None:
    limit = 4 * GIB
    seen = study(
        ({}, measurement(100.0, peak_bytes=2 * GIB, limit_bytes=limit)),
        ({"batch_size": 16}, measurement(80.0, peak_bytes=int(1.1 * GIB), limit_bytes=limit)),
    )
    memory = MemoryModel.of(seen, SPACE)
    assert memory.fits(Config({"batch_size": 128})) < 0.1
    assert memory.fits(Config({"batch_size": 8})) > 0.9


def test_a_value_is_left_out_after_two_failures_with_different_configs_and_no_success() -> None:
    bad = {"precision": "bf16"}
    once = study(({}, measurement(100.0)), (bad, CRASH))
    assert Feasible.of(once, SPACE).allows(Config({**bad, "threads": 4}))
    assert Feasible.of(once, SPACE).works(Config({**bad, "threads": 4})) < 0.6
    twice = study(({}, measurement(100.0)), (bad, CRASH), ({**bad, "threads": 4}, CRASH))
    assert not Feasible.of(twice, SPACE).allows(Config({**bad, "fused_optimizer": True}))
    mixed = study(
        ({}, measurement(100.0)),
        (bad, CRASH),
        ({**bad, "threads": 4}, CRASH),
        ({**bad, "threads": 1}, measurement(90.0)),
    )
    assert Feasible.of(mixed, SPACE).allows(Config({**bad, "fused_optimizer": True}))


def test_a_value_is_left_out_after_one_crash_where_all_else_of_that_config_ran_through() -> None:
    bad = {"precision": "bf16", "threads": 4}
    crashed = study(({}, measurement(100.0)), (bad, CRASH))
    feasible = Feasible.of(crashed, SPACE)
    assert feasible.allows(Config({"precision": "bf16"}))
    # Neither has worked so far; which of them is taken out first is settled by name.
    assert suspect(crashed, feasible) == Config({"precision": "bf16"})
    apart = study(({}, measurement(100.0)), (bad, CRASH), ({"precision": "bf16"}, measurement(120.0)))
    feasible = Feasible.of(apart, SPACE)
    assert not feasible.allows(Config({"threads": 4}))
    assert feasible.allows(Config({"precision": "bf16", "fused_optimizer": True}))
    assert suspect(apart, feasible) is None
    assert Feasible.of(apart, SPACE, separates=False).allows(Config({"threads": 4}))


def test_what_crashed_beside_the_leader_is_tried_by_itself_before_it_is_left_out() -> None:
    leader, beside = {"precision": "bf16"}, {"precision": "bf16", "threads": 4}
    seen = study(({}, measurement(100.0)), (leader, measurement(120.0)), (beside, CRASH), stage=Stage.INITIAL)
    assert Feasible.of(seen, SPACE).allows(Config({"threads": 4}))
    requested: list[Config] = []
    reported = seen
    while len(requested) < 12 and (proposal := Staged().ask(reported, 800.0)) is not None:
        requested.append(proposal.config)
        reported = tell(reported, proposal, measurement(100.0), 7.0)
    assert Config({"threads": 4}) in requested
    both = (({}, measurement(100.0)), (leader, measurement(120.0)), (beside, CRASH), ({"threads": 4}, CRASH))
    again = study(*both, stage=Stage.INITIAL)
    assert not Feasible.of(again, SPACE).allows(Config({"threads": 4, "fused_optimizer": True}))


def test_what_crashed_beside_several_changes_is_tried_by_itself_before_beside_some_of_them() -> None:
    leader = {"precision": "bf16", "channels_last": True}
    beside = {**leader, "threads": 4}
    reported = study(
        ({}, measurement(100.0)), (leader, measurement(120.0)), (beside, CRASH), stage=Stage.INITIAL
    )
    with_it: list[Config] = []
    requested = 0
    while requested < 12 and (proposal := Staged().ask(reported, 800.0)) is not None:
        requested += 1
        if proposal.config.get("threads") == 4:
            with_it.append(proposal.config)
        reported = tell(reported, proposal, measurement(100.0), 7.0)
    assert with_it[:1] == [Config({"threads": 4})]


def test_what_took_too_long_or_is_a_single_change_is_not_left_out_after_once() -> None:
    late = Failure(kind=FailureKind.TIMEOUT_TOTAL, message="too slow")
    bad = {"precision": "bf16", "threads": 4}
    seen = study(({}, measurement(100.0)), (bad, late), ({"precision": "bf16"}, measurement(120.0)))
    assert Feasible.of(seen, SPACE).allows(Config({"threads": 4}))
    single = study(({}, measurement(100.0)), ({"threads": 4}, CRASH))
    feasible = Feasible.of(single, SPACE)
    assert feasible.allows(Config({"threads": 4, "precision": "bf16"}))
    assert suspect(single, feasible) is None


def test_what_runs_at_the_moment_is_expected_to_end_as_predicted() -> None:
    seen = study(({}, measurement(100.0)), ({"threads": 4}, measurement(120.0)))
    model = ThroughputModel.of(seen, SPACE)
    assert model is not None
    pending = Config({"precision": "bf16"})
    believed = model.believing([pending])
    assert believed.predict(pending)[0] == pytest.approx(model.predict(pending)[0], abs=1e-6)
    assert believed.predict(pending)[1] < 0.1 * model.predict(pending)[1]
    assert believed.seen == model.seen
    beside = Config({"precision": "bf16", "threads": 4})
    assert believed.expected_improvement(beside, 0.2) < model.expected_improvement(beside, 0.2)


def test_a_value_that_does_not_take_effect_is_left_out_at_once() -> None:
    refused = Failure(
        kind=FailureKind.CONFIG_REJECTED, message="no", evidence={"knob": "channels_last", "how": "patch"}
    )
    seen = study(({}, measurement(100.0)), ({"channels_last": True, "threads": 4}, refused))
    feasible = Feasible.of(seen, SPACE)
    assert not feasible.allows(Config({"channels_last": True}))
    assert feasible.allows(Config({"threads": 4}))


def test_faster_computing_is_not_expected_to_help_a_loop_that_waits() -> None:
    seen = study(
        ({}, measurement(50.0, wait=0.8)),
        ({"num_workers": 2}, measurement(100.0, wait=0.5)),
        ({"precision": "bf16"}, measurement(55.0, wait=0.85)),
    )
    model = ThroughputModel.of(seen, SPACE)
    assert model is not None
    assert math.exp(model.predict(Config({"num_workers": 2, "precision": "bf16"}))[0]) * 50 <= 104
    assert model.roof(Config({"num_workers": 8})) > math.log(4)


def test_the_loader_is_not_expected_to_help_a_loop_that_never_waits() -> None:
    model = ThroughputModel.of(study(({}, measurement(100.0, wait=0.01))), SPACE)
    assert model is not None
    assert model.roof(Config({"num_workers": 8})) < 0.05
    assert model.roof(Config({"precision": "bf16"})) > 1.0


def test_gains_of_single_knobs_add_up_in_the_prediction() -> None:
    space = SearchSpace(dimensions={k: dimension(k, (0, 1), 0) for k in ("a", "b", "c")})
    built = Study(spec=spec(), space=space)
    for values, rate in (({}, 100.0), ({"a": 1}, 140.0), ({"b": 1}, 120.0)):
        stage = Stage.REFINE if values else Stage.BASELINE
        built = tell(
            built,
            Proposal(stage=stage, config=Config(values), fidelity=FIDELITY, reason="x"),
            measurement(rate),
            7.0,
        )
    model = ThroughputModel.of(built, space)
    assert model is not None
    assert math.exp(model.predict(Config({"a": 1, "b": 1}))[0]) == pytest.approx(1.68, rel=0.06)
