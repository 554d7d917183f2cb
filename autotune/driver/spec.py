"""Specification of a search, built from the user's options and checked before anything runs.

The command line and `autotune.tune` both use it, so an option has the same meaning in both.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import InvalidBudget, UsageError, did_you_mean
from autotune.model.history_record import SAME_SCRIPT, SETTINGS
from autotune.model.objective import ENERGY, SEARCHED, WANTED
from autotune.model.trial import StartPolicy
from autotune.search.samplers.registry import SAMPLERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.inspection.command_line import Command
    from autotune.model.study import SpaceRequest, StudySpec

log = logging.getLogger(__name__)

MIN_BUDGET_S = 20.0
"""A smaller budget does not fit two baseline runs of a tiny script and one other run."""

JOB_END = "SLURM_JOB_END_TIME"
"""Variable in which Slurm gives the end time of a job, in seconds since the epoch."""

JOB_MARGIN_S = 60.0
"""Time left in a job after the search: for Ray, MLflow, and other work of the job."""

DRIVERS = ("ray", "inline")
STARTS = tuple(start.value for start in StartPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options of a search as on the command line; see `autotune search --help`."""

    budget: str
    space: str = "auto"
    sets: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    max_memory: str = ""
    effective_batch: str = "explore"
    driver: str = "ray"
    address: str = ""
    accelerator_type: str = ""
    tracking_uri: str = ""
    experiment: str = ""
    trials: int | None = None
    seed: int = 0
    out: str = "best.yaml"
    run_steps: int | None = None
    keep_loggers: bool = False
    sampler: str = "staged"
    start: str = "auto"
    concurrency: int = 0
    label: str = ""
    output_args: tuple[str, ...] = ()
    price_per_hour: float | None = None
    why: bool = True
    profile: bool = False
    objective: str = "throughput"
    transfer: str = SAME_SCRIPT
    wait_for_quiet: str = ""
    mlflow_tags: tuple[str, ...] = ()
    mlflow_parent_run: str = ""
    wait: str = ""
    share: bool = False


def version() -> str:
    """Return the installed version, empty if the package is not installed."""
    from importlib import metadata

    try:
        return metadata.version("autotune-training")
    except metadata.PackageNotFoundError:
        return ""


def budget_s(text: str) -> float:
    """Return a budget in seconds.

    Raises:
        InvalidBudget: No duration, or too short for a search.
    """
    from autotune.config_files.duration import duration_s

    seconds = duration_s(text)
    if seconds < MIN_BUDGET_S:
        raise InvalidBudget(
            f'a budget of "{text}" is too short for a search: at least {MIN_BUDGET_S:.0f}s',
            hint="start-up is paid about ten times: try 10m first",
        )
    return seconds


def wait_s(text: str, option: str = "--wait-for-quiet") -> float | None:
    """Return a longest wait in seconds; None for an empty text.

    Raises:
        UsageError: No duration.
    """
    from autotune.config_files.duration import duration_s

    try:
        return duration_s(text) if text else None
    except InvalidBudget as error:
        raise UsageError(f"{option}: {error}", hint=error.hint) from error


def within_job(seconds: float, *, now_s: float | None = None) -> float:
    """Return the budget, cut at the end of the scheduler's job: a killed search confirms nothing.

    Args:
        seconds: Requested budget.
        now_s: Seconds since the epoch; None: the wall clock's.
    """
    text = os.environ.get(JOB_END, "")
    if not text.isdecimal():
        return seconds
    now_s = time.time() if now_s is None else now_s
    if int(text) <= now_s:
        return seconds  # the job was extended, or the variable is another job's
    left_s = int(text) - now_s - JOB_MARGIN_S
    cut_s = max(MIN_BUDGET_S, left_s)
    if cut_s >= seconds:
        return seconds
    log.warning("this job ends before a budget of %.0f s does: it is cut to %.0f s", seconds, cut_s)
    return cut_s


def one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    """Return the value, if it is a known one.

    Raises:
        UsageError: It is not.
    """
    if value in known:
        return value
    hint = did_you_mean(value, known) or f"one of: {', '.join(known)}"
    raise UsageError(f'{option} "{value}" is not known', hint=hint)


def effective_batch(text: str) -> str:
    """Return ``explore``, ``keep`` or ``LO..HI``, checked.

    Raises:
        UsageError: None of these.
    """
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if bounds is None:
        return one_of("--effective-batch", text, ("explore", "keep"))
    if not 0 < int(bounds[1]) <= int(bounds[2]):
        raise UsageError(
            f'--effective-batch "{text}" holds no batch', hint="the smaller bound comes first: 64..1024"
        )
    return text


def out_path(text: str) -> str:
    """Return the absolute, writable path of best.yaml; for a link, its target is written.

    Raises:
        UsageError: It is a folder, a device or a pipe, its folder does not exist, or its name cannot be
            written into a file.
    """
    if not text.isprintable():
        raise UsageError(f"--out {text!r} cannot be printed", hint="choose another name: --out best.yaml")
    path = Path(text).expanduser().absolute()
    # The target of a link is replaced, not the link.
    real = Path(os.path.realpath(path))
    if path.is_dir():
        raise UsageError(
            f"--out {text} is a folder", hint=f"name the file: --out {text.rstrip('/')}/best.yaml"
        )
    if (path.exists() and not path.is_file()) or _is_descriptor(path):
        raise UsageError(
            f"--out {text} is not a regular file",
            hint="name one, --out best.yaml; --json prints the answer on stdout as well",
        )
    if not real.parent.is_dir():
        raise UsageError(f"--out {text}: there is no folder {real.parent}")
    if not os.access(real.parent, os.W_OK):
        raise UsageError(
            f"--out {text}: {real.parent} cannot be written to", hint="choose another place with --out"
        )
    return str(path)


def _is_descriptor(path: Path) -> bool:
    """Return whether this names an open descriptor, whose readers would miss a replaced file."""
    return path.parts[:2] in (("/", "dev"), ("/", "proc")) and path.parts[:3] != ("/", "dev", "shm")


def output_args(names: Sequence[str]) -> tuple[str, ...]:
    """Return options of the script that name its output folder, as on its command line.

    Raises:
        UsageError: It cannot be an option of a command line.
    """
    for name in names:
        if not re.fullmatch(r"--?[A-Za-z0-9][\w.-]*", name):
            raise UsageError(
                f'--output-arg "{name}" is not an option of a script',
                hint="with its dashes: --output-arg=--out-dir",
            )
    return tuple(dict.fromkeys(names))


def objective(options: SearchOptions) -> str:
    """Return the checked objective, which must be measurable here.

    Raises:
        UsageError: Unknown objective; cost without a price; energy without a counter on this machine.
    """
    chosen = one_of("--objective", options.objective, SEARCHED)
    if chosen == "cost" and options.price_per_hour is None:
        raise UsageError(
            "--objective cost needs a price: --price-per-hour",
            hint="at one price the cheapest configuration is the fastest one, which is the default objective",
        )
    # On a cluster the nodes have the counters.
    if chosen == ENERGY and not options.address and (why := _uncounted()):
        message = f"--objective energy: this machine has no energy counter. {why}"
        raise UsageError(message.rstrip(), hint="`autotune doctor` lists the counters")
    return chosen


def _uncounted() -> str:
    """Return why no energy can be measured here; empty if it can."""
    from autotune.devices.energy_counters import Rapl
    from autotune.devices.find import find_devices

    if any(device.energy_j() is not None for device in find_devices()):
        return ""
    rapl = Rapl()
    return "" if rapl.exists else rapl.why_not or "No counter can be read."


def objective_notes(spec: StudySpec) -> list[str]:
    """Return notes on the objective before the search, a sentence each."""
    if spec.objective == "cost":
        return ["--objective cost: price times time, so on one machine the cheapest is the fastest."]
    if spec.objective == ENERGY:
        return [f"--objective energy: {WANTED[ENERGY]}, both by pairs of fresh runs."]
    return []


def build_spec(command: Command, options: SearchOptions) -> StudySpec:
    """Return the specification of a search.

    Raises:
        UsageError: An option cannot be fulfilled.
        BackendError: The command's interpreter is too old, or lacks PyTorch.
    """
    from autotune.config_files.presets import load_space
    from autotune.inspection.command_line import check_one_machine, verify
    from autotune.inspection.module_constants import named_by_user
    from autotune.model.study import Budget, StudySpec
    from autotune.store.paths import new_id

    cwd = str(Path.cwd())
    sets, constants = named_by_user(options.sets, command.inspected)
    seconds = within_job(budget_s(options.budget))
    space = load_space(
        options.space,
        cwd=cwd,
        sets=sets,
        fixes=options.fixes,
        only=options.knobs,
        allow=options.allow,
    )
    _positive("--trials", options.trials)
    _positive("--run-steps", options.run_steps)
    _positive("--price-per-hour", options.price_per_hour)
    if options.profile and options.trials is not None:
        raise UsageError(
            "--profile takes trials of its own, which --trials leaves no room for",
            hint="leave --trials out; --budget bounds the search",
        )
    if options.accelerator_type and not options.address:
        raise UsageError(
            f"--accelerator-type {options.accelerator_type} chooses among nodes of a cluster",
            hint="name the cluster as well: --address auto",
        )
    if options.concurrency < 0:
        raise UsageError(f"--concurrency {options.concurrency} is negative", hint="0 lets the driver decide")
    driver = one_of("--driver", options.driver, DRIVERS)
    if options.address and driver != "ray":
        raise UsageError(
            "--address names a Ray cluster, and --driver is inline", hint="leave one of them out"
        )
    spec = StudySpec(
        study_id=new_id(),
        label=_label(options.label, command),
        script=command.script,
        args=command.args,
        cwd=cwd,
        python=command.python,
        space=space,
        budget=Budget(seconds=seconds, trials=options.trials),
        effective_batch=effective_batch(options.effective_batch),
        max_memory_bytes=_memory(options.max_memory, space),
        run_steps=options.run_steps,
        seed=options.seed,
        driver=driver,
        ray_address=options.address,
        accelerator_type=options.accelerator_type,
        tracking_uri=options.tracking_uri,
        experiment=options.experiment,
        out=out_path(options.out),
        keep_loggers=options.keep_loggers,
        concurrency=options.concurrency,
        sampler=one_of("--sampler", options.sampler, SAMPLERS),
        start=StartPolicy(one_of("--start", options.start, STARTS)),
        git_commit=_git_commit(Path(command.inspected).parent),
        version=version(),
        module=command.module,
        options=command.options,
        launcher=command.launcher,
        source=command.source,
        output_args=output_args(options.output_args),
        price_per_hour=options.price_per_hour,
        why=options.why,
        profile=options.profile,
        objective=objective(options),
        transfer=one_of("--transfer", options.transfer, SETTINGS),
        wait_for_quiet_s=wait_s(options.wait_for_quiet) or 0.0,
        wait_s=wait_s(options.wait, "--wait"),
        share=options.share,
        mlflow_tags=mlflow_tags(options.mlflow_tags),
        mlflow_parent_run=options.mlflow_parent_run,
        constants=constants,
        stdin=redirected_stdin(),
    )
    if not options.address:
        check_one_machine(command, "search")
    verify(command)
    return spec


def mlflow_tags(given: Sequence[str]) -> tuple[str, ...]:
    """Return the tags unchanged, ``K=V`` each.

    Raises:
        UsageError: One has no name, or a name reserved by MLflow or autotune.
    """
    for tag in given:
        name, equals, _ = tag.partition("=")
        if not name or not equals:
            raise UsageError(f'--mlflow-tag "{tag}" is not K=V', hint="--mlflow-tag team=vision")
        if name.startswith(("mlflow.", "autotune.")):
            raise UsageError(
                f'--mlflow-tag "{name}" is a reserved name', hint="choose a name without mlflow. or autotune."
            )
    return tuple(given)


def redirected_stdin() -> str:
    """Return the file that standard input was redirected from; empty if it is no file."""
    try:
        is_file = stat.S_ISREG(os.fstat(0).st_mode)
        path = Path("/proc/self/fd/0").readlink() if is_file else Path()
    except OSError:
        return ""
    return str(path) if path.is_absolute() and path.is_file() else ""


def _positive(option: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{option} {value} is not positive")


def _memory(text: str, space: SpaceRequest) -> int | None:
    """Return the smaller of two limits: the option's, and that of the space file."""
    from autotune.config_files.memory import memory_bytes
    from autotune.inspection.host import host_facts

    bounds = [memory_bytes(text)] if text else []
    if space.memory_bytes is not None or space.memory_frac is not None:
        bound = space.bound_bytes(host_facts())
        bounds += [bound] if bound is not None else []
    return min(bounds, default=None)


def _label(text: str, command: Command) -> str:
    from autotune.store.paths import is_label, new_label, studies

    if text and not is_label(text):
        raise UsageError(
            f'--label "{text}" is no label', hint="letters, digits, dot, dash and underscore, at most 64"
        )
    name = f"{command.module.replace('.', '-')}.py" if command.module else command.script
    if not text:
        return untaken_label(new_label(name, time.time()))
    if text in {study.label for study in studies()}:
        raise UsageError(
            f'a study is called "{text}" already', hint="autotune list shows them; choose another --label"
        )
    return text


def untaken_label(label: str) -> str:
    """Return the label, with a number if another study has it."""
    from autotune.store.paths import studies

    taken = {study.label for study in studies()}
    return next(
        name for name in (label, *(f"{label}-{n}" for n in range(2, len(taken) + 3))) if name not in taken
    )


def _git_commit(folder: Path) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
