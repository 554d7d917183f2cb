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
"""Value of `Fidelity.probe`: steps are counted after the segment is measured and sent."""
NO_COMMUNICATION: Final = "no_communication"
"""The same: processes that train together exchange no gradients, for the ceiling of communication."""
AFTER_WINDOW_S: Final = "after_window_s"
"""Key of `Measurement.extra`: seconds of that counting, which no other run has."""
STOPPED_S: Final = "stopped_s"
"""Key of `Measurement.extra`: seconds for which the script was stopped; missing if it was not."""


class Family(Enum):
    """Groups of failure kinds used by the search."""

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
        """Return how often the same trial may be run again."""
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
    """Part of the search that proposed a trial.

    A drift check runs the unchanged script between others, a reference runs it on a further machine.
    """

    BASELINE = "baseline"
    INITIAL = "initial"
    REFINE = "refine"
    DRIFT_CHECK = "drift"
    CONFIRM = "confirm"
    ABLATE = "ablate"
    DIAGNOSE = "diagnose"
    REFERENCE = "reference"

    @property
    def is_compared(self) -> bool:
        """Whether its runs are measurements to be compared with others."""
        return self not in (Stage.DIAGNOSE, Stage.REFERENCE)

    @property
    def is_paired(self) -> bool:
        """Whether its runs are compared with runs of the unchanged script beside them."""
        return self in PAIRED


PAIRED: Final = (Stage.CONFIRM, Stage.ABLATE)
"""Stages that claims rest on."""


class StartMode(Enum):
    """Start of a trial's process: cold, or forked from one with its libraries loaded."""

    COLD = "cold"
    FORK = "fork"


class StartPolicy(Enum):
    """Permitted starts of screening trials: forks if safe, with or without a note if not."""

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
    """Measuring limits of one trial.

    Args:
        min_window_s: Shortest steady window.
        max_window_s: Longest steady window.
        min_steps: Fewest steps in the window.
        target_width: Relative width of the throughput interval at which measuring ends.
        setup_s: Allowance for start-up, compile and warm-up together.
        deadline_s: Hard wall limit of the process; the guard ends it then.
        loss_samples: Continue until at least this many samples were used (for the loss guard); 0: no.
        evaluation_counts: Whether evaluation inside steps is part of them or is subtracted, from the
            baseline; None: the window itself decides.
        probe: Work after or around the measurement. ``why``: determine the bottleneck after the window.
            ``profile``: store a profile of some steps as well. ``nsys``: run under Nsight Systems, which
            records some steps on a CUDA device; ``nsys_whole``: all of them. ``ceilings``: count a few steps
            after the measurement is sent. ``no_communication``: exchange no gradients. Empty: measure only.
        dominated_below: Throughput in the script's own unit; measuring ends as soon as this one is certainly
            lower. 0: no limit.
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
        """Return whether it runs for a report by Nsight Systems."""
        return self.probe.startswith("nsys")

    @property
    def explains(self) -> bool:
        """Return whether the run shows a config's limit: neither slowed by Nsight Systems nor altered."""
        return not self.under_nsys and self.probe != NO_COMMUNICATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Next measurement requested by a strategy, always with a reason."""

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
        command: The user's command without autotune's launcher: ``(python, *options, script, *args)`` with
            flags of the config already in place.
        script: Absolute path of the script.
        argv: Arguments of the script, after the script's path.
        python: Interpreter.
        cwd: The user's working directory.
        env: The complete environment of the training process, without the launcher's additions.
        changes: Changes to make in the process (`Keyword`, `Patch`), and the others for the record and the
            readings.
        seed: Offset of every random seed; 0 does not change the script's own seeds.
        cache_key: Digest that names the compile caches of this config and these versions.
        protect: Whether writes are kept off the user's files. False only for `apply`.
        measure: False for `apply`: no recorder, no stop.
        module: Dotted name if the script runs as ``python -m NAME``.
        options: Options of the interpreter: ``-u``, ``-X dev``.
        output_args: Options of the script that get a folder of the trial.
        batch: Batch size of the script's own option; 0 if unknown.
        ranks: Processes of one machine that train together, each of them started so.
        source: File that constants are relative to, if not the script (for a console script).
        stdin: A file that the process reads as its standard input, from the beginning; empty for none.
        nodes: Machines that train together, each with so many processes.
        node: Number of this one.
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
    nodes: int = 1
    node: int = 0

    @property
    def world(self) -> int:
        """Processes of all machines that train together."""
        return self.ranks * self.nodes


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
        launch: How to start the process.
        segments: Configs to measure, one after the other. FRESH trials have exactly one.
        memory_limit_bytes: The guard ends the trial above this; 0 for none.
        devices: Names of accelerators it may use.
        start: `FORK` if it may be forked; the runner decides whether that is possible.
        patience_s: Largest extension of its deadline for time in which it was stopped.
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
    """One measured config, with its own number and result.

    Args:
        number: From 0, in the order of `ask`; the baseline is 0.
        group: Confirmation round (pair) it belongs to, from 1; 0 outside confirmation.
        changes: Deliveries of its config; None without a planned process, and in journals of versions without
            them.
        seconds: Wall time of its process, start to end; 0 while open.
        finished_s: Time of its result, in seconds since the study began.
        start: How its process was started.
        node: Machine of a cluster on which it runs; empty on this machine.
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
    node: str = ""

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
