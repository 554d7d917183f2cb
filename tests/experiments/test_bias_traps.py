"""Traps that bend a throughput: what walks into each of them without a remedy, and that ours does not.

Steps of known truth go through the recorder that decides on warm-up and window, and through the fold that
makes the figure; beside it stands the estimator that people write by hand.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import coverage_process as process
import device_loop
import pytest
from coverage_process import BATCH, Step
from fake_cuda import World

NS = 1_000_000_000


def by_hand(steps: list[Step], skip: int, count: int) -> float:
    """Samples per second of so many steps after so many for warm-up."""
    timed = steps[skip : skip + count]
    return BATCH * len(timed) / sum(s.period_s for s in timed)


def shaken(draw: random.Random, seconds: float) -> float:
    return seconds * (1.0 + 0.03 * draw.gauss(0.0, 1.0))


# A queue that a pause has filled -------------------------------------------------------------------


def prefilled(
    workers: int, prefetch: int, load_s: float, step_s: float, pause_s: float, at_steps: Container[int] = (0,)
) -> Iterator[Step]:
    """A loop bound by its loader; after the first batch it pauses (compiles), and the workers go on.

    Batch i is loaded by worker i % W in order; a worker keeps P batches ready at most.
    """
    ends: list[float] = []
    taken: list[float] = []
    at = 0.0
    for i in itertools.count():
        free = ends[i - workers] if i >= workers else 0.0
        slot = taken[i - workers * prefetch] if i >= workers * prefetch else 0.0
        # Those ahead are known: what is taken next was ordered when a slot became free.
        ends.append(max(free, slot) + load_s)
        begun = at
        at = max(at, ends[i])
        taken.append(at)
        wait_s = at - begun
        at += step_s + (pause_s if i in at_steps else 0.0)
        ready = _ready(ends, taken, workers, prefetch, load_s, at)
        yield Step(period_s=at - begun, wait_s=wait_s, ready=ready)


def _ready(
    ends: list[float], taken: list[float], workers: int, prefetch: int, load_s: float, at: float
) -> int:
    """Batches loaded by now and not taken."""
    known, level = list(ends), 0
    for i in range(len(ends), len(taken) + workers * prefetch):
        free = known[i - workers] if i >= workers else 0.0
        slot = taken[i - workers * prefetch] if i >= workers * prefetch else 0.0
        known.append(max(free, slot) + load_s)
        level += known[i] <= at
    return level


@pytest.mark.parametrize("step_s", [0.02, 0.04, 0.055])
def test_a_queue_that_a_pause_has_filled(step_s: float) -> None:
    """W = 2, P = 8: sixteen batches lie ready after four seconds and come out as fast as they are used."""
    made = list(itertools.islice(prefilled(2, 8, 0.16, step_s, 4.0), 1200))
    truth = BATCH / 0.08
    assert by_hand(made, skip=2, count=10) > 1.4 * truth
    # Counting batches alone is not enough: the queue drains at the difference of two rates.
    assert by_hand(made, skip=18, count=10) > 1.2 * truth or step_s < 0.03
    ran = process.run(made, process.fidelity(6.0), workers=2, prefetch=8)
    assert ran.measurement.throughput.value == pytest.approx(truth, rel=0.03)


def test_a_queue_that_was_filled_in_a_start_that_is_cut_off() -> None:
    """Twelve slow steps where the window opens: what they let pile up is what the rest begins with."""
    slow = range(20, 32)
    made = list(itertools.islice(prefilled(2, 8, 0.16, 0.02, 0.3, slow), 1200))
    truth = BATCH / 0.08
    ran = process.run(made, process.fidelity(6.0), workers=2, prefetch=8)
    assert ran.measurement.steps < ran.closed.counters["window_steps"], "a start is cut off"
    assert (ran.closed.ready_begin, ran.closed.ready_end) == (16, 1)
    assert by_hand(made, skip=32, count=ran.measurement.steps) > 1.4 * truth
    assert ran.measurement.throughput.value == pytest.approx(truth, rel=0.03)


# Periodic stalls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4])
def test_a_stall_every_time_the_first_worker_is_due(workers: int) -> None:
    draw = random.Random(workers)
    made = [
        Step(period_s=shaken(draw, 0.03 + (0.08 if k % workers == 0 else 0.0)), ready=0) for k in range(1000)
    ]
    truth = BATCH / (0.03 + 0.08 / workers)
    periods = [s.period_s for s in made[20:220]]
    assert BATCH / min(periods) > 1.5 * truth
    middle = statistics.median(periods)
    if workers > 2:
        assert BATCH / middle > 1.5 * truth, "a median takes the stalls for chance"
        spread = statistics.median(abs(p - middle) for p in periods)
        kept = [p for p in periods if abs(p - middle) < 5 * spread]
        assert BATCH * len(kept) / sum(kept) > 1.5 * truth, "and so does setting outliers aside"
    found = process.run(made, process.fidelity(8.0), workers=workers).measurement
    assert found.throughput.value == pytest.approx(truth, rel=0.02)
    assert found.throughput.low <= truth <= found.throughput.high


# Compiling late ------------------------------------------------------------------------------------


def test_a_backward_that_is_compiled_only_when_it_is_needed() -> None:
    """The forward is compiled in the first step, the backward in the fourth."""
    draw = random.Random(3)
    compiles = {0: 6.0, 3: 9.0}
    made = [
        Step(period_s=shaken(draw, 0.05) + compiles.get(k, 0.0), compile_s=compiles.get(k, 0.0))
        for k in range(600)
    ]
    truth = BATCH / 0.05
    assert by_hand(made, skip=2, count=10) < 0.1 * truth
    found = process.run(made, process.fidelity(6.0)).measurement
    assert found.throughput.value == pytest.approx(truth, rel=0.02)
    assert found.compile_s == pytest.approx(15.0)
    assert "recompiled" not in found.contamination.flags


def test_a_compiled_run_that_stalls_late_on_new_shapes() -> None:
    """An evaluation long after the first step meets the graph with another shape."""
    draw = random.Random(4)
    made = [
        Step(period_s=shaken(draw, 0.04) + (12.0 if k == 150 else 0.0), compile_s=12.0 if k == 150 else 0.0)
        for k in range(1500)
    ]
    truth = BATCH / 0.04
    assert by_hand(made, skip=20, count=200) < 0.5 * truth, "a window across the stall"
    found = process.run(made, process.fidelity(10.0)).measurement
    assert found.throughput.value == pytest.approx(truth, rel=0.02)
    # A window before it is as fast, and silent about what the run will pay.
    assert by_hand(made, skip=20, count=100) == pytest.approx(truth, rel=0.02)
    assert found.compile_s == pytest.approx(12.0)
    whole = BATCH * 1500 / (1500 * 0.04 + 12.0)
    assert found.amortised(1500) == pytest.approx(whole, rel=0.02)


def test_a_run_that_compiles_again_and_again_pays_for_all_of_it() -> None:
    """Three compiles begin the window anew; what comes after them was in no figure at all."""
    draw = random.Random(6)
    late = (40, 80, 120, 180, 240)
    made = [
        Step(period_s=shaken(draw, 0.04) + 3.0 * (k in late), compile_s=3.0 * (k in late))
        for k in range(1500)
    ]
    truth = BATCH / 0.04
    found = process.run(made, process.fidelity(10.0))
    assert found.closed.counters["restarts"] == 3
    assert "recompiled" in found.measurement.contamination.flags
    assert found.measurement.throughput.value == pytest.approx(truth, rel=0.02)
    before_s = sum(3.0 for k in late if found.rows[k].t_ns <= found.closed.begin_ns)
    assert before_s < 10.0, "what is counted up to the window"
    assert found.measurement.compile_s == pytest.approx(15.0)
    whole = BATCH * 1500 / (1500 * 0.04 + 15.0)
    assert found.measurement.amortised(1500) == pytest.approx(whole, rel=0.02)
    assert BATCH * 1500 / (1500 * 0.04 + before_s) > 1.07 * whole


def test_compiling_that_is_a_part_of_the_steps_is_not_charged_a_second_time() -> None:
    draw = random.Random(7)
    slow = dict.fromkeys((30, 60, 90), 2.0) | dict.fromkeys(range(106, 1500, 3), 0.1)
    made = [
        Step(period_s=shaken(draw, 0.04) + slow.get(k, 0.0), compile_s=slow.get(k, 0.0)) for k in range(1500)
    ]
    found = process.run(made, process.fidelity(4.0)).measurement
    assert found.throughput.value == pytest.approx(3 * BATCH / (3 * 0.04 + 0.1), rel=0.03)
    assert found.compile_s == pytest.approx(6.0)


@pytest.mark.parametrize("compile_s", [0.2, 20.0])
def test_a_stall_after_the_window_is_charged_to_a_run_that_goes_on_for_its_loss(compile_s: float) -> None:
    """Four seconds of window, then an evaluation that compiles anew before the loss is long enough."""
    draw = random.Random(9)
    made = [
        Step(period_s=shaken(draw, 0.04) + compile_s * (k == 250), compile_s=compile_s * (k == 250))
        for k in range(1500)
    ]
    wanted = replace(process.fidelity(4.0), loss_samples=400 * BATCH)
    found = process.run(made, wanted, loss=1.0)
    assert found.closed.end_ns < found.rows[250].t_ns, "the window is over before"
    measured = found.measurement
    assert measured.throughput.value == pytest.approx(BATCH / 0.04, rel=0.02)
    assert measured.compile_s == 0.0
    assert measured.late_compile_s == pytest.approx(compile_s)
    assert ("compiled_late" in measured.contamination.flags) is (compile_s > 1.0)
    whole = BATCH * 1500 / (1500 * 0.04 + compile_s)
    assert measured.amortised(1500) == pytest.approx(whole, rel=0.02)
    shorter = process.run(made, process.fidelity(4.0), loss=1.0).measurement
    assert shorter.late_compile_s == 0.0, "that run was over before"


def test_compiling_that_is_a_part_of_the_steps_is_not_charged_after_the_window_either() -> None:
    draw = random.Random(10)
    slow = dict.fromkeys((30, 60, 90), 2.0) | dict.fromkeys(range(106, 1500, 3), 0.1)
    made = [
        Step(period_s=shaken(draw, 0.04) + slow.get(k, 0.0), compile_s=slow.get(k, 0.0)) for k in range(1500)
    ]
    wanted = replace(process.fidelity(4.0), loss_samples=600 * BATCH)
    found = process.run(made, wanted, loss=1.0)
    assert len(found.rows) == 600
    assert found.measurement.compile_s == pytest.approx(6.0)
    assert found.measurement.late_compile_s == 0.0


# Epochs --------------------------------------------------------------------------------------------


def test_an_epoch_that_ends_now_and_then() -> None:
    """Forty steps, a second until the workers are up again, two seconds of evaluation."""
    draw = random.Random(5)
    made = []
    for k in range(2000):
        first = k % 40 == 0 and k > 0
        restart_s, aside_s = (1.0, 2.0) if first else (0.0, 0.0)
        own_s = shaken(draw, 0.05)
        made.append(Step(period_s=own_s + restart_s + aside_s, wait_s=restart_s, aside_s=aside_s))
    truth = BATCH * 40 / (40 * 0.05 + 1.0)
    assert by_hand(made, skip=45, count=20) > 1.3 * truth, "between two ends"
    assert by_hand(made, skip=45, count=400) < 0.7 * truth, "with the evaluation in it"
    found = process.run(made, process.fidelity(30.0)).measurement
    assert found.throughput.value == pytest.approx(truth, rel=0.04)
    assert found.throughput.low <= truth <= found.throughput.high


# Somebody else on the device -----------------------------------------------------------------------


def test_a_window_of_which_others_spoil_a_part_goes_on_until_it_has_as_many_blocks() -> None:
    draw = random.Random(8)
    alone = [Step(period_s=shaken(draw, 0.05)) for _ in range(1500)]
    beside, at = [], 0.0
    for step in alone:
        beside.append(replace(step, period_s=step.period_s * (2.0 if 3.0 <= at < 5.0 else 1.0)))
        at += beside[-1].period_s
    truth, wanted, when = BATCH / 0.05, process.fidelity(5.0), ((3.0, 5.0),)
    assert process.run(beside, wanted).measurement.throughput.value < 0.9 * truth, "nobody looked"
    usual = process.run(alone, wanted).measurement
    fewer = process.run(beside, wanted, beside=when, is_reported=False).measurement
    whole = process.run(beside, wanted, beside=when).measurement
    for found in (fewer, whole):
        assert found.throughput.value == pytest.approx(truth, rel=0.02)
        assert "foreign_gpu" in found.contamination.flags
    assert fewer.throughput.n < 0.75 * usual.throughput.n
    assert whole.throughput.n >= 0.9 * usual.throughput.n
    assert usual.window_s + 1.8 < whole.window_s < usual.window_s + 3.0


# A device behind the host's back -------------------------------------------------------------------


def test_a_device_that_works_after_the_host_has_gone_on(tmp_path: Path, monkeypatch: Any) -> None:
    """The host launches a step in a fraction of a millisecond; the device takes 20."""
    one = device_loop.Loop(tmp_path, monkeypatch, World(), replace(device_loop.FIDELITY, max_window_s=3.0))
    ran = one.run(one.step)
    truth = device_loop.SAMPLES / 0.02
    stamps = ran.stamps_ns
    ahead = device_loop.SAMPLES * 10 * NS / (stamps[12] - stamps[2])
    assert ahead > 5 * truth, "ten steps by the host's clock"
    assert ran.measured.throughput.value == pytest.approx(truth, rel=0.005)
