"""What operations take at the least, and what number formats and faster starts can save of a step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autotune.model.roofline import HEADROOM, CountedStep, Machine, Op, Remainder, remainder, work_of

MACHINE = Machine(
    flops_per_s={"float32": 1e11, "bfloat16": 4e11},
    bytes_per_s={2**18: 4e10, 2**27: 1e10},
    start_s=4e-6,
    dispatch_s=1e-6,
)


def test_an_operation_is_booked_under_what_takes_longest() -> None:
    found = work_of(
        [
            Op(flops=2e9, bytes=3e6),
            Op(flops=0.0, bytes=1e8),
            Op(flops=100.0, bytes=64.0),
            Op(flops=0.0, bytes=0.0),
        ],
        MACHINE,
    )
    assert found.compute_s == pytest.approx(0.02)
    assert found.memory_s == pytest.approx(0.01)
    assert found.overhead_s == pytest.approx(8e-6)
    assert found.total_s == pytest.approx(0.030008)


def test_arithmetic_is_weighed_by_the_peak_of_its_dtype() -> None:
    half = work_of([Op(flops=4e9, bytes=0.0, dtype="bfloat16")], MACHINE)
    other = work_of([Op(flops=4e9, bytes=0.0, dtype="float16")], MACHINE)
    assert half.compute_s == pytest.approx(0.01)
    assert other.compute_s == pytest.approx(0.01), "an unknown dtype by the fastest that is known"


def test_a_small_working_set_is_weighed_by_the_cache_and_a_large_one_by_memory() -> None:
    assert MACHINE.memory_s(Op(flops=0.0, bytes=2.0**17)) == pytest.approx(2**17 / 4e10)
    assert MACHINE.memory_s(Op(flops=0.0, bytes=2.0**30)) == pytest.approx(2**30 / 1e10)


def test_a_copy_between_devices_is_a_transfer() -> None:
    machine = replace(MACHINE, transfer_bytes_per_s=1e10)
    assert work_of([Op(flops=0.0, bytes=1e8, transfers=True)], machine).transfer_s == pytest.approx(0.01)


def test_an_exchange_between_processes_is_no_arithmetic_and_moves_no_memory() -> None:
    assert work_of([Op(flops=0.0, bytes=1e9, communicates=True)], MACHINE).total_s == 0.0


def test_with_fewer_bits_arithmetic_runs_at_the_fastest_peak_and_half_of_the_bytes_move() -> None:
    assert MACHINE.reduced_s(Op(flops=6e11, bytes=8.0, name="mm")) == pytest.approx(6e11 / 4e11 / HEADROOM)
    assert MACHINE.reduced_s(Op(flops=0.0, bytes=3e9)) == pytest.approx(1.5e9 / 1e10 / HEADROOM)
    assert MACHINE.reduced_s(Op(flops=0.0, bytes=3e9, dtype="int64")) == pytest.approx(3e9 / 1e10 / HEADROOM)
    cached = MACHINE.reduced_s(Op(flops=0.0, bytes=1e6))
    assert cached == pytest.approx(5e5 / 4e10 / HEADROOM), "what may lie in a cache moves at its rate"


def test_fast_convolutions_and_superfluous_conversions_leave_less() -> None:
    product = Op(flops=4e9, bytes=0.0, name="mm")
    assert MACHINE.reduced_s(replace(product, name="convolution_backward")) == pytest.approx(
        MACHINE.reduced_s(product) / 4.0
    )
    assert MACHINE.reduced_s(Op(flops=0.0, bytes=1e9, name="_to_copy")) == 0.0
    assert MACHINE.reduced_s(Op(flops=0.0, bytes=1e9, communicates=True)) == 0.0


STEP = CountedStep(
    ops=(
        Op(flops=3e9, bytes=0.0, name="mm", seconds=0.05, tensors=3),
        Op(flops=0.0, bytes=4e8, name="add", seconds=0.06, tensors=3),
        Op(flops=0.0, bytes=0.0, name="view", seconds=2e-6, tensors=2),
    ),
    outside_s=0.01,
)


def test_of_a_step_on_a_cpu_all_stays_that_lies_outside_of_operations() -> None:
    found = remainder([STEP], MACHINE, device="cpu")
    assert found is not None
    assert found.ops_s == pytest.approx(0.110002)
    assert found.reduced_s == pytest.approx(0.005 + 2e8 / 1e10 / HEADROOM + 1e-6)
    assert found.outside_s == pytest.approx(0.01 + 8e-6)
    assert found.kernels_s == pytest.approx((0.110002 - 8e-6) / HEADROOM)


def test_time_in_which_the_thread_waited_for_a_cpu_is_no_work_of_operations() -> None:
    found = remainder([replace(STEP, queued_s=0.02)], MACHINE, device="cpu")
    assert found is not None
    assert found.kernels_s == pytest.approx((0.110002 - 8e-6 - 0.02) / HEADROOM)
    assert found.ops_s == pytest.approx(0.110002), "which bounds the gain of formats from above"


def test_an_operation_that_runs_at_its_limit_is_still_granted_a_third_of_its_time() -> None:
    """Bytes may be counted that are not moved; then nothing is left of what they were counted for."""
    overcounted = CountedStep(ops=(Op(flops=0.0, bytes=1e12, seconds=0.03),), outside_s=0.0)
    found = remainder([overcounted], MACHINE, device="cpu")
    assert found is not None
    assert found.reduced_s == pytest.approx(0.03 / HEADROOM)


def test_no_true_gain_of_a_reduced_format_is_above_the_bound() -> None:
    """Operations of any efficiency in both formats, on a machine whose peaks were read too low."""
    for seed in range(200):
        draw = random.Random(seed)
        true = replace(MACHINE, flops_per_s={"float32": 1e11, "bfloat16": 10 ** draw.uniform(10.5, 12.5)})
        low = {name: rate / draw.uniform(1.0, HEADROOM) for name, rate in true.flops_per_s.items()}
        seen = replace(true, flops_per_s=low)
        outside_s = draw.uniform(0.0, 0.01)
        ops: list[Op] = []
        reduced_s = outside_s
        for _ in range(draw.randint(1, 30)):
            flops = draw.choice([0.0, 10 ** draw.uniform(4.0, 9.0)])
            op = Op(flops=flops, bytes=10 ** draw.uniform(2.0, 9.0))
            least = replace(op, dtype="bfloat16", bytes=op.bytes / 2)
            now_s = max(true.compute_s(op), true.memory_s(op)) * draw.uniform(1.0, 5.0) + true.dispatch_s
            then_s = max(true.compute_s(least), 0.0 if flops else true.memory_s(least)) + true.dispatch_s
            ops.append(replace(op, seconds=now_s, tensors=3))
            reduced_s += min(now_s, then_s)
        found = remainder([CountedStep(ops=ops, outside_s=outside_s)], seen, device="cpu")
        assert found is not None
        assert found.ops_s is not None
        step_s = outside_s + sum(op.seconds for op in ops)
        assert step_s - (found.ops_s - found.reduced_s) <= reduced_s * (1 + 1e-9)


def test_of_several_steps_the_widest_bound_counts_for_formats_and_the_tightest_for_starts() -> None:
    slower = replace(STEP, ops=[replace(op, seconds=1.5 * op.seconds) for op in STEP.ops], outside_s=0.02)
    found = remainder([STEP, slower], MACHINE, device="cpu")
    once = remainder([STEP], MACHINE, device="cpu")
    assert found is not None
    assert once is not None
    assert found.ops_s == pytest.approx(0.165003)
    assert (found.outside_s, found.kernels_s) == (once.outside_s, once.kernels_s)


@pytest.mark.parametrize("grown", [{"flops": 4e9}, {"bytes": 5e8}])
def test_steps_that_differ_in_their_work_bound_nothing(grown: dict[str, float]) -> None:
    longer = replace(STEP, ops=[replace(op, **grown) for op in STEP.ops])
    assert remainder([STEP, longer], MACHINE, device="cpu") is None
    assert remainder([], MACHINE, device="cpu") is None


def test_on_an_accelerator_only_its_own_operations_count_and_their_calls_tell_no_time() -> None:
    ops = [replace(op, device="cuda") for op in STEP.ops]
    loads = Op(flops=0.0, bytes=1e12, seconds=1.0)
    found = remainder([CountedStep(ops=[*ops, loads], outside_s=0.1)], MACHINE, device="cuda")
    assert found is not None
    assert found.reduced_s == pytest.approx(0.005 + 2e8 / 1e10 / HEADROOM)
    assert found.gaps_s == pytest.approx(3 * 4e-6)
    assert found.ops_s is None


def test_what_was_found_is_read_back_from_a_runs_figures() -> None:
    for found in (remainder([STEP], MACHINE, device="cpu"), Remainder(reduced_s=0.0, gaps_s=1e-3)):
        assert found is not None
        assert Remainder.of({**found.figures(), "window_steps": 40.0}) == found
    assert Remainder.of({"window_steps": 40.0}) is None
