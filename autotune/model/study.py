"""Study: a specification, what is known, and the trials so far; a value. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from autotune.model.change import Env, Flag, Keyword
from autotune.model.config import Config, Value
from autotune.model.distributed_launch import nodes_of, ranks_of
from autotune.model.effect import Effect
from autotune.model.facts import Facts, HostFacts, RunFacts, training_memory_bytes
from autotune.model.history_record import SAME_SCRIPT, Transfer
from autotune.model.machine_load import MachineLoad
from autotune.model.objective import DEFAULT_OBJECTIVES, Constraint, Objective
from autotune.model.space import SearchSpace
from autotune.model.trial import Stage, StartPolicy, Trial, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Budget of a search; wall time is a hard limit that includes start-up and confirmation."""

    seconds: float
    trials: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSpec:
    """A knob that the user declared in a space file; data, so that it can be journaled.

    Args:
        name: Name of the knob; no built-in one has it.
        effect: Effect on the training, according to the user.
        values: Values to try, in the form that is passed.
        spelling: Its only delivery.
        help: Help text.
    """

    name: str
    effect: Effect
    values: tuple[Value, ...]
    spelling: Flag | Env | Keyword
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRequest:
    """Requested knobs and values, before any fact about the script is known.

    Args:
        name: Name of the preset or file.
        knobs: Knob name -> requested values in the notation of space files (``x2``, ``physical``, ``asis``);
            empty tuple = the knob's own default values.
        starts: Configs to try first, same notation.
        fixed: Pinned values.
        source: ``quick.yaml`` or a path, for error messages.
        declared: Knobs of the user's own.
        allowed: Knobs that change the training and were allowed by name.
        withheld: Knobs that change the training and were not allowed.
        memory_bytes: Limit on peak memory by the space, None without one.
        memory_frac: The same as a share of the device's memory, of the machine's without a device.
        candidates: Spaces to choose from after the first run of the script; this request itself then varies
            nothing.
        narrowed: The user has excluded knobs by name, so observations add none.
        added: Knobs added by observations.
        reason: Reason for the choice among candidates; empty if the user named the space.
    """

    name: str
    knobs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict[str, tuple[Value, ...]])
    starts: tuple[Mapping[str, Value], ...] = ()
    fixed: Mapping[str, Value] = field(default_factory=dict[str, Value])
    source: str = ""
    declared: tuple[DeclaredSpec, ...] = ()
    allowed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    memory_bytes: int | None = None
    memory_frac: float | None = None
    candidates: tuple[SpaceRequest, ...] = ()
    narrowed: bool = False
    added: tuple[str, ...] = ()
    reason: str = ""

    def bound_bytes(self, host: HostFacts, run: RunFacts | None = None) -> int | None:
        """Return the bound on peak memory that this space sets there; None without one."""
        if self.memory_frac is None:
            return self.memory_bytes
        return int(self.memory_frac * training_memory_bytes(host, run)) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """Complete request of the user; journaled whole, so that a search can be resumed.

    Args:
        study_id: ULID.
        label: Readable name: ``train-1121-1002``.
        script: Absolute path.
        args: The script's own arguments.
        cwd: The user's working directory.
        python: Interpreter of the user's environment.
        budget: Wall time and number of trials.
        effective_batch: ``explore``, ``keep`` or ``LO..HI``.
        max_memory_bytes: Upper bound on peak memory the user set, None for the machine's.
        run_steps: Length of the real run in optimizer steps, None if unknown.
        seed: Seed of the search.
        driver: ``ray`` or ``inline``.
        ray_address: Address of an existing cluster; empty starts a local one.
        accelerator_type: Type of the cluster's accelerators that trials need, by Ray's name; empty for any.
        tracking_uri: MLflow; empty for the default store.
        experiment: MLflow experiment; empty for ``autotune/<script stem>``.
        mlflow_tags: Tags of the study's MLflow run, ``K=V`` each.
        mlflow_parent_run: Id of the MLflow run below which the study's run is nested; empty for none.
        out: Absolute path of best.yaml.
        keep_loggers: Leave the script's own trackers on during trials.
        concurrency: Trials at once; 0 lets the driver decide.
        module: Dotted name if the script runs as ``python -m NAME``; `script` is its file then.
        options: Options of the interpreter, before the script: ``-u``, ``-X dev``.
        launcher: Text of `autotune.model.distributed_launch`, if the user starts the script by one.
        source: File with options and hazards, if not `script` itself (for a console script).
        output_args: Options of the script that name an output folder; a trial gets a separate one.
        purpose: ``verify`` to measure one configuration against the script again, ``scale`` to measure one
            with several numbers of processes; empty for a search.
        why: Determine the bottleneck of the script and of the winner, in one more process each.
        price_per_hour: Price of the machine, in any currency; None for no cost.
        profile: Store a profile of some steps of both as well.
        start: Whether screening trials may be forked from a process with their libraries loaded.
        objective: Objective: ``throughput``, ``energy``, ``cost``; see `autotune.model.objective`.
        transfer: Permitted earlier studies: ``same-script`` or ``off``; see
            `autotune.model.history_record`.
        constants: Names of constants selected by the user (``--set CONFIG.batch_size=16,32``), each for its
            knob's value.
        stdin: The file that standard input was redirected from, which every run reads again; empty for none.
        wait_for_quiet_s: Longest wait for other processes to end, before the first run and before a
            confirmation; 0 for none.
        wait_s: Longest wait for another search on the same CPUs or accelerators; None for `longest_wait_s`.
        share: Measure beside such a search after that wait.
    """

    study_id: str
    label: str
    script: str
    args: tuple[str, ...]
    cwd: str
    python: str
    space: SpaceRequest
    budget: Budget
    objectives: tuple[Objective, ...] = DEFAULT_OBJECTIVES
    constraints: tuple[Constraint, ...] = ()
    effective_batch: str = "explore"
    max_memory_bytes: int | None = None
    run_steps: int | None = None
    seed: int = 0
    driver: str = "ray"
    ray_address: str = ""
    tracking_uri: str = ""
    experiment: str = ""
    out: str = ""
    keep_loggers: bool = False
    concurrency: int = 0
    sampler: str = "staged"
    git_commit: str = ""
    version: str = ""
    module: str = ""
    options: tuple[str, ...] = ()
    launcher: str = ""
    source: str = ""
    output_args: tuple[str, ...] = ()
    purpose: str = ""
    why: bool = False
    price_per_hour: float | None = None
    profile: bool = False
    objective: str = "throughput"
    transfer: str = SAME_SCRIPT
    start: StartPolicy = StartPolicy.AUTO
    wait_for_quiet_s: float = 0.0
    mlflow_tags: tuple[str, ...] = ()
    mlflow_parent_run: str = ""
    constants: tuple[str, ...] = ()
    stdin: str = ""
    wait_s: float | None = None
    share: bool = False
    accelerator_type: str = ""

    @property
    def longest_wait_s(self) -> float:
        """Longest wait for another search: `wait_s`, else none to share a machine, else twice the budget."""
        if self.wait_s is not None:
            return self.wait_s
        return 0.0 if self.share else WAIT_BUDGETS * self.budget.seconds

    @property
    def inspected(self) -> str:
        """The file whose source is read and whose change makes trials incomparable."""
        return self.source or self.script

    def python_unless(self, ours: str) -> str:
        """Absolute path of the interpreter where it is another one than this; else empty."""
        return self.python if self.python != ours and PurePath(self.python).is_absolute() else ""

    @property
    def stem(self) -> str:
        """A short name: ``train`` of ``train.py``, ``package.train`` of a module."""
        return self.module or PurePath(self.script).stem

    @property
    def title(self) -> str:
        """Return a short name of the script: ``train.py``, or ``package.train``."""
        return self.module or PurePath(self.script).name


WAIT_BUDGETS = 2.0
"""Two searches with the same budget fit into the wait for a third one; see decision 114."""

SCRIPT_CHANGED = "script"
"""Reason for the end of a search whose script, or an imported module, was edited meanwhile."""

VERIFY = "verify"
SCALE = "scale"
"""Purposes of studies that are no searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """State of a study: fold(events).

    Args:
        spec: The request.
        facts: None until inspection was journaled; `facts.run` None until the baseline ended.
        trials: In order of number.
        space: Built from spec and facts; None before the baseline ended.
        refusals: Knob -> sentence, for knobs that are not varied.
        elapsed_s: Budget spent in all lives of the driver together.
        stopped: Reason for its end, empty while it may continue: ``finished``, ``interrupted``, ``signal``,
            ``no_baseline``, ``script`` (it was edited), ``backend``, ``disk``, ``error``.
        created: Wall time label, seconds since the epoch.
        changed: Message on a file of the user that was edited meanwhile; empty without one.
        cut: Stage and group of the rounds of paired runs that are not continued, because their runs were
            measured on another day or machine than a resume found.
        because: Reason why no new config was tried, a sentence; empty while some may be.
        transfer: Records of earlier studies at the start; None if not requested.
        busy: Load checks that found a new culprit, in order.
        waited_s: Seconds of waiting for a quiet machine.
    """

    spec: StudySpec
    facts: Facts | None = None
    trials: tuple[Trial, ...] = ()
    space: SearchSpace | None = None
    refusals: Mapping[str, str] = field(default_factory=dict[str, str])
    elapsed_s: float = 0.0
    stopped: str = ""
    created: float = 0.0
    changed: str = ""
    cut: frozenset[tuple[Stage, int]] = frozenset()
    because: str = ""
    transfer: Transfer | None = None
    busy: tuple[MachineLoad, ...] = ()
    waited_s: float = 0.0

    @property
    def memory_bytes(self) -> int | None:
        """Memory that training may fill there, as far as that is known."""
        facts = self.facts
        return None if facts is None else training_memory_bytes(facts.host, facts.run) or None

    @property
    def ranks(self) -> int:
        """Processes that train together: as the launcher starts them, or as the script showed it does."""
        run = None if self.facts is None else self.facts.run
        started = ranks_of(self.spec.launcher) * nodes_of(self.spec.launcher)
        return max(started, 1 if run is None else run.ranks)

    def finished(self, *stages: Stage) -> Sequence[Trial]:
        """Return trials that have an outcome, of these stages; without any, of all whose figures count.

        A probe (`Stage.DIAGNOSE`) or a reference is no measurement to be compared with others.
        """
        return [
            t
            for t in self.trials
            if t.state is TrialState.FINISHED and (t.stage in stages if stages else t.stage.is_compared)
        ]

    def of(self, config: Config, *stages: Stage) -> Sequence[Trial]:
        """Return the finished trials of one config."""
        return [t for t in self.finished(*stages) if t.config == config]

    @property
    def baseline(self) -> Sequence[Trial]:
        """Return the finished baseline trials of the first stage."""
        return self.finished(Stage.BASELINE)

    @property
    def open_trials(self) -> Sequence[Trial]:
        """Return the waiting and running trials."""
        return [t for t in self.trials if t.state is not TrialState.FINISHED]

    def with_trial(self, trial: Trial) -> Study:
        """Return a copy in which this trial replaces the one of its number, or is added at the end."""
        kept = [t for t in self.trials if t.number != trial.number]
        return replace(self, trials=tuple(sorted([*kept, trial], key=lambda t: t.number)))
