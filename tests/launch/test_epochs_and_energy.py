"""What a window reports of epoch starts and of energy counters."""

from __future__ import annotations

import itertools

import pytest

from autotune.devices.energy_counters import EnergySample
from autotune.launch.result.host_samples import DeviceReading, HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.facts import DeviceFacts, RunFacts
from autotune.model.measurement import Measurement
from autotune.protocol.events import Closed, ReadBack, StepRow, Steps
from autotune.protocol.marks import COMPILE, EVALUATION, LOADER

S = 1_000_000_000


def run(
    marked: dict[int, tuple[int, float, int]], *, cuda: bool = False, energies=(), devices=()
) -> Measurement:
    """Forty steps of 0.1 s; a marked one has bits, seconds more, and an evaluation of so many ns."""
    reported, at = ProcessReports(), 0
    rows = [StepRow(t_ns=0, wait_ns=0, samples=8)]
    for number in range(1, 41):
        bits, more_s, aside_ns = marked.get(number, (0, 0.0, 0))
        at += int((0.1 + more_s) * S) + max(0, aside_ns)
        rows.append(StepRow(t_ns=at, wait_ns=0, samples=8, mark=bits, aside_ns=aside_ns))
    reported.take(Steps(rows=tuple(rows)))
    known = (DeviceFacts(name="GPU", uuid="GPU-1", memory_bytes=1),) if cuda else ()
    reported.take(ReadBack(facts=RunFacts(samples_source="loader", devices=known)))
    closed = Closed(
        trial=0, begin_ns=rows[10].t_ns, end_ns=at, ended="tight", steady="steady", first_step_ns=0,
        compile_s=0.0, allocator_peak_bytes=1 if cuda else None,
    )  # fmt: skip
    found = measure(closed, reported, HostSamples(start_ns=0, energies=energies, devices=devices))
    assert isinstance(found, Measurement)
    return found


def test_a_start_costs_what_its_step_takes_beyond_the_usual() -> None:
    found = run({5: (LOADER, 0.4, 0), 20: (LOADER, 0.6, 0), 30: (0, 0.05, 0)})
    assert found.extra["epoch_start_s"] == pytest.approx(0.5)
    assert found.extra["epoch_starts"] == 1.0, "one lies before the window"


def test_an_evaluation_at_the_end_of_an_epoch_is_no_part_of_its_start() -> None:
    found = run({20: (LOADER | EVALUATION, 0.4, 3 * S)})
    assert found.extra["epoch_start_s"] == pytest.approx(0.4)
    unknown = run({20: (LOADER | EVALUATION, 0.4, -1), 30: (LOADER | COMPILE, 5.0, 0)})
    assert "epoch_start_s" not in unknown.extra


def test_a_run_that_saw_no_start_says_nothing_of_one() -> None:
    assert "epoch_start_s" not in run({}).extra


def samples(watts: float) -> tuple[EnergySample, ...]:
    moments = [n * S // 4 for n in range(40)]
    return tuple(
        EnergySample(t_ns=t, cpu_j=10.0 * t / S, device_j={"GPU-1": watts * t / S, "GPU-2": 999.0 * t / S})
        for t in moments
    )


def test_energy_is_that_of_the_window_and_of_the_devices_that_were_used() -> None:
    found = run({}, cuda=True, energies=samples(200.0))
    assert found.extra["energy_gpu_j"] == pytest.approx(200.0 * 3.0, rel=0.01)
    assert found.extra["energy_cpu_j"] == pytest.approx(10.0 * 3.0, rel=0.01)


def test_a_run_on_the_cpu_is_charged_no_device() -> None:
    assert "energy_gpu_j" not in run({}, energies=samples(200.0)).extra


def test_a_window_that_counters_do_not_cover_has_no_energy() -> None:
    cut = tuple(itertools.takewhile(lambda s: s.t_ns < 2 * S, samples(200.0)))
    assert not {"energy_gpu_j", "energy_cpu_j"} & set(run({}, cuda=True, energies=cut).extra)
    assert not {"energy_gpu_j", "energy_cpu_j"} & set(run({}, cuda=True).extra)


def spent(first_s: float, last_s: float, watts: float = 1000.0) -> tuple[EnergySample, ...]:
    """100 W, and so many more between two moments."""
    moments = [n * S // 4 for n in range(80)]
    more = [max(0.0, min(t / S, last_s) - first_s) * (watts - 100.0) for t in moments]
    return tuple(
        EnergySample(t_ns=t, cpu_j=10.0 * t / S, device_j={"GPU-1": 100.0 * t / S + m})
        for t, m in zip(moments, more, strict=True)
    )


def test_energy_of_an_evaluation_is_no_part_of_what_training_takes() -> None:
    """Step 20 begins at 1.9 s and evaluates for 4 s, which the throughput leaves out."""
    found = run({20: (EVALUATION, 0.0, 4 * S)}, cuda=True, energies=spent(1.9, 5.9))
    assert found.window_s == pytest.approx(7.0)
    assert found.throughput.value == pytest.approx(80.0)
    assert found.extra["energy_gpu_j"] == pytest.approx(100.0 * 3.0, rel=0.05)
    assert found.extra["energy_cpu_j"] == pytest.approx(10.0 * 3.0)


def test_energy_of_a_step_that_compiles_is_that_of_any_other_step() -> None:
    found = run({20: (COMPILE, 4.0, 0)}, cuda=True, energies=spent(1.9, 6.0))
    assert found.throughput.value == pytest.approx(80.0)
    assert found.extra["energy_gpu_j"] == pytest.approx(100.0 * 3.0, rel=0.05), "30 steps, 29 of them counted"


def test_energy_of_somebody_else_on_the_device_is_not_charged() -> None:
    beside = [DeviceReading(t_ns=n * S // 4, foreign=8 <= n <= 12) for n in range(16)]
    found = run({}, cuda=True, energies=spent(2.0, 3.1), devices=beside)
    assert "foreign_gpu" in found.contamination.flags
    assert found.extra["energy_gpu_j"] == pytest.approx(100.0 * 3.0, rel=0.1)


def test_energy_is_not_available_where_looks_do_not_tell_the_training_from_the_rest() -> None:
    often = dict.fromkeys(range(11, 41, 2), (EVALUATION, 0.0, S // 5))
    assert "aside_s" in run(often, cuda=True, energies=spent(0.0, 0.0)).extra
    assert not {"energy_gpu_j", "energy_cpu_j"} & set(run(often, cuda=True, energies=spent(0.0, 0.0)).extra)
    busy = [DeviceReading(t_ns=n * S // 4, foreign=6 <= n <= 10, throttled=10 < n <= 14) for n in range(17)]
    assert "energy_gpu_j" not in run({}, cuda=True, energies=spent(0.0, 0.0), devices=busy).extra
