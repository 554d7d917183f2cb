"""One training process as a stream of steps, measured by the recorder and the launcher that ship.

No process is started: steps with known truth go through `trial.recorder.Recorder` (warm-up, window, when to
stop, steady state) and `launch.measure.measure` (what a window says), as those of a real script do.
"""

from dataclasses import dataclass
from types import SimpleNamespace

from autotune.core.config import Config
from autotune.core.facts import LoaderFacts, RunFacts
from autotune.core.trial import Fidelity, Segment
from autotune.launch.measure import Outside, Told, measure
from autotune.protocol.events import Closed, Compiling, Seen, StepRow
from autotune.trial.recorder import Recorder

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


class _Ending(Recorder):
    def _leave(self, code):
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


def fidelity(window_s, *, width=0.0):
    """A window of this length, or shorter where the interval is as narrow as `width` before."""
    return Fidelity(
        min_window_s=window_s if not width else min(1.5, window_s),
        max_window_s=window_s,
        min_steps=10,
        target_width=width,
        setup_s=600.0,
        deadline_s=3600.0,
    )


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a process: `measurement` is what a search would have been told."""

    measurement: object
    closed: Closed
    rows: list


def run(steps, wanted, *, workers=0, prefetch=2):
    """Let a process take these steps until its window is full.

    Args:
        steps: `Step` objects, more than enough.
        wanted: `fidelity`.
        workers: Of the loader.
        prefetch: Batches that each of them keeps ready.
    """
    state = SimpleNamespace(
        steps=0, samples_total=0, micro_steps=0, mark=0, compile_ns=0, compile_events=0, xla_events=0,
        began_ns=0, device_clock=None, faults=SimpleNamespace(off=set()),
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
    recorder = _Ending(
        state,
        channel,
        Segment(trial=0, config=Config(), fidelity=wanted),
        _Memory(),
        readings=tuple,
        facts=lambda: facts,
        settled=lambda *_: None,
        settle_root=lambda _: True,
    )
    recorder.loader = loader
    at, compiles = NS, []
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
            row = (at, round(step.wait_s * NS), BATCH, -1.0, 0, mark, round(step.aside_s * NS))
            recorder.step(row, None, 1)
        recorder.script_ended(0, "script_end")
    except _Over:
        pass
    told = Told()
    told.rows.extend(
        StepRow(
            t_ns=r[0], wait_ns=r[1], samples=r[2], device_ms=r[3], queue_ns=r[4], mark=r[5], aside_ns=r[6]
        )
        for r in channel.rows
    )
    for begun, ended in compiles:
        told.take(Compiling(t_ns=begun, began=True))
        told.take(Compiling(t_ns=ended, began=False))
    for event in channel.sent:
        told.take(event)
    told.take(Seen(facts=facts))
    closed = told.closed[0]
    return Ran(measurement=measure(closed, told, Outside(start_ns=0, cpus=2)), closed=closed, rows=told.rows)
