"""The fake runner: known truth, seeded noise, every kind of ending, simulated time."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.clock import SimulatedClock
from autotune.launch.fake import (
    COMPUTE_BOUND,
    FAILS_IN_BASELINE,
    INPUT_BOUND,
    TINY_WITH_OOM,
    FakeRunner,
    World,
)
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Failure, FailureKind, Fidelity, Launch, Segment
from autotune.testing.runners import RunnerContract

FIDELITY = Fidelity(
    min_window_s=1, max_window_s=10, min_steps=12, target_width=0.05, setup_s=60, deadline_s=300
)


def assign(seed: int = 0, uid: str = "t0-a1", trial: int = 0, **knobs: Any) -> Assignment:
    launch = Launch(command=(), script="/x.py", argv=(), python="python", cwd="/", env={}, seed=seed)
    segment = Segment(trial=trial, config=Config(knobs), fidelity=FIDELITY)
    return Assignment(uid=uid, study_id="s", attempt=1, launch=launch, segments=(segment,))


def outcome(world: World, **more: Any) -> Any:
    (ended,) = FakeRunner(world).run(assign(**more))
    return ended.outcome


class TestContract(RunnerContract):
    def make_runner(self) -> FakeRunner:
        return FakeRunner(TINY_WITH_OOM)

    def make_good(self) -> Assignment:
        return assign()

    def make_failing(self) -> Assignment:
        return assign(compile_mode="max-autotune")


@pytest.mark.parametrize(
    ("knobs", "kind"),
    [
        ({"batch_size": 512}, FailureKind.OOM_CUDA),
        ({"compile_mode": "max-autotune"}, FailureKind.CRASH_EXIT),
        ({"num_workers": 8}, FailureKind.TIMEOUT_PROGRESS),
        ({"precision": "fp16"}, FailureKind.DIVERGED),
        ({"channels_last": True}, FailureKind.CONFIG_REJECTED),
    ],
)
def test_each_trap_of_the_tiny_world_springs(knobs: Any, kind: FailureKind) -> None:
    found = outcome(TINY_WITH_OOM, **knobs)
    assert isinstance(found, Failure)
    assert found.kind is kind
    assert (found.readings is not None) == (kind is FailureKind.DIVERGED)


def test_a_broken_script_fails_unchanged() -> None:
    assert outcome(FAILS_IN_BASELINE).kind is FailureKind.CRASH_EXIT


def test_what_is_measured_lies_around_the_truth_and_repeats() -> None:
    config = Config({"precision": "bf16", "batch_size": 64})
    seen = [outcome(COMPUTE_BOUND, trial=i, **config).throughput.value for i in range(30)]
    truth = COMPUTE_BOUND.throughput(config)
    assert abs(sum(seen) / len(seen) / truth - 1) < 0.01
    assert len(set(seen)) == len(seen)
    again = outcome(COMPUTE_BOUND, uid="another, as each search draws its own", **config)
    assert again == outcome(COMPUTE_BOUND, **config)


def test_workers_help_where_input_bounds_and_only_there() -> None:
    def gain(world: World) -> float:
        return world.throughput(Config({"num_workers": 4})) / world.throughput(Config())

    assert gain(INPUT_BOUND) > 3
    assert gain(COMPUTE_BOUND) < 1.05
    assert outcome(INPUT_BOUND).data_wait_frac > 0.8


def test_time_passes_on_the_clock_alone_and_a_second_compile_is_warm() -> None:
    clock = SimulatedClock()
    runner = FakeRunner(COMPUTE_BOUND, clock)
    (cold,) = runner.run(assign(compile_mode="default"))
    (warm,) = runner.run(assign(compile_mode="default"))
    assert isinstance(cold.outcome, Measurement)
    assert isinstance(warm.outcome, Measurement)
    assert (cold.outcome.cold_compile, warm.outcome.cold_compile) == (True, False)
    assert clock.now_s() == pytest.approx(cold.seconds + warm.seconds)
    assert cold.seconds > 40 > warm.seconds


def test_losses_pair_by_seed_and_a_larger_batch_is_behind_per_sample() -> None:
    one, same, other = (
        outcome(COMPUTE_BOUND),
        outcome(COMPUTE_BOUND, trial=9),
        outcome(COMPUTE_BOUND, seed=1),
    )
    pairs = list(zip(one.loss, same.loss, other.loss, strict=False))
    assert all(a.loss == b.loss != c.loss for a, b, c in pairs)
    assert COMPUTE_BOUND.loss(Config({"batch_size": 256}), 4096) > COMPUTE_BOUND.loss(Config(), 4096)


def test_stop_while_running_is_killed_user() -> None:
    runner = FakeRunner(COMPUTE_BOUND)

    class Stopping(SimulatedClock):
        def sleep(self, seconds: float) -> None:
            runner.stop()

    runner.clock = Stopping()
    (ended,) = runner.run(assign())
    assert ended.outcome.kind is FailureKind.KILLED_USER
