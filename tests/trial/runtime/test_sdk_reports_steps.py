"""Steps that a script reports, on a clock of the test's own: losses read late, and where warm-up ends."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.launch.result.host_samples import HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.config import Config
from autotune.model.facts import RunFacts
from autotune.model.measurement import Measurement
from autotune.model.trial import Fidelity, Segment
from autotune.protocol.events import Closed
from autotune.protocol.lines import Reader
from autotune.trial.hooks.model.compiling import Compile
from autotune.trial.measure.recorder import Recorder
from autotune.trial.measure.step_counter import StepCounter
from autotune.trial.runtime.channel import Channel
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.imports import AfterImport
from autotune.trial.runtime.jax_compilation import Xla
from autotune.trial.runtime.memory import DeviceMemory
from autotune.trial.runtime.sdk_reports import Later, number, stands_still
from autotune.trial.runtime.state import COMPILE, RuntimeState
from autotune.trial.runtime.undo import Undo

SAMPLES = 8
STEP_S = 0.01
FIDELITY = Fidelity(
    min_window_s=2.0, max_window_s=4.0, min_steps=12, target_width=0.05, setup_s=60.0, deadline_s=600.0
)


class Over(BaseException):
    """The process has ended."""


class Loop:
    """A process whose script reports its steps; `step` is one of them."""

    def __init__(self, tmp_path: Any, monkeypatch: Any) -> None:
        self.now_ns = 1_000_000_000
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr(os, "_exit", self._exit)
        self.state = RuntimeState(Faults(tmp_path / "faults.log"), str(tmp_path / "train.py"))
        self.events = tmp_path / "events.jsonl"
        self.recorder = Recorder(
            self.state,
            Channel(self.events, "n"),
            Segment(trial=0, config=Config(), fidelity=FIDELITY),
            DeviceMemory(),
            readings=tuple,
            facts=lambda: RunFacts(samples_source="reported"),
            settled=lambda *_: None,
            settle_root=lambda _: True,
        )
        self.boundary = StepCounter(self.state, self.recorder)
        self.xla = Xla(self.state)
        self.stamps_ns: list[int] = []

    @staticmethod
    def _exit(code: int) -> None:
        raise Over(code)

    def step(self, seconds: float = STEP_S, loss: Any = 1.0) -> None:
        self.now_ns += int(seconds * 1e9)
        self.stamps_ns.append(self.now_ns)
        self.boundary.sdk_step(SAMPLES, loss)

    def reported(self) -> ProcessReports:
        """What it has written by now."""
        reported = ProcessReports()
        for event in Reader(self.events, "n").read():
            reported.take(event)
        return reported

    def run(self, seconds: Callable[[int], float]) -> ProcessReports:
        """Steps that take so long, by their number, until the process ends."""
        try:
            for n in range(5000):
                self.step(seconds(n))
        except Over:
            return self.reported()
        raise AssertionError("the process did not end")


@pytest.fixture
def loop(tmp_path: Any, monkeypatch: Any) -> Any:
    made = Loop(tmp_path, monkeypatch)
    yield made
    made.boundary.release()


def closed(reported: ProcessReports) -> Closed:
    return reported.closed[0]


def rate(reported: ProcessReports) -> float:
    found = measure(closed(reported), reported, HostSamples(start_ns=0, cpus=4))
    assert isinstance(found, Measurement), found
    return found.throughput.value


def test_a_step_of_a_second_late_in_warm_up_is_no_part_of_the_window(loop: Loop) -> None:
    reported = loop.run(lambda n: 1.0 if n in (0, 12) else STEP_S)
    assert closed(reported).begin_ns - loop.stamps_ns[12] >= 0.4e9 - 1, "warm-up began anew"
    assert rate(reported) == pytest.approx(SAMPLES / STEP_S)


def test_long_steps_that_come_on_and_on_are_a_cost(loop: Loop) -> None:
    reported = loop.run(lambda n: 0.2 if n % 7 == 0 else STEP_S)
    assert len(reported.rows) < 300
    assert rate(reported) == pytest.approx(7 * SAMPLES / (0.2 + 6 * STEP_S), rel=0.15)


def test_a_compilation_that_jax_reports_begins_the_window_anew(loop: Loop) -> None:
    def seconds(n: int) -> float:
        if n == 120:
            loop.xla.on_duration("/jax/core/compile/backend_compile_duration", 0.3, fun_name="update")
        return 0.3 if n == 120 else STEP_S

    reported = loop.run(seconds)
    assert closed(reported).begin_ns > loop.stamps_ns[120]
    assert closed(reported).counters["compile_events"] == 1
    assert rate(reported) == pytest.approx(SAMPLES / STEP_S)


def test_what_compiles_on_and_on_does_so_as_a_part_of_its_steps(loop: Loop) -> None:
    for _ in range(40):
        loop.xla.on_duration("/jax/core/compile/backend_compile_duration", 0.1)
        loop.xla.on_duration("/jax/core/compile/jaxpr_trace_duration", 0.1)
        loop.step()
    loop.recorder._channel.flush()
    assert sum(bool(row.mark & COMPILE) for row in loop.reported().rows) == 9, "the first step and eight more"


class Array:
    """Of JAX, by what it can do: there before it is computed."""

    ndim = 0

    def __init__(self, made: int, read: list[tuple[int, int]], steps: Callable[[], int]) -> None:
        self.made, self.read, self.steps = made, read, steps

    def block_until_ready(self) -> Array:
        return self

    def __float__(self) -> float:
        self.read.append((self.made, self.steps()))
        return 1.0 / (1 + self.made)


def test_a_loss_that_is_computed_later_is_read_two_steps_later(loop: Loop) -> None:
    read: list[tuple[int, int]] = []
    for n in range(20):
        loop.step(loss=Array(n, read, lambda: len(loop.stamps_ns) - 1))
    assert read == [(0, 0), *((n, n + 2) for n in range(1, 18))]
    loop.recorder.run.losses.read()
    assert [made for made, _ in read] == list(range(20)), "each once"
    assert [loss for _, loss, _ in loop.recorder.run.losses.points] == [1.0 / (1 + n) for n in range(20)]


class Tensor:
    """Of TensorFlow, by what it can do."""

    backing_device = "/device:CPU:0"

    def __init__(self, *values: float) -> None:
        self.values = values
        self.ndim = 1 if len(values) > 1 else 0

    def numpy(self) -> Tensor:
        return Tensor(*self.values)

    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    def __float__(self) -> float:
        assert self.ndim == 0
        return self.values[0]


def test_a_loss_that_is_no_scalar_is_its_mean(loop: Loop) -> None:
    for loss in (Tensor(3.0), Tensor(1.0, 3.0)):
        loop.step(loss=loss)
    loop.recorder.run.losses.read()
    assert [loss for _, loss, _ in loop.recorder.run.losses.points] == [3.0, 2.0]


class Lost(Array):
    """Of memory that the script has given to another computation."""

    def __float__(self) -> float:
        raise RuntimeError("the array has been deleted")


def lost() -> Lost:
    return Lost(0, [], lambda: 0)


def test_one_that_cannot_be_read_after_all_is_not_known() -> None:
    reasons: list[Exception] = []
    later = Later(lost(), reasons.append)
    assert (later.read(), later.read()) == (None, None)
    assert [str(reason) for reason in reasons] == ["the array has been deleted"]
    with pytest.raises(RuntimeError):
        number(lost())


def test_losses_that_cannot_be_read_are_no_divergence(loop: Loop) -> None:
    loop.step(loss=Array(0, [], lambda: 0))
    for _ in range(9):
        loop.step(loss=lost())
    assert "reported_loss" in loop.state.faults.off
    loop.recorder.run.losses.read()
    assert [loss for _, loss, _ in loop.recorder.run.losses.points] == [1.0]


def test_a_loss_that_is_read_late_and_is_no_number_is_one(loop: Loop) -> None:
    class Broken(Array):
        def __float__(self) -> float:
            return math.nan

    loop.step()
    for _ in range(3):
        loop.step(loss=Broken(0, [], lambda: 0))
    with pytest.raises(Over):
        loop.step(loss=Broken(0, [], lambda: 0))
    broke = loop.reported().broke
    assert broke is not None
    assert broke.kind == "diverged"


def test_a_run_that_ends_before_its_window_on_a_loss_that_is_no_number_has_diverged(loop: Loop) -> None:
    for loss in (1.0, 0.9, math.nan):
        loop.step(loss=loss)
    with pytest.raises(Over):
        loop.recorder.script_ended(0, "script_end")
    broke = loop.reported().broke
    assert broke is not None
    assert broke.kind == "diverged"


def test_what_jax_compiles_is_no_compiled_model(loop: Loop, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters={}))
    compiling = Compile(loop.state, Undo(), AfterImport(), None)
    compiling.called = compiling.own = True
    loop.xla.on_duration("/jax/core/compile/backend_compile_duration", 0.3)
    assert compiling.observed() is None
    assert "runs eagerly" in loop.state.refusals["compile_mode"]


def test_samples_are_reported_only_where_every_step_says_them(loop: Loop) -> None:
    assert not loop.boundary.reports_samples
    loop.step()
    assert loop.boundary.reports_samples
    loop.boundary.sdk_step(None, None)
    assert not loop.boundary.reports_samples
    assert loop.state.samples_total == SAMPLES + 1


@pytest.mark.parametrize(
    ("name", "wanted", "reported", "others"),
    [
        ("batch", 8, {64}, ()),
        ("batch_size", 128, {64}, (1, "fp32", True)),
        ("Train-Batch-Size", 8, {64}, (4,)),
    ],
)
def test_the_scripts_own_batch_that_is_reported_at_another_one_is_not_believed(
    name: str, wanted: int, reported: set[int], others: Any
) -> None:
    assert f"{name}={wanted}" in stands_still(name, 64, wanted, reported, others)


@pytest.mark.parametrize(
    ("name", "wanted", "reported", "others"),
    [
        ("batch", 64, {64}, ()),
        ("batch", 8, {8}, ()),
        ("batch", 8, {64, 40}, ()),
        ("batch", 8, set[int](), ()),
        # Eight parts of eight samples make a step of 64.
        ("batch", 8, {64}, (8,)),
        ("micro_batch", 8, {64}, ()),
        ("batch_norm", True, {64}, ()),
        ("depth", 8, {64}, ()),
    ],
)
def test_nothing_else_is_held_against_what_is_reported(
    name: str, wanted: object, reported: set[int], others: Any
) -> None:
    assert stands_still(name, 64, wanted, reported, others) == ""
