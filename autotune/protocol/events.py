"""What a training process tells its launcher, as lines of an append-only file.

One file per process and attempt, in the trial's directory. Every event carries the attempt's
nonce, so that a script cannot forge one by accident. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.model.facts import RunFacts
from autotune.model.measurement import LossPoint, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The process has started; nothing is imported yet.

    Args:
        t_ns: `time.perf_counter_ns()`; CLOCK_MONOTONIC on Linux, shared with the launcher.
    """

    pid: int
    t_ns: int
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step that took effect.

    Args:
        t_ns: End of the step.
        wait_ns: Time spent waiting for batches since the previous step's end.
        samples: Samples consumed since the previous step's end.
        device_ms: Period on the device by CUDA events, -1 where there is none.
        queue_ns: Run-queue delay of the main thread since it was last asked for, some 25 ms before.
        mark: Bits: 1 evaluation inside, 2 compile event inside, 4 new input shape,
            8 garbage collection, 16 loader (re)started, 32 allocator grew or retried, 64 what it trains on
            was gathered before it (a rollout).
        aside_ns: Evaluation inside the step, from its first sign to the next sign of training;
            -1 where its end was not seen.
    """

    t_ns: int
    wait_ns: int
    samples: int
    device_ms: float = -1.0
    queue_ns: int = 0
    mark: int = 0
    aside_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A batch of steps, written a few times a second.

    An empty one is a sign of life from an evaluation or a checkpoint, at most one a second.
    """

    rows: tuple[StepRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """A compile began or ended; the progress limit is the compile allowance meanwhile."""

    t_ns: int
    began: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """What the run showed once detection had settled; sent again, complete, when it changes."""

    facts: RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """One segment is measured: the window and everything that belongs to it.

    Args:
        begin_ns: Begin of the steady window (the end of the last warm-up step).
        end_ns: End of the window.
        ended: As in `Measurement.ended`.
        steady: Label: ``steady``, ``drifting``, ``no_steady_state``.
        loss: Trace from the first step on, thinned.
        first_step_ns: When the first step ended.
        compile_s: Seconds spent compiling before the window, and in steps of it that are set aside.
        late_compile_s: The same after the window, while the run went on for its loss.
        allocator_peak_bytes: CUDA reserved peak, None on CPU.
        readings: Status of every requested knob, and what could be read of the others.
        ready_begin, ready_end: Batches ready in the loader's queue at both ends; None unknown.
        skipped_scaler_steps: Of a gradient scaler, ours or the script's, inside the window.
        evaluation_counts: By which rule the window was judged; see `autotune.protocol.marks.trained_s`.
        clock: By which the window's periods are known: ``device`` where it agreed with the host's over
            the window, ``host`` where it did not, empty where no accelerator trains.
        short: The window holds the few steps that there were, without the usual warm-up before it.
        unsettled: It opened before the level of the loader's queue had settled.
        sent_ns: When this was said; 0 where it was not noted.
        import_ns: Time that the script's imports took up to the first step, in nanoseconds.
    """

    trial: int
    begin_ns: int
    end_ns: int
    ended: str
    steady: str
    first_step_ns: int
    compile_s: float
    loss: tuple[LossPoint, ...] = ()
    readings: tuple[Reading, ...] = ()
    allocator_peak_bytes: int | None = None
    ready_begin: int | None = None
    ready_end: int | None = None
    skipped_scaler_steps: int = 0
    graph_breaks: int = 0
    clock: str = ""
    evaluation_counts: bool | None = None
    counters: Mapping[str, float] = field(default_factory=dict[str, float])
    sent_ns: int = 0
    late_compile_s: float = 0.0
    import_ns: int = 0
    short: bool = False
    unsettled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What the process found out after `Closed`, by names as in `Measurement.extra`."""

    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The process ends by our wish or because the script came to its end.

    Args:
        why: ``measured``, ``script_end``, ``script_exit``, or ``deadline``: its time was over before a window
            could tell anything.
        steps: Optimizer steps seen in all.
        code: Exit code the script asked for, where it did.
    """

    why: str
    steps: int
    code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """The process ends by an exception, or because a knob did not take effect, or the loss broke.

    Args:
        kind: Label of a `FailureKind`: ``crash_exit``, ``oom_cuda``, ``cuda_fatal``,
            ``config_rejected``, ``diverged``, ``oom_host`` (a Python MemoryError).
        error: Class of the exception, or empty.
        message: Its text, first line.
        tail: Last lines of the traceback.
        phase: ``import``, ``setup``, ``warmup``, ``window``.
        knob, how: For ``config_rejected``.
        rank: Which of the processes that train together; 0 is the one that measures.
    """

    kind: str
    error: str
    message: str
    tail: str
    phase: str
    steps: int = 0
    knob: str = ""
    how: str = ""
    peak_bytes: int | None = None
    readings: tuple[Reading, ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A process that does not measure has read every requested change back as applied.

    Args:
        rank: Its number among those that train together.
    """

    rank: int


Event = Hello | Steps | Compiling | ReadBack | Closed | Probed | Done | Broke | Applied
EVENTS: Mapping[str, Any] = {
    kind.__name__: kind for kind in (Hello, Steps, Compiling, ReadBack, Closed, Probed, Done, Broke, Applied)
}
