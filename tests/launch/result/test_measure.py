"""Folding events and outside samples into a Measurement, against streams whose truth is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from autotune.launch.result.host_samples import DeviceReading, HostSample, HostSamples, read_samples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.change import Change, Patch
from autotune.model.facts import DeviceFacts, LoaderFacts, OptimizerFacts, RunFacts
from autotune.model.measurement import LossPoint, Measurement, Reading
from autotune.model.trial import STOPPED_S, Failure, FailureKind
from autotune.protocol.events import Closed, Compiling, Hello, Probed, ReadBack, StepRow, Steps

S = 1_000_000_000
LOADER = LoaderFacts(
    site="t.py:1", batch_size=8, num_workers=2, prefetch_factor=2, pin_memory=False, persistent_workers=False
)


def stream(
    periods_s: list[float], *, wait_frac: float = 0.0, samples: int = 8, **more: Any
) -> ProcessReports:
    """A run that started at 0, ended its first step at 10 s, and then took these periods."""
    reported, at = ProcessReports(), 10 * S
    rows = [StepRow(t_ns=at, wait_ns=0, samples=samples)]
    for period in periods_s:
        at += int(period * S)
        rows.append(StepRow(t_ns=at, wait_ns=int(period * wait_frac * S), samples=samples, **more))
    reported.take(Steps(rows=tuple(rows)))
    reported.take(ReadBack(facts=RunFacts(samples_source="loader", loader=LOADER)))
    return reported


def close(reported: ProcessReports, **more: Any) -> Closed:
    base: dict[str, Any] = {"ended": "tight", "steady": "steady", "first_step_ns": 10 * S, "compile_s": 0.0}
    return Closed(trial=0, begin_ns=10 * S, end_ns=reported.rows[-1].t_ns, **{**base, **more})


def fold(reported: ProcessReports, closed: Closed | None = None, **outside: Any) -> Measurement:
    found = measure(closed or close(reported), reported, HostSamples(start_ns=0, **outside))
    assert isinstance(found, Measurement), found
    return found


def test_throughput_is_the_ratio_of_sums_with_the_stalls_in_it() -> None:
    # Every second step waits: the median period would claim 39 % more.
    reported = stream([0.1, 0.3] * 40, wait_frac=0.5)
    found = fold(reported)
    assert found.throughput.value == pytest.approx(8 / 0.2)
    assert found.throughput.unit == "samples/s"
    assert found.throughput.low < 40 < found.throughput.high
    assert found.step_time_s.value == pytest.approx(0.2)
    assert found.data_wait_frac == pytest.approx(0.5)
    assert (found.steps, found.warmup_steps, found.effective_batch) == (80, 1, 8)
    assert found.window_s == pytest.approx(16.0)
    assert "bursty" not in fold(stream([0.2] * 40)).contamination.flags


def test_the_interval_covers_a_known_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(100):
        noise = random.Random(seed)
        found = fold(stream([0.05 * math.exp(noise.gauss(0, 0.2)) for _ in range(150)]))
        truth = 8 / (0.05 * math.exp(0.02))
        hits += found.throughput.low <= truth <= found.throughput.high
    assert hits >= 88


def test_the_rate_that_a_run_began_with_is_kept_where_it_was_seen() -> None:
    reported = stream([0.1] * 30)
    assert "learning_rate" not in fold(reported).extra
    seen = OptimizerFacts(name="SGD", rates=(0.01, 0.1))
    reported.take(ReadBack(facts=RunFacts(samples_source="loader", loader=LOADER, optimizer=seen)))
    assert fold(reported).extra["learning_rate"] == 0.1


def test_what_was_found_out_after_the_window_is_kept_beside_it() -> None:
    reported = stream([0.02] * 200)
    reported.take(Probed(figures={"ceiling_reduced_s": 0.01}))
    assert fold(reported).extra["ceiling_reduced_s"] == 0.01


def test_a_few_steps_are_a_block_each_and_their_interval_is_wide() -> None:
    reported = stream([1.0, 1.1, 0.9, 1.0])
    found = fold(reported, close(reported, short=True))
    assert found.throughput.n == 4
    assert found.throughput.value == pytest.approx(8.0)
    assert 0.05 < found.throughput.relative_width < 1.0
    assert "short" in found.contamination.flags
    two = fold(stream([1.0, 1.1])).throughput
    assert two.n == 2
    assert two.relative_width > found.throughput.relative_width
    assert all(math.isfinite(end) for end in (two.low, two.high))


def test_one_step_has_a_rate_and_no_interval() -> None:
    found = fold(stream([0.5]))
    assert (found.throughput.value, found.throughput.low) == (pytest.approx(16.0), 0.0)
    assert found.throughput.high == found.step_time_s.high == math.inf


def test_a_window_that_opened_before_its_queue_had_settled_carries_a_mark() -> None:
    reported = stream([0.1] * 40)
    assert "unsettled" in fold(reported, close(reported, unsettled=True)).contamination.flags
    assert not {"unsettled", "short"} & set(fold(reported).contamination.flags)


def test_a_window_of_half_a_second_has_an_interval() -> None:
    noise = random.Random(3)
    found = fold(stream([0.01 * math.exp(noise.gauss(0, 0.1)) for _ in range(50)]))
    assert found.throughput.n >= 5
    assert 0.0 < found.throughput.relative_width < 0.5


def test_without_confirmed_samples_steps_are_counted() -> None:
    reported = stream([0.1] * 30)
    reported.take(ReadBack(facts=RunFacts(samples_source="input", loader=LOADER)))
    found = fold(reported)
    assert found.throughput.unit == "steps/s"
    assert found.throughput.value == pytest.approx(10)


def test_samples_that_the_scripts_own_option_says_are_counted() -> None:
    reported = stream([0.1] * 30)
    reported.take(ReadBack(facts=RunFacts(samples_source="option")))
    found = fold(reported)
    assert found.throughput.unit == "samples/s"
    assert found.throughput.value == pytest.approx(80)


def test_a_queue_that_was_still_draining_is_taken_off() -> None:
    reported = stream([0.1] * 40)
    drained = fold(reported, close(reported, ready_begin=12, ready_end=2))
    assert drained.throughput.value == pytest.approx(80 * 30 / 40)
    assert drained.step_time_s.value == pytest.approx(0.1 * 40 / 30)
    for begin, end in ((3, 2), (2, 12), (None, 2)):
        assert fold(
            reported, close(reported, ready_begin=begin, ready_end=end)
        ).throughput.value == pytest.approx(80)


def test_a_window_that_lived_on_what_lay_ready_says_so() -> None:
    """Of what the loader gives by itself it reports nothing; what it read is no lower bound of anything."""
    reported = stream([0.1] * 10)
    found = fold(reported, close(reported, ready_begin=12, ready_end=1))
    assert "from_queue" in found.contamination.flags
    assert (found.throughput.value, found.throughput.low) == (pytest.approx(80), 0.0)
    assert found.step_time_s.high == math.inf
    for ready in ((12, 4), (1, 0), (None, 1)):
        usual = fold(reported, close(reported, ready_begin=ready[0], ready_end=ready[1]))
        assert "from_queue" not in usual.contamination.flags
        assert usual.throughput.low > 0


def test_a_compile_inside_the_window_spoils_its_block_only() -> None:
    reported = stream([0.1] * 60)
    rows = list(reported.rows)
    at = rows[30].t_ns
    rows[30:] = [
        StepRow(t_ns=r.t_ns + 5 * S, wait_ns=0, samples=8, mark=2 if r.t_ns == at else 0) for r in rows[30:]
    ]
    reported.rows = rows
    found = fold(reported)
    assert found.throughput.value == pytest.approx(80)
    assert "recompiled" in found.contamination.flags
    assert found.extra["dirty_steps"] == 1


def test_compiling_all_the_time_is_what_the_config_costs() -> None:
    reported = stream([0.1, 0.5] * 30)
    reported.rows = [
        StepRow(t_ns=r.t_ns, wait_ns=0, samples=8, mark=2 * (i % 2)) for i, r in enumerate(reported.rows)
    ]
    assert fold(reported).throughput.value == pytest.approx(8 / 0.3)


def evaluating(every: int, aside_s: float = 2.0) -> ProcessReports:
    """Steps of 0.1 s; each n-th has 2 s more, so much of them known as evaluation."""
    reported = stream([2.1 if i % every == 0 else 0.1 for i in range(1, 121)], wait_frac=0.0)
    reported.rows = [
        StepRow(t_ns=r.t_ns, wait_ns=S // 50, samples=8, mark=int(there), aside_ns=int(aside_s * S * there))
        for i, r in enumerate(reported.rows)
        for there in [i > 0 and i % every == 0]
    ]
    return reported


def test_evaluation_between_steps_is_no_part_of_the_throughput() -> None:
    found = fold(evaluating(20))
    assert found.throughput.value == pytest.approx(80)
    assert found.step_time_s.value == pytest.approx(0.1)
    assert found.data_wait_frac == pytest.approx(0.2)
    assert "bursty" not in found.contamination.flags
    assert found.extra["dirty_steps"] == 0
    assert found.extra["aside_s"] == pytest.approx(12)


def test_what_an_epoch_costs_beside_its_evaluation_counts() -> None:
    """The loader starts again after the evaluation: 0.5 s of the 2.1 s."""
    assert fold(evaluating(20, aside_s=1.5)).throughput.value == pytest.approx(120 * 8 / 15)


@pytest.mark.parametrize("steps", [9, 10, 11, 12])
def test_evaluating_every_second_step_counts_alike_in_windows_of_any_length(steps: int) -> None:
    reported = stream([0.2 if n % 2 == 0 else 0.1 for n in range(steps)])
    reported.rows = [
        replace(row, mark=1, aside_ns=S // 10) if n % 2 else row for n, row in enumerate(reported.rows)
    ]
    assert fold(reported).throughput.value == pytest.approx(80)
    # What the baseline has decided holds, whatever this window looks like.
    decided = fold(reported, close(reported, evaluation_counts=True))
    assert decided.throughput.value < 60
    assert decided.extra["evaluation_counts"] == 1


def test_a_step_whose_evaluation_was_not_seen_to_end_is_set_aside() -> None:
    found = fold(evaluating(20, aside_s=-1 / S))
    assert found.throughput.value == pytest.approx(80)
    assert found.extra["dirty_steps"] == 6


def test_evaluation_in_most_steps_is_what_the_script_does() -> None:
    assert fold(evaluating(1)).throughput.value == pytest.approx(8 / 2.1)


def test_no_step_is_dropped_for_being_slow() -> None:
    reported = stream([0.1] * 50 + [5.0] + [0.1] * 50)
    assert fold(reported).throughput.value == pytest.approx(8 * 101 / 15.0)


def samples(*, foreign: float, own: float, pressure: float, cpus: int = 4) -> dict[str, Any]:
    rows = [
        HostSample(
            t_ns=t * S,
            bytes=1,
            busy_s=(foreign + own) * t,
            own_s=own * t,
            pressure_us=int(pressure * t * 1e6),
        )
        for t in range(8, 20)
    ]
    return {"samples": rows, "cpus": cpus}


@pytest.mark.parametrize(
    ("seen", "contended"),
    [
        ({"foreign": 2.5, "own": 1.4, "pressure": 0.5}, True),
        ({"foreign": 0.02, "own": 3.9, "pressure": 0.9}, False),  # its own threads wait for each other
        ({"foreign": 1.0, "own": 1.0, "pressure": 0.0}, False),  # others run on cores that were free
    ],
)
def test_contention_needs_foreign_cpu_on_a_full_machine(seen: dict[str, float], contended: bool) -> None:
    found = fold(stream([0.1] * 60), **samples(**seen)).contamination
    assert ("cpu_contended" in found.flags) == contended
    assert found.foreign_cpu_frac == pytest.approx(seen["foreign"])
    assert found.pressure_frac == pytest.approx(seen["pressure"], abs=0.01)


def test_run_queue_delay_is_a_share_of_the_window() -> None:
    assert fold(stream([0.1] * 60, queue_ns=S // 50)).contamination.run_queue_frac == pytest.approx(0.2)


def test_what_the_rate_is_without_the_waiting_for_a_core_is_kept_beside_it_where_it_shows() -> None:
    found = fold(stream([0.1] * 60, queue_ns=S // 50))
    assert found.throughput.value == pytest.approx(80)
    assert found.extra["undelayed_throughput"] == pytest.approx(100)
    assert "undelayed_throughput" not in fold(stream([0.1] * 60)).extra
    reported = stream([0.1] * 60, queue_ns=S // 50)
    # Beside an accelerator the host waits without holding anything up.
    assert "undelayed_throughput" not in fold(reported, close(reported, allocator_peak_bytes=7)).extra


def test_memory_compile_and_start_up_are_separate() -> None:
    reported = stream([0.1] * 40)
    for t, began in ((2, True), (3, True), (5, False), (7, False), (11, True), (12, False)):
        reported.take(Compiling(t_ns=t * S, began=began))
    found = fold(
        reported,
        close(reported, compile_s=5.0, allocator_peak_bytes=7),
        peak_bytes=9,
        limit_bytes=11,
        cold=True,
        devices=[DeviceReading(t_ns=11 * S, used_bytes=8, total_bytes=12)],
    )
    assert found.startup_s == pytest.approx(10 - 5)
    assert (found.import_s, found.setup_s) == pytest.approx((0.0, 5.0)), "the process reported no import"
    assert (found.compile_s, found.cold_compile) == (5.0, True)
    assert (found.memory.allocator, found.memory.device, found.memory.pss, found.memory.limit) == (
        7,
        8,
        9,
        12,
    )


def test_imports_set_up_and_warm_up_are_timed_apart() -> None:
    reported = stream([0.1] * 80)
    reported.take(Hello(pid=1, t_ns=1 * S, python="3.11"))
    for t_s, began in ((6, True), (8, False), (11, True), (12, False)):
        reported.take(Compiling(t_ns=t_s * S, began=began))
    closed = replace(close(reported, import_ns=3 * S), begin_ns=14 * S)
    found = fold(reported, closed)
    assert found.import_s == pytest.approx(1 + 3)
    assert found.setup_s == pytest.approx(10 - 2 - 4)
    assert found.warmup_s == pytest.approx(4 - 1)
    assert found.import_s + found.setup_s == pytest.approx(found.startup_s)


def test_steps_beside_the_start_of_the_search_are_set_aside() -> None:
    reported = stream([0.2] * 10 + [0.1] * 40)
    found = fold(reported, disturbed=[(0, 12 * S)])
    assert found.throughput.value == pytest.approx(80.0, rel=0.01)
    assert found.extra["dirty_steps"] >= 10


def test_a_window_that_lay_mostly_beside_the_start_of_the_search_is_run_again() -> None:
    reported = stream([0.1] * 40)
    lost = failed(reported, close(reported), disturbed=[(0, 13 * S)])
    assert lost.kind is FailureKind.CONTENDED
    assert "the search was still starting" in lost.message
    assert lost.kind.repeats > 0


def test_what_the_start_of_the_search_used_is_not_charged_to_neighbours() -> None:
    reported = stream([0.1] * 40)
    samples = [
        HostSample(t_ns=(10 + n) * S, bytes=1, busy_s=2.0 * min(n, 2) + n, own_s=float(n), pressure_us=None)
        for n in range(5)
    ]
    beside = fold(reported, samples=samples, cpus=4)
    assert beside.contamination.foreign_cpu_frac == pytest.approx(1.0)
    apart = fold(reported, samples=samples, cpus=4, disturbed=[(0, 11 * S + S // 2)])
    assert apart.contamination.foreign_cpu_frac == pytest.approx(0.0)


def test_the_device_is_no_part_of_a_run_on_the_cpu_beside_it() -> None:
    reported = stream([0.1] * 40)
    beside = [DeviceReading(t_ns=11 * S, used_bytes=8, total_bytes=12, sm_clock_mhz=300)]
    found = fold(reported, devices=beside, peak_bytes=9, limit_bytes=11)
    assert (found.memory.device, found.memory.peak_bytes, found.memory.limit) == (None, 9, 11)
    assert "sm_clock_mhz" not in found.extra


def test_where_nothing_looks_at_the_device_its_size_is_what_the_process_saw() -> None:
    reported = stream([0.1] * 40)
    device = DeviceFacts(name="NVIDIA H200", uuid="", memory_bytes=140)
    reported.take(ReadBack(facts=RunFacts(samples_source="loader", loader=LOADER, devices=(device,))))
    found = fold(reported, close(reported, allocator_peak_bytes=7), limit_bytes=11)
    assert (found.memory.peak_bytes, found.memory.limit) == (7, 140)


def test_the_peak_is_the_allocators_where_nobody_looked_in_time() -> None:
    reported = stream([0.1] * 40)
    late = [DeviceReading(t_ns=11 * S, used_bytes=8)]
    assert fold(reported, close(reported, allocator_peak_bytes=30), devices=late).memory.peak_bytes == 30


def test_clock_heat_and_power_of_the_window_are_kept() -> None:
    reported = stream([0.1] * 40)
    seen = [
        DeviceReading(t_ns=t * S, sm_clock_mhz=mhz, temperature_c=c, power_w=w, ecc_errors=e)
        for t, mhz, c, w, e in ((2, 210, 30, 70.0, 5), (11, 1900, 60, 600.0, 5), (12, 1800, 64, 640.0, 6))
    ]
    found = fold(reported, close(reported, allocator_peak_bytes=7), devices=seen)
    assert found.extra["sm_clock_mhz"] == pytest.approx(1850)
    assert found.extra["temperature_c"] == 64
    assert found.extra["power_w"] == pytest.approx(620)
    assert "ecc_errors" in found.contamination.flags


def test_the_device_clock_is_used_where_the_process_found_that_it_agrees() -> None:
    ahead = stream([0.02, 0.18] * 30, device_ms=100.0)
    by_device = fold(ahead, close(ahead, clock="device"))
    assert "bursty" not in by_device.contamination.flags
    assert by_device.throughput.value == pytest.approx(80)
    off = stream([0.1] * 30, device_ms=1.0)
    assert fold(off, close(off, clock="host")).throughput.value == pytest.approx(80)


@pytest.mark.parametrize("clock", ["host", "device"])
def test_what_the_device_still_had_to_do_at_the_end_belongs_to_the_window(clock: str) -> None:
    """The host was done with 20 steps after 0.4 s, the device after 2 s."""
    reported = stream([0.02] * 20, device_ms=100.0)
    closed = replace(close(reported, clock=clock), end_ns=12 * S)
    assert fold(reported, closed).throughput.value == pytest.approx(80)


@pytest.mark.parametrize("steady", ["drifting", "no_steady_state"])
def test_no_steady_state_is_kept_with_a_wider_interval(steady: str) -> None:
    reported = stream([0.1, 0.12] * 30)
    normal, wide = fold(reported), fold(reported, close(reported, steady=steady))
    assert wide.throughput.value == normal.throughput.value
    assert wide.throughput.relative_width > 1.4 * normal.throughput.relative_width
    assert steady in wide.contamination.flags


def failed(reported: ProcessReports, closed: Closed, changes: Any = (), **outside: Any) -> Failure:
    found = measure(closed, reported, HostSamples(start_ns=0, **outside), changes)
    assert isinstance(found, Failure)
    return found


def test_a_knob_that_did_not_take_effect_is_rejected_with_its_way() -> None:
    reported = stream([0.1] * 30)
    readings = (
        Reading(knob="threads", wanted=None, found=2, status="asis"),
        Reading(knob="tf32", wanted=True, found=False, status="refused", reason="no such hardware"),
    )
    change = Change(knob="tf32", value=True, spelling=Patch())
    found = failed(reported, close(reported, readings=readings), [change])
    assert found.kind is FailureKind.CONFIG_REJECTED
    assert (found.evidence["knob"], found.evidence["how"]) == ("tf32", "patch")
    assert "no such hardware" in found.message


@pytest.mark.parametrize(
    "more",
    [{"loss": (LossPoint(samples=8, loss=math.nan, t_s=0.0),)}, {"skipped_scaler_steps": 31}],
    ids=["nan", "scaler"],
)
def test_divergence_is_a_failure_that_keeps_its_throughput(more: Any) -> None:
    reported = stream([0.1] * 30)
    found = failed(reported, close(reported, **more))
    assert found.kind is FailureKind.DIVERGED
    assert found.readings is not None
    assert found.readings.throughput.value == pytest.approx(80)


def test_a_single_loss_that_overflowed_is_no_divergence() -> None:
    """The trial itself went on after it, and leaves it out of what it reports."""
    reported = stream([0.1] * 30)
    losses = [1.0, math.inf, 1.0, math.nan, math.nan, 1.0]

    def points(*values: float) -> tuple[LossPoint, ...]:
        return tuple(LossPoint(samples=8 * n, loss=value, t_s=0.1 * n) for n, value in enumerate(values))

    assert fold(reported, close(reported, loss=points(*losses[:3]))).throughput.value == pytest.approx(80)
    assert failed(reported, close(reported, loss=points(*losses))).evidence["samples"] == 32
    assert failed(reported, close(reported, loss=points(*losses[:2]))).kind is FailureKind.DIVERGED


def test_a_scaler_that_skips_more_than_half_of_the_windows_own_steps_never_settled() -> None:
    reported = stream([0.1] * 30)
    assert failed(reported, close(reported, skipped_scaler_steps=16)).kind is FailureKind.DIVERGED
    assert fold(reported, close(reported, skipped_scaler_steps=15)).extra["skipped_scaler_steps"] == 15
    # Some went on after the window, for the loss, and were counted on.
    longer = close(reported, skipped_scaler_steps=60, counters={"guarded_steps": 200.0})
    assert fold(reported, longer).extra["skipped_scaler_steps"] == 60


@pytest.mark.parametrize(("word", "kind"), [("foreign", "contended"), ("throttled", "throttled")])
def test_a_device_lost_for_most_of_the_window_is_no_measurement(word: str, kind: str) -> None:
    reported = stream([0.1] * 40)

    def seen(bad: int) -> list[DeviceReading]:
        return [DeviceReading(t_ns=int((10.2 + 0.2 * i) * S), **{word: i < bad}) for i in range(18)]

    assert failed(reported, close(reported), devices=seen(10)).kind.label == kind
    few = fold(reported, devices=seen(2))
    assert few.extra["dirty_steps"] > 0
    assert set(few.contamination.flags) == {"foreign_gpu" if word == "foreign" else "throttled"}


def test_a_neighbour_of_which_nothing_is_known_is_a_flag_and_costs_no_step() -> None:
    reported = stream([0.1] * 40)
    seen = [DeviceReading(t_ns=int((10.2 + 0.2 * i) * S), resident=True) for i in range(18)]
    found = fold(reported, devices=seen)
    assert found.contamination.flags == ("gpu_shared",)
    assert found.extra["dirty_steps"] == 0


def test_how_even_the_steps_were_is_kept_as_quantiles() -> None:
    found = fold(stream([0.1] * 60 + [0.2] * 30 + [0.4] * 10)).extra
    kept = [found[f"step_s_p{share}"] for share in ("05", "25", "50", "75", "95")]
    assert kept == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.4])
    assert "step_s_p50" not in fold(stream([0.5])).extra, "one step has no quantiles"


def test_a_window_without_a_step_is_no_metric() -> None:
    reported = stream([])
    assert failed(reported, close(reported)).kind is FailureKind.NO_METRIC


def test_the_step_limit_and_compile_state_follow_the_stream() -> None:
    reported = stream([0.1] * 5 + [9.0] + [0.1] * 5)
    assert reported.median_step_s() == pytest.approx(0.1)
    assert not reported.compiling
    reported.take(Compiling(t_ns=S, began=True))
    assert reported.compiling
    assert reported.compile_s_before(4 * S) == pytest.approx(3.0)


def test_time_in_which_the_script_was_stopped_is_set_aside_and_marked() -> None:
    reported = stream([0.1] * 50 + [20.0] + [0.1] * 50)
    looks = [
        HostSample(t_ns=int(t * S), bytes=0, busy_s=None, own_s=0.0, pressure_us=None) for t in (10, 14.9, 36)
    ]
    unseen = fold(reported, samples=looks)
    assert unseen.throughput.value == pytest.approx(8 * 101 / 30.0, rel=0.01)
    assert "stopped" not in unseen.contamination.flags
    found = fold(reported, samples=[*looks[:2], replace(looks[2], stopped=True)])
    assert found.throughput.value == pytest.approx(80.0, rel=0.01)
    assert found.contamination.flags.count("stopped") == 1
    assert found.extra[STOPPED_S] == pytest.approx(21.1)
    assert found.extra["step_s_p95"] == pytest.approx(0.1)
    assert found.extra["aside_s"] == pytest.approx(21.0, abs=0.3)


@pytest.mark.parametrize("periods", [[20.0, 0.01], [0.1, 0.1, 20.0], [0.05] * 3 + [20.0] + [0.05] * 4])
def test_a_window_of_which_a_stop_has_left_hardly_a_step_is_measured_again(periods: list[float]) -> None:
    """With every step stopped, all counted: the script seemed 100 times slower than what came after it."""
    reported = stream(periods)
    looks = [
        HostSample(t_ns=int(t * S), bytes=0, busy_s=None, own_s=0.0, pressure_us=None, stopped=t > 11)
        for t in (9.9, 10.1, 30.5, 31)
    ]
    lost = failed(reported, close(reported), samples=looks)
    assert lost.kind is FailureKind.CONTENDED
    assert "stopped" in lost.message
    assert lost.kind.repeats > 0


def test_the_wait_for_data_is_a_share_of_the_time_in_which_the_script_ran() -> None:
    reported = stream([0.1] * 50 + [20.0] + [0.1] * 50)
    reported.rows[:] = [replace(row, wait_ns=S // 20) for row in reported.rows]
    looks = [
        HostSample(t_ns=int(t * S), bytes=0, busy_s=None, own_s=0.0, pressure_us=None, stopped=t > 20)
        for t in (10, 14.9, 36)
    ]
    assert fold(reported, samples=looks).data_wait_frac == pytest.approx(0.5, rel=0.02)


def test_a_stop_before_the_window_is_no_time_of_start_up_or_warm_up() -> None:
    reported = stream([0.1] * 100)
    closed = replace(close(reported), begin_ns=15 * S)
    looks = [
        HostSample(t_ns=int(t * S), bytes=0, busy_s=None, own_s=0.0, pressure_us=None, stopped=t in (8, 14))
        for t in (0, 2, 8, 11, 14, 20)
    ]
    found = fold(reported, closed, samples=looks)
    assert found.startup_s == pytest.approx(10 - 6)
    assert found.warmup_s == pytest.approx(5 - 3)
    assert found.extra[STOPPED_S] == pytest.approx(9)
    assert "stopped" not in found.contamination.flags


def test_of_what_was_seen_until_a_moment_memory_ends_there_and_a_stop_shows_in_the_sample_after_it() -> None:
    def sample(t_ns: int, used: int, *, stopped: bool = False) -> HostSample:
        return HostSample(t_ns=t_ns, bytes=used, busy_s=None, own_s=0.0, pressure_us=None, stopped=stopped)

    seen = HostSamples(
        start_ns=0,
        samples=(sample(10, 5), sample(20, 7), sample(30, 90, stopped=True), sample(40, 90)),
        peak_bytes=90,
    ).until(25)
    assert seen.peak_bytes == 7
    assert seen.stops == ((20, 30),)
    assert len(seen.samples) == 3


def test_samples_of_an_older_guard_know_of_no_stop() -> None:
    rows = [[1, 0, None, 0.0, None], [2, 0, None, 0.0, None, None, None, 1]]
    assert [s.stopped for s in read_samples(rows)] == [False, True]
