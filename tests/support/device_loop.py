"""Training loops on a fake device, driven through the real boundary, recorder, memory and launcher's fold."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fake_cuda import World

from autotune.launch.result.host_samples import HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.config import Config
from autotune.model.facts import LoaderFacts, RunFacts
from autotune.model.measurement import Measurement
from autotune.model.trial import Fidelity, Segment
from autotune.protocol.events import Broke, Closed
from autotune.protocol.lines import Reader
from autotune.trial.measure.recorder import Recorder
from autotune.trial.measure.step_counter import StepCounter
from autotune.trial.runtime.channel import Channel
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.memory import DeviceMemory
from autotune.trial.runtime.state import RuntimeState

SAMPLES = 8
LOADER = LoaderFacts(
    site="t.py:1",
    batch_size=SAMPLES,
    num_workers=0,
    prefetch_factor=None,
    pin_memory=False,
    persistent_workers=False,
)
FIDELITY = Fidelity(
    min_window_s=2.0, max_window_s=4.0, min_steps=12, target_width=0.05, setup_s=60.0, deadline_s=600.0
)


class Over(BaseException):
    """The process has ended."""


class Loss:
    """A value on the device: reading it waits."""

    is_cuda = True
    ndim = 0

    def __init__(self, world: World, value: float) -> None:
        self.world, self.value = world, value
        self.ready_ns = world.streams[world.current].free_ns

    def __float__(self) -> float:
        self.world.wait("loss", self.ready_ns)
        return self.value


class Batches:
    """The loader's hook, which is not used here."""

    def __init__(self) -> None:
        self.train, self.built_any, self.input_batch = object(), True, None

    def take_samples(self) -> int:
        return SAMPLES

    def ready(self) -> None:
        return None

    def queue_batches(self) -> int:
        return 3

    def observed(self, _keyword: str) -> int:
        return 0


class Anchor:
    """An optimizer."""


@dataclass
class Ran:
    """What one process reported, and what waited in it."""

    reported: ProcessReports
    world: World
    stamps_ns: list[int] = field(default_factory=list[int])

    @property
    def closed(self) -> Closed:
        return self.reported.closed[0]

    @property
    def broke(self) -> Broke | None:
        return self.reported.broke

    @property
    def measured(self) -> Measurement:
        found = measure(self.closed, self.reported, HostSamples(start_ns=0, cpus=4))
        assert isinstance(found, Measurement), found
        return found

    def waits_inside(self) -> list[tuple[str, int]]:
        """What the host waited for between the window's first and last step as the host saw them."""
        inside = [t for t in self.stamps_ns if self.closed.begin_ns < t <= self.closed.end_ns]
        return [(what, t) for what, t in self.world.waits if self.closed.begin_ns < t < inside[-1]]


class Loop:
    """One process; `step` is one turn of its training loop, `finish` the end of its script.

    Args:
        tmp_path: For the event file.
        monkeypatch: Time is the world's, and the end of the process an exception.
        world: The machine's devices.
    """

    def __init__(self, tmp_path: Any, monkeypatch: Any, world: World, fidelity: Fidelity = FIDELITY) -> None:
        self.world = world
        monkeypatch.setattr(time, "perf_counter_ns", world.clock.now)
        monkeypatch.setattr(os, "_exit", self._exit)
        self.events = tmp_path / "events.jsonl"
        self.state = RuntimeState(Faults(tmp_path / "faults.log"), str(tmp_path / "train.py"))
        self.memory = DeviceMemory()
        self.memory.attach(SimpleNamespace(cuda=world.module()))
        self.state.capturing = lambda: self.memory.capturing
        self.recorder = Recorder(
            self.state,
            Channel(self.events, "n"),
            Segment(trial=0, config=Config(), fidelity=fidelity),
            self.memory,
            readings=tuple,
            facts=lambda: RunFacts(samples_source="loader", loader=LOADER, devices=self.memory.facts()),
            settled=lambda *_: None,
            settle_root=lambda _: True,
        )
        self.boundary = StepCounter(self.state, self.recorder)
        batches: Any = Batches()
        self.recorder.sources.loader = self.boundary.loader = batches
        self.anchor = Anchor()
        self.stamps_ns: list[int] = []
        self.loss = 1.0

    @staticmethod
    def _exit(code: int) -> None:
        raise Over(code)

    def step(
        self, *, fetch_s: float = 1e-4, device_s: float = 0.02, read: bool = False, **where: Any
    ) -> None:
        """Fetch, launch, count the step."""
        self.fetch(fetch_s)
        self.world.launch(device_s, **where)
        if read:
            self.world.read()
        self.pass_boundary()

    def fetch(self, seconds: float) -> None:
        """As the loader's hook does it."""
        begin = self.world.clock.now()
        clock = self.state.device_clock
        if clock is not None:
            clock.fetch_begins()
        self.world.host(seconds)
        if clock is not None:
            clock.fetch_ends()
        self.state.wait_ns += self.world.clock.now() - begin
        self.state.batches += 1

    def evaluate(self, seconds: float, *, read: bool = True) -> None:
        """As the root's hook does it: the signs lie where the host comes by."""
        self.state.evaluates(self.world.clock.now())
        self.world.launch(seconds)
        if read:
            self.world.read()
        self.state.trains(self.world.clock.now())

    def pass_boundary(self) -> None:
        """`optimizer.step` took effect."""
        self.state.losses.append((Loss(self.world, self.loss), 1.0))
        self.state.backwards += 1
        self.stamps_ns.append(self.world.clock.now())
        self.boundary.passed(self.anchor)

    def run(self, *turns: Any, most: int = 20_000) -> Ran:
        """Turns of the loop, over and over, until the process ends."""
        try:
            for n in range(most):
                turns[n % len(turns)]()
        except Over:
            return self.ran()
        raise AssertionError(f"the process did not end within {most} steps")

    def finish(self) -> Ran:
        """The script comes to its end."""
        with contextlib.suppress(Over):
            self.recorder.script_ended(0, "script_end")
        return self.ran()

    def ran(self) -> Ran:
        """The reports."""
        self.boundary.release()
        reported = ProcessReports()
        for event in Reader(self.events, "n").read():
            reported.take(event)
        return Ran(reported, self.world, self.stamps_ns)
