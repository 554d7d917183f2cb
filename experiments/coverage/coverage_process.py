"""One training process as a stream of steps, measured by the recorder and the launcher that ship.

No process is started: steps with known truth go through `trial.measure.recorder.Recorder` (warm-up, window,
when to stop, steady state) and `launch.result.measure.measure` (what a window says), as in a real run.
"""

import threading
from dataclasses import dataclass
from types import SimpleNamespace

from autotune.launch.result.host_samples import DeviceReading, HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.config import Config
from autotune.model.facts import LoaderFacts, RunFacts
from autotune.model.trial import Fidelity, Segment
from autotune.protocol.disturbed import spans
from autotune.protocol.events import Closed, Compiling, ReadBack, StepRow
from autotune.trial.measure.recorder import Recorder
from autotune.trial.records.steady_steps import SteadySteps

NS = 1_000_000_000
BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as it happened.

    `aside_s` of it was evaluation; `compile_s` of it a compile; `ready` batches lay in the loader's queue
    when it ended, None where nobody knows.
    """

    period_s: float
    wait_s: float = 0.0
    aside_s: float = 0.0
    compile_s: float = 0.0
    ready: int | None = None


class _Over(BaseException):
    """The process has ended."""


def _end(_code):
    raise _Over


class _Channel:
    def __init__(self):
        self.rows, self.sent = [], []

    def step(self, row):
        self.rows.append(row)

    def send(self, event):
        self.sent.append(event)

    def close(self):
        pass


class _Memory:
    """Of a process without an accelerator."""

    on_cuda = False

    def clock(self):
        return None

    def grew(self):
        return False

    def peak_bytes(self):
        return None

    def counters(self):
        return {}


class _Loader:
    def __init__(self, workers, prefetch):
        self.train, self.workers, self.prefetch = object(), workers, prefetch
        self.level = None

    def ready(self):
        return self.level

    def queue_batches(self):
        return max(self.workers * self.prefetch + self.workers, 3)

    def observed(self, _keyword):
        return self.workers


def fidelity(window_s, *, width=0.0, least_s=None):
    """A window of this length; of `least_s` at least, where the interval is as narrow as `width` before."""
    shortest_s = 1.5 if least_s is None else least_s
    return Fidelity(
        min_window_s=window_s if not width else min(shortest_s, window_s),
        max_window_s=window_s,
        min_steps=10,
        target_width=width,
        setup_s=600.0,
        deadline_s=3600.0,
    )


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a process: `measurement` is what a search would have received."""

    measurement: object
    closed: Closed
    rows: list


def run(steps, wanted, *, workers=0, prefetch=2, beside=(), is_reported=True, loss=None):
    """Let a process take these steps until its window is full.

    Args:
        steps: `Step` objects, more than enough.
        wanted: `fidelity`.
        workers: Of the loader.
        prefetch: Batches that each of them keeps ready.
        beside: Stretches, in seconds of the process, in which somebody else computes on its device.
        is_reported: The launcher reports that to the process while it runs, as it does.
        loss: Of every step; None where the script shows none, and nothing is waited for after the window.
    """
    state = SimpleNamespace(
        steps=0, samples_total=0, micro_steps=0, mark=0, compile_ns=0, compile_events=0, xla_events=0,
        began_ns=0, device_clock=None, faults=SimpleNamespace(off=set()),
        calm=SteadySteps(threading.get_ident()),
    )  # fmt: skip
    facts = RunFacts(
        samples_source="loader",
        loader=LoaderFacts(
            site="train.py:1",
            batch_size=BATCH,
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            pin_memory=False,
            persistent_workers=False,
        ),
    )
    channel, loader = _Channel(), _Loader(workers, prefetch)
    recorder = Recorder(
        state,
        channel,
        Segment(trial=0, config=Config(), fidelity=wanted),
        _Memory(),
        readings=tuple,
        facts=lambda: facts,
        settled=lambda *_: None,
        settle_root=lambda _: True,
    )
    recorder.ending.leave = _end
    recorder.sources.loader = loader
    at, compiles, looks = NS, [], []
    if is_reported:
        recorder.sources.disturbed = lambda: spans((look.t_ns, look.spoils) for look in looks)
    try:
        for step in steps:
            begun, at = at, at + round(step.period_s * NS)
            mark = (1 if step.aside_s else 0) | (2 if step.compile_s else 0)
            if step.compile_s:
                state.compile_ns += round(step.compile_s * NS)
                state.compile_events += 1
                compiles.append((begun, begun + round(step.compile_s * NS)))
            state.steps += 1
            state.samples_total += BATCH
            loader.level = step.ready
            looks += _looks(begun, at, beside)
            row = (at, round(step.wait_s * NS), BATCH, -1.0, 0, mark, round(step.aside_s * NS))
            recorder.step(row, loss, 1)
        recorder.script_ended(0, "script_end")
    except _Over:
        pass
    reported = ProcessReports()
    reported.rows.extend(
        StepRow(
            t_ns=r[0], wait_ns=r[1], samples=r[2], device_ms=r[3], queue_ns=r[4], mark=r[5], aside_ns=r[6]
        )
        for r in channel.rows
    )
    for begun, ended in compiles:
        reported.take(Compiling(t_ns=begun, began=True))
        reported.take(Compiling(t_ns=ended, began=False))
    for event in channel.sent:
        reported.take(event)
    reported.take(ReadBack(facts=facts))
    closed = reported.closed[0]
    outside = HostSamples(start_ns=0, cpus=2, devices=looks)
    return Ran(measurement=measure(closed, reported, outside), closed=closed, rows=reported.rows)


def _looks(begun_ns, ended_ns, beside):
    """What the launcher sees of the device meanwhile, four times a second; nothing where nobody is beside."""
    each = NS // 4
    for n in range(begun_ns // each + 1, ended_ns // each + 1) if beside else ():
        at_s = n / 4 - 1.0
        yield DeviceReading(t_ns=n * each, foreign=any(first <= at_s <= last for first, last in beside))
