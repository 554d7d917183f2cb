"""Events that a training process reports to its launcher, as lines of an append-only file.

One file per process and attempt, in the trial's directory. Every event carries the attempt's nonce, so that a
script cannot forge one by accident. Standard library only.
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
        device_ms: Period on the device by CUDA events, -1 without one.
        queue_ns: Run-queue delay of the main thread since its last reading, some 25 ms before.
        mark: Bits of `autotune.protocol.marks`. 1 evaluation inside, 2 compile event inside, 4 new input
            shape, 8 garbage collection. 16 loader (re)started, 32 allocator grew or retried, 64 a rollout
            collected its data before.
        aside_ns: Evaluation inside the step, from its first sign to the next sign of training; -1 if its end
            was not observed.
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

    An empty one is a heartbeat from an evaluation or a checkpoint, at most one a second.
    """

    rows: tuple[StepRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """A compile began or ended; in between the progress limit is the compile allowance."""

    t_ns: int
    began: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """Facts of the run after detection has settled; sent again, complete, when they change."""

    facts: RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """One segment is measured: the window and all its data.

    Args:
        begin_ns: Start of the steady window (the end of the last warm-up step).
        end_ns: End of the window.
        ended: As in `Measurement.ended`.
        steady: Label: ``steady``, ``drifting``, ``no_steady_state``.
        loss: Trace from the first step on, thinned.
        first_step_ns: End of the first step.
        compile_s: Seconds spent compiling before the window, and in its steps that are set aside.
        late_compile_s: The same after the window, while the run continued for its loss.
        allocator_peak_bytes: CUDA reserved peak, None on CPU.
        readings: Status of every requested knob, and readable values of the others.
        ready_begin, ready_end: Batches ready in the loader's queue at both ends; None unknown.
        skipped_scaler_steps: Steps skipped by a gradient scaler, autotune's or the script's, inside the
            window.
        evaluation_counts: Rule by which the window was judged; see `autotune.protocol.marks.trained_s`.
        clock: Source of the window's periods: ``device`` if it agreed with the host's over the window,
            ``host`` if it did not, empty without an accelerator.
        short: The window holds the few available steps, without the usual warm-up before it.
        unsettled: It opened before the loader's queue had settled.
        sent_ns: Time of sending; 0 if it was not recorded.
        import_ns: Time of the script's imports up to the first step, in nanoseconds.
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
    """Results of probes after `Closed`, by names as in `Measurement.extra`."""

    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The process ends on request or because the script ended.

    Args:
        why: ``measured``, ``script_end``, ``script_exit``, or ``deadline``: its time was over before a usable
            window.
        steps: Number of optimizer steps.
        code: Exit code requested by the script, if any.
    """

    why: str
    steps: int
    code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """The process ends by an exception, because a knob did not take effect, or because the loss diverged.

    Args:
        kind: Label of a `FailureKind`: ``crash_exit``, ``oom_cuda``, ``cuda_fatal``,
            ``config_rejected``, ``diverged``, ``oom_host`` (a Python MemoryError).
        error: Class of the exception; may be empty.
        message: Its text, first line.
        tail: Last lines of the traceback.
        phase: ``import``, ``setup``, ``warmup``, ``window``.
        knob, how: For ``config_rejected``.
        rank: Rank of the process; rank 0 measures.
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
    """A rank that does not measure has read every requested change back as applied.

    Args:
        rank: Its rank.
    """

    rank: int


Event = Hello | Steps | Compiling | ReadBack | Closed | Probed | Done | Broke | Applied
EVENTS: Mapping[str, Any] = {
    kind.__name__: kind for kind in (Hello, Steps, Compiling, ReadBack, Closed, Probed, Done, Broke, Applied)
}
