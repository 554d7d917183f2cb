"""Trials, failures and outcomes. Standard library only.

A failed trial is a value. What a failure means for the search is one table here
(`FailureKind`), filled by `autotune.launch.result.classify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from autotune.model.change import Change
from autotune.model.config import Config
from autotune.model.measurement import Measurement

CEILINGS: Final = "ceilings"
"""Of `Fidelity.probe`: steps are counted once the segment is measured and sent."""
NO_COMMUNICATION: Final = "no_communication"
"""The same: processes that train together exchange no gradients, for the ceiling of communication."""
AFTER_WINDOW_S: Final = "after_window_s"
"""Of `Measurement.extra`: seconds that counting them took, which no other run pays."""
STOPPED_S: Final = "stopped_s"
"""Of `Measurement.extra`: seconds for which the script was stopped; missing if it was not."""


class Family(Enum):
    """What search code matches on."""

    OOM = "oom"
    HANG = "hang"
    CRASH = "crash"
    DIVERGED = "diverged"
    REFUSED = "refused"
    LOST = "lost"
    CANCELLED = "cancelled"


class FailureKind(Enum):
    """The closed vocabulary of endings. Members are only ever added.

    Each value is (label, family, repeats, teaches, words): how often the same trial is run again,
    whether the configuration can be the cause, and the text that people read.
    """

    OOM_CUDA = ("oom_cuda", Family.OOM, 0, True, "out of GPU memory")
    OOM_HOST = ("oom_host", Family.OOM, 0, True, "out of host memory")
    TIMEOUT_TOTAL = ("timeout_total", Family.HANG, 0, True, "time limit reached")
    TIMEOUT_PROGRESS = ("timeout_progress", Family.HANG, 0, True, "no progress")
    CRASH_SIGNAL = ("crash_signal", Family.CRASH, 1, True, "killed by a signal")
    CRASH_EXIT = ("crash_exit", Family.CRASH, 1, True, "exited with an error")
    CUDA_FATAL = ("cuda_fatal", Family.CRASH, 1, True, "CUDA error")
    NO_METRIC = ("no_metric", Family.CRASH, 0, False, "no training step found")
    WARMUP_SHORT = ("warmup_short", Family.REFUSED, 0, False, "too short to measure")
    DIVERGED = ("diverged", Family.DIVERGED, 0, True, "loss diverged")
    CONTENDED = ("contended", Family.LOST, 2, False, "device in use by others")
    THROTTLED = ("throttled", Family.LOST, 2, False, "device throttled")
    INFRA_LOST = ("infra_lost", Family.LOST, 3, False, "lost with its machine")
    DISK = ("disk", Family.LOST, 0, False, "disk full")
    KILLED_USER = ("killed_user", Family.CANCELLED, 0, False, "stopped by the user")
    CONFIG_REJECTED = ("config_rejected", Family.REFUSED, 0, False, "not accepted by the script")

    @property
    def label(self) -> str:
        """The name in journal, JSON and MLflow tags."""
        return self.value[0]

    @property
    def words(self) -> str:
        """The text that people read: ``out of host memory``."""
        return self.value[4]

    @property
    def family(self) -> Family:
        """The group that search code matches on."""
        return self.value[1]

    @property
    def repeats(self) -> int:
        """How often the same trial may be run again."""
        return self.value[2]

    @property
    def teaches(self) -> bool:
        """Whether the configuration can be the cause."""
        return self.value[3]

    @classmethod
    def named(cls, label: str) -> FailureKind:
        """Return the member with that label.

        Raises:
            KeyError: No member is called so.
        """
        for kind in cls:
            if kind.label == label:
                return kind
        raise KeyError(label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A trial that yielded no measurement, and why.

    Args:
        kind: From the closed vocabulary.
        message: One line for people, with the value seen.
        evidence: Facts: exit status, phase, last lines (``log_tail``), paths, peak bytes,
            for ``config_rejected`` the ``knob`` and ``how``.
        readings: What had been measured before the end, if anything.
    """

    kind: FailureKind
    message: str
    evidence: Mapping[str, str | int | float] = field(default_factory=dict[str, str | int | float])
    readings: Measurement | None = None


Outcome = Measurement | Failure


class Stage(Enum):
    """Part of the search that proposed a trial; a drift check runs the unchanged script between others."""

    BASELINE = "baseline"
    INITIAL = "initial"
    REFINE = "refine"
    DRIFT_CHECK = "drift"
    CONFIRM = "confirm"
    ABLATE = "ablate"
    DIAGNOSE = "diagnose"


class StartMode(Enum):
    """How the process of a trial comes to be: started anew, or forked from one with its libraries loaded."""

    COLD = "cold"
    FORK = "fork"


class StartPolicy(Enum):
    """How screening trials may come to be: forked wherever that is safe, with or without saying where not."""

    AUTO = "auto"
    FORK = "fork"
    COLD = "cold"


class TrialState(Enum):
    """State of a trial: WAITING -> RUNNING -> FINISHED; RUNNING -> WAITING when re-queued."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How long one trial may measure.

    Args:
        min_window_s: Shortest steady window.
        max_window_s: Longest steady window.
        min_steps: Fewest steps in the window.
        target_width: Relative width of the throughput interval at which measuring ends.
        setup_s: Allowance for start-up, compile and warm-up together.
        deadline_s: Hard wall limit of the process; the guard ends it then.
        loss_samples: Run on until at least this many samples were seen (for the loss guard); 0: no.
        evaluation_counts: Whether evaluation inside steps is a part of them or is taken off, as the
            baseline showed; None: the window itself decides.
        probe: ``why`` where the process goes on after its window to find out what holds it back, ``profile``
            where it keeps a profile of some steps as well, ``nsys`` where it runs under Nsight Systems, which
            records some steps on a CUDA device, ``nsys_whole`` all of it; ``ceilings`` where a few steps are
            counted after the measurement is sent; ``no_communication`` where no gradients are exchanged;
            empty for a measurement alone.
        dominated_below: Throughput in the script's own unit; measuring ends as soon as it is beyond
            doubt that this one lies below. 0: no such bar.
    """

    min_window_s: float
    max_window_s: float
    min_steps: int
    target_width: float
    setup_s: float
    deadline_s: float
    loss_samples: int = 0
    evaluation_counts: bool | None = None
    probe: str = ""
    dominated_below: float = 0.0

    @property
    def under_nsys(self) -> bool:
        """It is run for the sake of a report by Nsight Systems."""
        return self.probe.startswith("nsys")

    @property
    def explains(self) -> bool:
        """Whether the run shows what limits a config: not slowed down by Nsight Systems, not altered."""
        return not self.under_nsys and self.probe != NO_COMMUNICATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a strategy wants measured next. It cannot be built without a reason."""

    stage: Stage
    config: Config
    fidelity: Fidelity
    reason: str
    seed: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything needed to start one training process; serialisable.

    Args:
        command: The user's command without our launcher: ``(python, *options, script, *args)`` with
            flags of the config already in place.
        script: Absolute path of the script.
        argv: Arguments of the script, after the script's path.
        python: Interpreter.
        cwd: The user's working directory.
        env: The complete environment of the training process but for what the launcher adds.
        changes: What in-process code has to carry out (`Keyword`, `Patch`), and the rest for
            the record and the readings.
        seed: Offset of every random seed; 0 leaves the script's own seeds as they are.
        cache_key: Digest that names the compile caches of this config and these versions.
        protect: Whether writes are kept off the user's files. False only for `apply`.
        measure: False for `apply`: no recorder, no stop.
        module: Dotted name where the script is run as ``python -m NAME``.
        options: Of the interpreter: ``-u``, ``-X dev``.
        output_args: Options of the script that are to name a folder of the trial's own.
        batch: What the script's own option says its batch size is; 0 where that is not known.
        ranks: Processes that train together, each of them started so.
        source: The file that constants are relative to, where it is not the script (behind a console script).
        stdin: A file that the process reads as its standard input, from the beginning; empty for none.
    """

    command: tuple[str, ...]
    script: str
    argv: tuple[str, ...]
    python: str
    cwd: str
    env: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    seed: int = 0
    cache_key: str = ""
    protect: bool = True
    measure: bool = True
    module: str = ""
    options: tuple[str, ...] = ()
    output_args: tuple[str, ...] = ()
    batch: int = 0
    ranks: int = 1
    source: str = ""
    stdin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One config measured inside one process."""

    trial: int
    config: Config
    fidelity: Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One process to run: how to start it and what to measure in it.

    Args:
        uid: Unique name of this attempt; also the nonce that its events carry.
        study_id: The study it belongs to.
        attempt: 1 for the first try.
        launch: How to start.
        segments: What to measure, one config after the other. FRESH trials have exactly one.
        memory_limit_bytes: The guard ends the trial above this; 0 for none.
        devices: Names of accelerators it may use.
        start: `FORK` where it may be forked; whoever runs it decides whether that can be.
        patience_s: Seconds by which time in which it was stopped may prolong its deadline.
    """

    uid: str
    study_id: str
    attempt: int
    launch: Launch
    segments: tuple[Segment, ...]
    memory_limit_bytes: int = 0
    devices: tuple[str, ...] = ()
    start: StartMode = StartMode.COLD
    patience_s: float = 0.0

    @property
    def trial(self) -> int:
        """Number of the first (for FRESH: the only) trial."""
        return self.segments[0].trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One config measured, numbered and told by itself.

    Args:
        number: From 0, in the order of asking; the baseline is 0.
        group: Confirmation cycle (pair) it belongs to, from 1; 0 outside confirmation.
        changes: How its config was handed over; None where no process was planned, and in journals of
            versions that did not keep it.
        seconds: Wall time of its process, start to end; 0 while open.
        finished_s: Seconds since the study began at which it was told.
        start: How its process came to be.
    """

    number: int
    config: Config
    stage: Stage
    fidelity: Fidelity
    reason: str = ""
    seed: int = 0
    group: int = 0
    attempt: int = 1
    changes: tuple[Change, ...] | None = None
    state: TrialState = TrialState.WAITING
    outcome: Outcome | None = None
    seconds: float = 0.0
    finished_s: float = 0.0
    start: StartMode = StartMode.COLD

    @property
    def measurement(self) -> Measurement | None:
        """The outcome where it is a measurement."""
        return self.outcome if isinstance(self.outcome, Measurement) else None

    @property
    def failure(self) -> Failure | None:
        """The outcome where it is a failure."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def own_s(self) -> float:
        """Wall time of its process without stops and without the steps counted after its measurement."""
        extra = {} if self.measurement is None else self.measurement.extra
        return max(0.0, self.seconds - sum(extra.get(name, 0.0) for name in (AFTER_WINDOW_S, STOPPED_S)))
