"""The window behind a measurement, as recorders keep it, against streams whose truth is known."""

from __future__ import annotations

import os
from typing import Any

import pytest

from autotune.launch.result.host_samples import DeviceReading, HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.facts import LoaderFacts, RunFacts
from autotune.model.measurement import Measurement
from autotune.protocol.events import Closed, ReadBack, StepRow, Steps
from autotune.statistics.intervals import window_estimate
from autotune.testing.raw_window import raw_window

S = 1_000_000_000


def reported(steps: list[dict[str, Any]], workers: int = 2) -> ProcessReports:
    """A run whose first step ended at 10 s; steps are given by their period and what else they hold."""
    at, rows = 10 * S, [StepRow(t_ns=10 * S, wait_ns=0, samples=8)]
    for step in steps:
        more = dict(step)
        at += int(more.pop("period_s") * S)
        rows.append(StepRow(**{"t_ns": at, "wait_ns": S // 100, "samples": 8, **more}))
    found = ProcessReports()
    found.take(Steps(rows=tuple(rows)))
    loader = LoaderFacts(
        site="t.py:1",
        batch_size=8,
        num_workers=workers,
        prefetch_factor=2,
        pin_memory=False,
        persistent_workers=False,
    )
    found.take(ReadBack(facts=RunFacts(samples_source="loader", loader=loader)))
    return found


def closed(run: ProcessReports, **more: Any) -> Closed:
    base: dict[str, Any] = {"ended": "limit", "steady": "steady", "first_step_ns": 10 * S, "compile_s": 0.0}
    return Closed(trial=0, begin_ns=10 * S, end_ns=run.rows[-1].t_ns, **{**base, **more})


PLAIN = [{"period_s": 0.1}] * 30
MIXED = [
    *([{"period_s": 0.1}] * 9),
    {"period_s": 2.1, "mark": 1, "aside_ns": 2 * S},
    *([{"period_s": 0.1}] * 9),
    {"period_s": 6.0, "mark": 2},
    *([{"period_s": 0.3}] * 9),
]


@pytest.mark.parametrize("steps", [PLAIN, MIXED])
def test_blocks_give_the_throughput_that_was_measured(steps: list[dict[str, Any]]) -> None:
    run = reported(steps)
    measured = measure(closed(run), run, HostSamples(start_ns=0))
    assert isinstance(measured, Measurement)
    blocks, produced = raw_window(closed(run), run, HostSamples(start_ns=0))
    found = window_estimate(blocks.plain(), unit="samples/s")
    assert found.value * produced == pytest.approx(measured.throughput.value)
    assert sum(blocks.num_steps) == measured.steps == len(steps)
    assert sum(blocks.elapsed_s) == pytest.approx(measured.window_s)


def test_nothing_is_removed_and_what_spoils_a_block_is_reported() -> None:
    run = reported(MIXED)
    blocks, _ = raw_window(closed(run), run, HostSamples(start_ns=0))
    (compiled,) = [i for i, words in enumerate(blocks.flags) if "compile" in words]
    assert blocks.flags[compiled].split() == ["compile", "aside"]
    assert (blocks.num_steps[compiled], blocks.elapsed_s[compiled]) == (1, pytest.approx(6.0))
    (evaluated,) = [i for i, words in enumerate(blocks.flags) if "evaluation" in words]
    assert blocks.aside_s[evaluated] == pytest.approx(2.0)
    assert blocks.clean()[evaluated]
    assert not blocks.clean()[compiled]
    assert min(n for i, n in enumerate(blocks.num_steps) if i != compiled) >= 2


def test_a_queue_that_was_draining_is_reported_beside() -> None:
    run = reported(PLAIN)
    _, produced = raw_window(closed(run, ready_begin=12, ready_end=2), run, HostSamples(start_ns=0))
    assert produced == pytest.approx(20 / 30)


def test_run_delay_is_unknown_where_the_kernel_is_silent() -> None:
    silent, talking = reported(PLAIN), reported([{"period_s": 0.1, "queue_ns": S // 50}] * 30)
    assert set(raw_window(closed(silent), silent, HostSamples(start_ns=0))[0].run_delay_s) == {None}
    delays_s = raw_window(closed(talking), talking, HostSamples(start_ns=0))[0].run_delay_s
    assert sum(s or 0.0 for s in delays_s) == pytest.approx(0.6)


def test_a_neighbour_on_the_device_spoils_its_block_alone() -> None:
    run = reported(PLAIN)
    seen = [DeviceReading(t_ns=int((10.05 + 0.25 * i) * S), foreign=i == 4) for i in range(12)]
    blocks, _ = raw_window(closed(run), run, HostSamples(start_ns=0, devices=seen))
    assert [words for words in blocks.flags if words] == ["foreign_gpu"]
    assert blocks.clean().count(False) == 1


def test_a_window_without_a_step_has_no_blocks() -> None:
    run = reported([])
    blocks, produced = raw_window(closed(run), run, HostSamples(start_ns=0))
    assert (len(blocks), produced) == (0, 1.0)


def test_a_runner_shows_what_it_heard_to_a_witness(runner: Any, assignment: Any) -> None:
    shown: list[Any] = []
    end = list(runner(witness=lambda *what: shown.append(what)).run(assignment("exact()")))[-1]
    ((requested, heard, outside),) = shown
    assert requested.uid == f"t0000-a1-{os.getpid() % 2**24:06x}"
    blocks, _ = raw_window(heard.closed[0], heard, outside)
    assert sum(blocks.num_steps) == end.outcome.steps
    rate = window_estimate(blocks.plain(), unit="samples/s").value
    assert rate == pytest.approx(end.outcome.throughput.value)


def test_a_witness_sees_failures_too(runner: Any, assignment: Any) -> None:
    shown: list[Any] = []
    list(runner(witness=lambda *what: shown.append(what)).run(assignment("sys.exit(3)")))
    ((_, heard, _),) = shown
    assert heard.closed == {}
