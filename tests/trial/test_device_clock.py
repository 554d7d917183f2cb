"""Step timing, waiting and memory on a device that works behind the host's back (a fake one)."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from device_loop import FIDELITY, SAMPLES, Loop
from fake_cuda import GIB, Virtual, World


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
    assert one.recorder._clock.device == 1
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
        began_ns, now_ns = one.recorder._begin_ns, one.world.clock.now()
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
        began_ns = one.recorder._begin_ns
        since_ns = one.world.clock.now() - began_ns if began_ns else 0
        return 16 if since_ns < 400_000_000 else 9 if since_ns < 1_500_000_000 else 2

    one.boundary.loader.ready = ready
    ran = one.run(_settling(one))
    assert ran.closed.begin_ns > one.recorder._begin_ns + 600_000_000
    assert (ran.closed.ready_begin, ran.closed.ready_end) == (9, 2)


def test_where_nobody_could_look_when_the_rest_begins_the_level_of_the_queue_is_not_told(loop: Any) -> None:
    one = loop(target_width=0.0)
    one.boundary.loader.ready = lambda: None if one.recorder._begin_ns else 9
    ran = one.run(_settling(one))
    assert ran.closed.begin_ns > one.recorder._begin_ns + 600_000_000
    assert (ran.closed.ready_begin, ran.closed.ready_end) == (None, None)


def test_of_a_whole_window_the_level_of_the_queue_is_told_at_both_ends(loop: Any) -> None:
    one = loop(target_width=0.0)
    one.boundary.loader.ready = lambda: 9
    jitter = itertools.cycle((0.019, 0.021, 0.02))
    ran = one.run(lambda: one.step(device_s=next(jitter), read=True))
    assert ran.closed.begin_ns == one.recorder._begin_ns
    assert (ran.closed.ready_begin, ran.closed.ready_end) == (9, 9)


def test_by_the_hosts_clock_a_start_is_not_cut_off_and_the_window_is_not_called_steady(loop: Any) -> None:
    world = World(queue=6)
    one = loop(world, target_width=0.0)
    ran = one.run(_settling(one, stream=world.side_stream()))
    assert ran.closed.clock == "host"
    assert ran.closed.begin_ns == one.recorder._begin_ns
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


def test_what_goes_into_a_cuda_graph_is_neither_counted_nor_asked_for(loop: Any) -> None:
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
    assert [d.uuid for d in ran.told.facts.devices] == ["GPU-0abc", "GPU-1abc"]
    assert ran.told.facts.devices[0].capability == (9, 0)


def test_an_allocator_at_its_limit_inside_the_window_is_a_cliff(loop: Any) -> None:
    one = loop()
    one.world.allocate(GIB, retry=True)  # kernels are tried out, and one wanted too much
    ran = one.run(one.step)
    assert ran.closed.counters["alloc_retries"] == 0
    assert "alloc_cliff" not in ran.measured.contamination.flags


def test_retries_inside_the_window_are_told(loop: Any) -> None:
    one = loop(target_width=0.0)

    def step() -> None:
        if one.recorder._begin_ns:
            one.world.allocate(0, retry=True)
        one.step()

    one.world.allocate(GIB)
    ran = one.run(step)
    assert ran.closed.counters["alloc_retries"] > 10
    assert "alloc_cliff" in ran.measured.contamination.flags
    assert any(row.mark & 32 for row in ran.told.rows)


def test_the_window_waits_for_an_allocator_that_still_grows_but_not_for_ever(loop: Any) -> None:
    one = loop()

    def step() -> None:
        one.world.allocate(1024)
        one.step()

    ran = one.run(step)
    assert one.recorder._growths == 3
    assert ran.closed.clock == "device"


def test_a_loss_that_broke_in_warm_up_costs_no_window(loop: Any) -> None:
    one = loop()
    one.loss = math.nan
    ran = one.run(one.step)
    assert ran.broke is not None
    assert ran.broke.kind == "diverged"
    assert not ran.told.closed


def test_a_loss_that_breaks_inside_the_window_is_found_when_it_is_read(loop: Any) -> None:
    one = loop()

    def step() -> None:
        one.loss = math.nan if one.recorder._begin_ns else 1.0
        one.step()

    ran = one.run(step)
    assert ran.broke is not None
    assert ran.broke.kind == "diverged"


def test_a_single_loss_that_overflowed_is_passed_over_and_not_told(loop: Any) -> None:
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
        opened.append(bool(first.recorder._begin_ns))

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


def test_a_window_that_the_end_of_its_time_cuts_to_a_few_steps_is_no_measurement(loop: Any) -> None:
    world = World(clock=Virtual())
    world.initialized = False
    one = loop(world, deadline_s=30.0)
    ran = one.run(lambda: one.world.host(4.0) or one.step(device_s=0.0))
    assert one.recorder._begin_ns
    assert len(one.recorder._rows) == 2
    assert not ran.told.closed
    assert ran.told.done is not None
    assert ran.told.done.why == "deadline"
    assert ran.told.facts is not None


def test_on_a_device_too_few_steps_are_no_measurement_either(loop: Any) -> None:
    one = loop(deadline_s=30.0)
    ran = one.run(lambda: one.step(device_s=4.0, read=True))
    assert not ran.told.closed
    assert ran.told.done is not None
    assert ran.told.done.why == "deadline"


def test_a_window_that_holds_enough_when_its_time_is_over_is_measured(loop: Any) -> None:
    one = loop(deadline_s=12.0, max_window_s=100.0, min_steps=10_000)
    ran = one.run(lambda: one.step(device_s=0.5, read=True))
    assert ran.closed.ended == "limit"
    assert ran.measured.steps >= 6
    assert ran.measured.throughput.value == pytest.approx(SAMPLES / 0.5, rel=0.01)
