"""Step timing, waiting and memory on a device that works behind the host's back (a fake one)."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from device_loop import FIDELITY, SAMPLES, Anchor, Loop
from fake_cuda import GIB, Virtual, World

from autotune.trial.runtime.state import LOADER


@pytest.fixture
def loop(tmp_path: Any, monkeypatch: Any) -> Any:
    def make(world: World | None = None, **fidelity: Any) -> Loop:
        return Loop(tmp_path, monkeypatch, world or World(), replace(FIDELITY, **fidelity))

    return make


def test_a_host_that_runs_ahead_is_not_believed(loop: Any) -> None:
    """It launches a step in 0.1 ms; the device takes 20 ms and is what the window is about."""
    one = loop()
    ran = one.run(one.step)
    assert ran.closed.clock == "device"
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.02, rel=0.005)
    assert ran.measured.step_time_s.value == pytest.approx(0.02, rel=0.005)
    assert ran.measured.window_s > 0.9 * FIDELITY.min_window_s
    assert "bursty" not in ran.measured.contamination.flags
    assert ran.closed.end_ns - ran.stamps_ns[-1] > 0.9e9, "the host was done a second before the device"


def test_nothing_waits_for_the_device_inside_a_window(loop: Any) -> None:
    one = loop()
    ran = one.run(one.step)
    assert ran.waits_inside() == []
    assert [what for what, _ in ran.world.waits if what in ("device", "event")] == [
        "device",  # the first step, from which a short run is timed
        "device",  # where the window opens
        "device",  # where it closes
        "device",  # the rows that came after it
    ]


def test_events_are_used_again(loop: Any) -> None:
    one = loop()
    ran = one.run(lambda: one.step(read=True))
    assert ran.world.recorded > 300
    assert ran.world.created < 20


def test_a_window_shorter_than_the_hosts_lead_is_right_all_the_same(loop: Any) -> None:
    """All of its steps fit into the device's queue: the host is done with them in milliseconds."""
    one = loop(min_window_s=0.0005, max_window_s=0.001, min_steps=6)
    ran = one.run(one.step)
    assert ran.stamps_ns[-1] - ran.closed.begin_ns < 5_000_000
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.02, rel=0.01)


def test_a_script_that_reads_its_loss_is_measured_alike(loop: Any) -> None:
    one = loop()
    ran = one.run(lambda: one.step(read=True, fetch_s=0.01))
    assert ran.closed.clock == "device"
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.03, rel=0.005)
    assert ran.measured.data_wait_frac == pytest.approx(1 / 3, rel=0.02)


def test_loading_beside_a_busy_device_is_no_waiting(loop: Any) -> None:
    """10 ms of loading in the main process, 30 ms of kernels: the device never stands still."""
    one = loop()
    ran = one.run(lambda: one.step(fetch_s=0.01, device_s=0.03))
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.03, rel=0.005)
    assert ran.measured.data_wait_frac < 0.01


def test_loading_that_is_slower_than_the_device_is_what_it_waits_for(loop: Any) -> None:
    one = loop()
    ran = one.run(lambda: one.step(fetch_s=0.03, device_s=0.01))
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.03, rel=0.005)
    assert ran.measured.data_wait_frac == pytest.approx(2 / 3, rel=0.02)


@pytest.mark.parametrize("read", [True, False])
def test_an_evaluation_is_taken_off_by_what_it_took_of_the_device(loop: Any, read: bool) -> None:
    """When the host begins to evaluate, the device is many training steps behind."""
    one = loop(min_window_s=6.0, max_window_s=8.0)
    turns = [one.step] * 9 + [lambda: (one.evaluate(0.5, read=read), one.step())]
    ran = one.run(*turns)
    assert ran.closed.clock == "device"
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.02, rel=0.01)
    assert ran.measured.extra["aside_s"] > 2.0


def test_training_on_another_device_than_the_current_one_is_timed_there(loop: Any) -> None:
    world = World(devices=2)
    world.allocate(GIB, device=1)
    one = loop(world)
    ran = one.run(lambda: one.step(device=1))
    assert one.recorder.run.steps.clock.device == 1
    assert ran.closed.clock == "device"
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.02, rel=0.005)


def test_where_events_miss_the_training_the_synchronised_ends_tell(loop: Any) -> None:
    """Kernels in a queue of their own: the events pass at once, and the clocks disagree."""
    world = World()
    side = world.side_stream()
    one = loop(world)
    ran = one.run(lambda: one.step(stream=side, fetch_s=0.001))
    assert ran.closed.clock == "host"
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.02, rel=0.03)


def _settling(one: Loop, **where: Any) -> Any:
    """Steps of 10 ms, later of 20 ms, as where a full queue runs empty; none is quite like another."""
    count = itertools.count()

    def step() -> None:
        began_ns, now_ns = one.recorder.run.steps.begin_ns, one.world.clock.now()
        starts = not began_ns or now_ns < began_ns + 700_000_000
        jitter = 1.0 + 0.004 * (next(count) * 7 % 11 - 5)
        one.step(fetch_s=0.001, device_s=jitter * (0.01 if starts else 0.02), read=not where, **where)

    return step


def test_of_a_window_whose_start_is_cut_off_the_level_of_the_queue_is_that_where_the_rest_begins(
    loop: Any,
) -> None:
    """That at its opening would be taken off twice: those batches went into what was cut off."""
    one = loop(target_width=0.0)

    def ready() -> int:
        began_ns = one.recorder.run.steps.begin_ns
        since_ns = one.world.clock.now() - began_ns if began_ns else 0
        return 16 if since_ns < 400_000_000 else 9 if since_ns < 1_500_000_000 else 2

    one.boundary.loader.ready = ready
    ran = one.run(_settling(one))
    assert ran.closed.begin_ns > one.recorder.run.steps.begin_ns + 600_000_000
    assert (ran.closed.ready_begin, ran.closed.ready_end) == (9, 2)


def test_where_nobody_could_look_when_the_rest_begins_the_level_of_the_queue_is_not_reported(
    loop: Any,
) -> None:
    one = loop(target_width=0.0)
    one.boundary.loader.ready = lambda: None if one.recorder.run.steps.begin_ns else 9
    ran = one.run(_settling(one))
    assert ran.closed.begin_ns > one.recorder.run.steps.begin_ns + 600_000_000
    assert (ran.closed.ready_begin, ran.closed.ready_end) == (None, None)


def test_of_a_whole_window_the_level_of_the_queue_is_reported_at_both_ends(loop: Any) -> None:
    one = loop(target_width=0.0)
    one.boundary.loader.ready = lambda: 9
    jitter = itertools.cycle((0.019, 0.021, 0.02))
    ran = one.run(lambda: one.step(device_s=next(jitter), read=True))
    assert ran.closed.begin_ns == one.recorder.run.steps.begin_ns
    assert (ran.closed.ready_begin, ran.closed.ready_end) == (9, 9)


def test_by_the_hosts_clock_a_start_is_not_cut_off_and_the_window_is_not_called_steady(loop: Any) -> None:
    world = World(queue=6)
    one = loop(world, target_width=0.0)
    ran = one.run(_settling(one, stream=world.side_stream()))
    assert ran.closed.clock == "host"
    assert ran.closed.begin_ns == one.recorder.run.steps.begin_ns
    assert ran.closed.steady == "no_steady_state"


def test_a_script_that_ends_first_is_timed_to_its_last_step_and_not_to_its_end(loop: Any) -> None:
    one = loop(min_window_s=60.0, max_window_s=60.0, min_steps=10_000)
    for _ in range(200):
        one.step()
    one.world.host(30.0)  # it writes a checkpoint
    ran = one.finish()
    assert ran.closed.ended == "script_end"
    assert ran.closed.clock == "device"
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.02, rel=0.01)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered", "cuda_fatal"),
        ("CUDA error: device-side assert triggered", "cuda_fatal"),
        ("CUDA error: out of memory", "oom_cuda"),
    ],
)
def test_a_kernels_error_that_comes_to_light_at_our_events_keeps_its_name(
    loop: Any, text: str, kind: str
) -> None:
    one = loop()
    for _ in range(20):
        one.step()
    one.world.error = RuntimeError(text)
    with pytest.raises(BaseException) as ending:
        one.pass_boundary()
    assert type(ending.value).__name__ == "Over"
    broke = one.ran().broke
    assert broke is not None
    assert (broke.kind, broke.message) == (kind, text)


def test_an_error_of_our_counting_is_no_error_of_the_device(loop: Any) -> None:
    one = loop()
    one.boundary.loader.take_samples = lambda: "many"
    ran = one.run(one.step, most=2)
    assert ran.broke is not None
    assert ran.broke.kind == "no_metric"


def test_fetching_raises_nothing_where_the_device_is_broken(loop: Any) -> None:
    one = loop()
    for _ in range(5):
        one.step()
    one.world.error = RuntimeError("CUDA error: unspecified launch failure")
    one.fetch(0.001)
    one.state.evaluates(one.world.clock.now())
    one.state.trains(one.world.clock.now())
    one.boundary.release()


def test_what_goes_into_a_cuda_graph_is_neither_counted_nor_requested(loop: Any) -> None:
    one = loop()
    for _ in range(3):
        one.step()
    recorded, steps = one.world.recorded, one.state.steps
    one.world.capturing = True
    one.pass_boundary()
    one.world.capturing = False
    assert (one.world.recorded, one.state.steps) == (recorded, steps)
    one.state.losses.clear()
    ran = one.run(one.step)
    assert ran.closed.clock == "device"


def test_memory_is_the_allocators_peak_on_the_fullest_device(loop: Any) -> None:
    world = World(devices=2)
    world.allocate(2 * GIB, device=0)
    world.allocate(5 * GIB, device=1)
    world.free(4 * GIB, device=1)
    one = loop(world)
    ran = one.run(one.step)
    assert ran.closed.allocator_peak_bytes == 5 * GIB
    assert ran.measured.memory.peak_bytes == 5 * GIB
    assert ran.measured.memory.limit == world.total_bytes
    assert ran.closed.counters["allocated_peak_bytes"] == 5 * GIB
    assert [d.uuid for d in ran.reported.facts.devices] == ["GPU-0abc", "GPU-1abc"]
    assert ran.reported.facts.devices[0].capability == (9, 0)


def test_an_allocator_at_its_limit_inside_the_window_is_a_cliff(loop: Any) -> None:
    one = loop()
    one.world.allocate(GIB, retry=True)  # kernels are tried out, and one wanted too much
    ran = one.run(one.step)
    assert ran.closed.counters["alloc_retries"] == 0
    assert "alloc_cliff" not in ran.measured.contamination.flags


def test_retries_inside_the_window_are_reported(loop: Any) -> None:
    one = loop(target_width=0.0)

    def step() -> None:
        if one.recorder.run.steps.begin_ns:
            one.world.allocate(0, retry=True)
        one.step()

    one.world.allocate(GIB)
    ran = one.run(step)
    assert ran.closed.counters["alloc_retries"] > 10
    assert "alloc_cliff" in ran.measured.contamination.flags
    assert any(row.mark & 32 for row in ran.reported.rows)


def test_the_window_waits_for_an_allocator_that_still_grows_but_not_for_ever(loop: Any) -> None:
    one = loop()

    def step() -> None:
        one.world.allocate(1024)
        one.step()

    ran = one.run(step)
    assert one.recorder.run._growths == 3
    assert ran.closed.clock == "device"


def test_a_loss_that_broke_in_warm_up_costs_no_window(loop: Any) -> None:
    one = loop()
    one.loss = math.nan
    ran = one.run(one.step)
    assert ran.broke is not None
    assert ran.broke.kind == "diverged"
    assert not ran.reported.closed


def test_a_loss_that_breaks_inside_the_window_is_found_when_it_is_read(loop: Any) -> None:
    one = loop()

    def step() -> None:
        one.loss = math.nan if one.recorder.run.steps.begin_ns else 1.0
        one.step()

    ran = one.run(step)
    assert ran.broke is not None
    assert ran.broke.kind == "diverged"


def test_a_single_loss_that_overflowed_is_passed_over_and_not_reported(loop: Any) -> None:
    one, seen = loop(), []

    def step() -> None:
        seen.append(1)
        one.loss = math.inf if len(seen) == 20 else 1.0
        one.step()

    ran = one.run(step)
    assert ran.broke is None
    assert ran.closed.loss
    assert all(point.loss == 1.0 for point in ran.closed.loss)
    assert ran.measured.loss == ran.closed.loss


def test_a_single_loss_that_overflowed_where_the_window_opens_is_passed_over_too(loop: Any) -> None:
    first, opened = loop(), list[bool]()

    def step() -> None:
        first.step()
        opened.append(bool(first.recorder.run.steps.begin_ns))

    first.run(step)
    one, count = loop(), itertools.count()

    def again() -> None:
        one.loss = math.inf if next(count) == opened.index(True) else 1.0
        one.step()

    assert one.run(again).broke is None


def test_without_a_device_the_hosts_clock_stands_alone(loop: Any) -> None:
    world = World(clock=Virtual())
    world.initialized = False
    one = loop(world)
    ran = one.run(lambda: one.world.host(0.02) or one.step(device_s=0.0, fetch_s=0.005))
    assert ran.closed.clock == ""
    assert ran.closed.allocator_peak_bytes is None
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.025, rel=0.01)
    assert world.recorded == 0


@pytest.mark.parametrize("on_device", [False, True])
def test_a_run_whose_time_ends_in_its_warm_up_is_measured_over_the_steps_that_it_had(
    loop: Any, on_device: bool
) -> None:
    world = World() if on_device else World(clock=Virtual())
    world.initialized = on_device
    one = loop(world, deadline_s=18.0, max_window_s=60.0)

    def step() -> None:
        one.world.host(0.0 if on_device else 4.0)
        one.step(device_s=4.0 if on_device else 0.0, read=on_device)

    ran = one.run(step)
    assert (ran.closed.ended, ran.closed.short) == ("limit", True)
    assert ran.measured.steps == 4
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 4.0, rel=0.01)
    assert ran.reported.facts is not None


def test_a_window_that_holds_enough_when_its_time_is_over_is_measured(loop: Any) -> None:
    one = loop(deadline_s=12.0, max_window_s=100.0, min_steps=10_000)
    ran = one.run(lambda: one.step(device_s=0.5, read=True))
    assert ran.closed.ended == "limit"
    assert ran.measured.steps >= 6
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.5, rel=0.01)


# Runs that are shorter than a warm-up, and runs that are hopeless.


def test_a_run_of_a_few_steps_is_timed_by_the_device_without_its_first_ones(loop: Any) -> None:
    one = loop()
    one.step(device_s=3.0)
    for _ in range(7):
        one.step(device_s=0.5)
    ran = one.finish()
    assert ran.closed.short
    assert (ran.closed.clock, ran.closed.ended) == ("device", "script_end")
    assert ran.measured.steps == 6
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.5, rel=0.001)
    assert ran.measured.throughput.n == 6
    assert "short" in ran.measured.contamination.flags


def test_where_events_miss_a_short_run_it_is_timed_from_its_first_step_to_its_last(loop: Any) -> None:
    world = World()
    side = world.side_stream()
    one = loop(world, deadline_s=0.3, max_window_s=60.0)
    ran = one.run(lambda: one.step(fetch_s=0.05, device_s=0.8, stream=side))
    assert (ran.closed.clock, ran.closed.short) == ("host", True)
    assert ran.measured.steps == one.state.steps - 1
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.8, rel=0.05)


def test_a_single_step_is_no_measurement(loop: Any) -> None:
    one = loop()
    one.step()
    ran = one.finish()
    assert not ran.reported.closed
    assert ran.reported.done is not None
    assert (ran.reported.done.why, ran.reported.done.steps) == ("script_end", 1)


def on_host(loop: Any, **fidelity: Any) -> Loop:
    world = World(clock=Virtual())
    world.initialized = False
    return loop(world, **fidelity)


def test_two_steps_are_a_measurement_of_which_the_interval_says_nothing(loop: Any) -> None:
    one = on_host(loop)
    for _ in range(2):
        one.world.host(0.5)
        one.step(device_s=0.0)
    ran = one.finish()
    assert ran.measured.steps == 1
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.5, rel=0.001)
    assert (ran.measured.throughput.low, ran.measured.throughput.high) == (0.0, math.inf)


def test_steps_that_all_evaluate_are_timed_whole(loop: Any) -> None:
    one = on_host(loop)
    for _ in range(3):
        one.world.host(0.5)
        one.state.evaluates(one.world.clock.now())
        one.step(device_s=0.0)
    ran = one.finish()
    assert ran.measured.steps == 2
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.5, rel=0.001)


def test_an_evaluation_between_short_epochs_is_taken_off(loop: Any) -> None:
    one = on_host(loop)
    for step in range(8):
        if step == 4:
            one.state.evaluates(one.world.clock.now())
            one.world.host(9.0)
            one.state.trains(one.world.clock.now())
            one.state.mark |= LOADER
            one.world.host(0.2)
        one.world.host(0.5)
        one.step(device_s=0.0)
    ran = one.finish()
    assert ran.measured.steps == 4, "the whole second epoch"
    assert ran.measured.throughput.value == pytest.approx(4 * SAMPLES / 2.2, rel=0.001)


def test_steps_of_an_optimizer_that_fell_silent_are_not_timed(loop: Any) -> None:
    one = on_host(loop, min_window_s=60.0, max_window_s=60.0)
    first = one.anchor
    for step in range(26):
        if step == 10:
            one.anchor = Anchor()
        one.world.host(0.4 if step < 10 else 0.05)
        one.step(device_s=0.0)
    ran = one.finish()
    assert first is not one.anchor
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.05, rel=0.01)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_run_that_is_far_too_slow_ends_after_a_few_steps(loop: Any, on_device: bool) -> None:
    fidelity = {"dominated_below": SAMPLES / 0.1, "min_window_s": 30.0, "max_window_s": 60.0}
    one = loop(**fidelity) if on_device else on_host(loop, **fidelity)

    def step() -> None:
        one.world.host(0.0 if on_device else 1.0)
        one.step(device_s=1.0 if on_device else 0.0, read=on_device)

    ran = one.run(step)
    assert ran.closed.ended == "dominated"
    assert ran.closed.short
    assert one.state.steps <= 6
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 1.0, rel=0.01)
    assert ran.measured.throughput.n >= 3


def test_a_run_whose_steps_outlast_a_window_ends_after_two_of_them(loop: Any) -> None:
    one = on_host(loop, dominated_below=SAMPLES / 0.1, max_window_s=4.0)
    ran = one.run(lambda: one.world.host(20.0) or one.step(device_s=0.0))
    assert ran.closed.ended == "dominated"
    assert one.state.steps == 4


def test_a_run_that_becomes_far_too_slow_ends_inside_its_window(loop: Any) -> None:
    one = on_host(loop, dominated_below=SAMPLES / 0.1, min_window_s=600.0, max_window_s=900.0)
    ran = one.run(lambda: one.world.host(0.05 if one.state.steps < 60 else 1.0) or one.step(device_s=0.0))
    assert ran.closed.ended == "dominated"
    assert one.state.steps < 70


def test_a_slow_start_alone_ends_nothing(loop: Any) -> None:
    one = on_host(loop, dominated_below=SAMPLES / 0.1)
    ran = one.run(lambda: one.world.host(1.0 if one.state.steps < 4 else 0.05) or one.step(device_s=0.0))
    assert ran.closed.ended != "dominated"
    assert not ran.closed.short


def test_a_run_that_is_a_little_slower_is_measured_in_full(loop: Any) -> None:
    one = on_host(loop, dominated_below=SAMPLES / 0.1, target_width=1e-9)
    ran = one.run(lambda: one.world.host(0.15) or one.step(device_s=0.0))
    assert not ran.closed.short
    assert ran.measured.window_s >= FIDELITY.min_window_s * 0.9


def test_the_warm_up_of_a_queue_is_no_longer_than_the_longest_window(loop: Any) -> None:
    one = on_host(loop, min_window_s=0.5, max_window_s=2.0, min_steps=3)
    level = itertools.count(500, -1)
    one.recorder.sources.loader.ready = lambda: next(level)  # it falls from step to step
    one.recorder.sources.loader.queue_batches = lambda: 12
    one.recorder.sources.loader.observed = lambda name: 4 if name == "num_workers" else None
    ran = one.run(lambda: one.world.host(0.1) or one.step(device_s=0.0))
    assert ran.closed.unsettled
    assert (ran.closed.begin_ns - ran.closed.first_step_ns) / 1e9 < 2.6
    assert "unsettled" in ran.measured.contamination.flags
    assert ran.measured.window_s <= 2.5


def test_a_queue_that_has_settled_is_not_marked(loop: Any) -> None:
    one = on_host(loop, min_window_s=0.5, max_window_s=2.0, min_steps=3)
    one.recorder.sources.loader.ready = lambda: 5
    ran = one.run(lambda: one.world.host(0.02) or one.step(device_s=0.0))
    assert not ran.closed.unsettled
    assert "unsettled" not in ran.measured.contamination.flags
