"""Launch commands around a script, resolved where that is safe.

An environment's runner (uv, poetry) is replaced by its interpreter. A launcher of several processes is
replaced by its script, with the variables that it sets: torchrun, accelerate and deepspeed on one machine.
All others are refused with an alternative.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError
from autotune.inspection import accelerate_launch
from autotune.inspection.host import host_facts
from autotune.inspection.shebang import written_interpreter
from autotune.model.distributed_launch import (
    ACCELERATE,
    DEEPSPEED,
    MOST_RANKS,
    TORCH_LAUNCH,
    launcher_text,
    several,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate-launch",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Modules behind ``python -m`` that are launchers by another name."""

STARTERS: Final = ("uv", "poetry", "torchrun", "accelerate", "accelerate-launch", "deepspeed")
"""First words of commands that `unwrapped` resolves."""

_SEVERAL: Final = ("mpirun", "mpiexec", "srun", "ray", "horovodrun", "composer")
_RUNNERS: Final = ("conda", "mamba", "micromamba", "pipenv", "pdm", "hatch", "pixi", "rye", "tox", "nox")
_SHELLS: Final = ("bash", "sh", "zsh", "fish", "make", "just")
_BEFORE: Final = ("env", "nohup", "time", "nice", "ionice", "taskset", "numactl", "stdbuf", "sudo", "timeout")
_INTERACTIVE: Final = ("ipython", "jupyter", "pytest", "streamlit")

_TORCHRUN_VALUES: Final = frozenset(
    {
        *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
        *("max-restarts", "monitor-interval", "start-method", "role", "log-dir", "redirects", "tee"),
        *("local-ranks-filter", "node-rank", "master-addr", "master-port", "local-addr"),
    }
)
_OF_MACHINES: Final = ("nnodes", "node-rank")
_SHORT: Final = {"m": "module", "r": "redirects", "t": "tee"}
_LEFT_OUT: Final = ("max-restarts", "redirects", "tee", "log-dir", "local-ranks-filter")
"""Options whose omission is noted: restarts, and redirection of the output."""
_SWITCHES: Final = ("no-python", "run-path", "virtual-local-rank")
_LAUNCH: Final = "torch.distributed.launch"
_DEEPSPEED_VALUES: Final = frozenset(
    {"num_gpus", "num_accelerators", "num_nodes", "master_port", "master_addr", "log_level"}
)
_DEEPSPEED_LEFT_OUT: Final = frozenset({"master_port", "master_addr", "log_level", "q", "quiet", "save_pid"})
"""Options of the launcher itself, without effect on the training."""

_UV_PLAIN: Final = frozenset({"--no-sync", "--frozen", "--locked", "--offline", "--quiet", "-q", "--"})
"""Options of ``uv run`` without effect on the interpreter and the script."""

POETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The command inside a launcher.

    Args:
        words: The command without the launcher.
        python: The launcher's interpreter; empty if it does not choose one.
        launcher: Word of `autotune.model.distributed_launch` for one that sets variables; empty for others.
        notes: Omitted features, as sentences.
    """

    words: tuple[str, ...]
    python: str = ""
    launcher: str = ""
    notes: tuple[str, ...] = ()


def unwrapped(words: Sequence[str], python: str = "") -> Within | None:
    """Return the command inside a launcher; None if the first word is none.

    Args:
        words: The command.
        python: Interpreter that the user named; empty for none.

    Raises:
        UsageError: It starts something that trials cannot replace.
    """
    first = Path(words[0]).name
    if first == "uv":
        return _uv(words[1:])
    if first == "poetry":
        return _poetry(words)
    if first == "torchrun":
        return _torchrun(words[1:])
    if first == _LAUNCH:
        return _torchrun(words[1:], legacy=True)
    if first in ("accelerate", "accelerate-launch"):
        return _accelerate(words[2:] if first == "accelerate" else words[1:], words, python)
    if first == "deepspeed":
        return _deepspeed(words[1:], python, words[0])
    if first in _SEVERAL:
        raise UsageError(
            f"{first} starts processes itself, which a trial cannot",
            hint="with one process: name the script, -- python train.py; with several of one machine: "
            "-- torchrun --nproc-per-node 2 train.py",
        )
    if first in _RUNNERS:
        raise UsageError(
            f"{first} chooses an environment that cannot be determined from outside",
            hint="name its interpreter: --python /path/to/env/bin/python -- python train.py",
        )
    if first in _BEFORE:
        raise UsageError(
            f"{first} is not a script", hint=f"put it before autotune: {first} autotune search train.py"
        )
    if first in _SHELLS or first in _INTERACTIVE:
        raise UsageError(
            f"{first} is not a training script",
            hint="name the python command that it starts: -- python train.py",
        )
    return None


# Environments -------------------------------------------------------------------------------


def _uv(words: Sequence[str]) -> Within:
    if words[:1] != ["run"]:
        raise UsageError("uv is not a training script", hint="-- uv run python train.py")
    rest = list(words[1:])
    while rest and rest[0] in _UV_PLAIN:
        rest.pop(0)
    if rest[:1] in (["-m"], ["--module"]):
        rest = ["python", "-m", *rest[1:]]
    if not rest or rest[0].startswith("-"):
        what = f"uv run {rest[0]} makes" if rest else "uv run starts"
        raise UsageError(
            f"{what} an environment that is not known here",
            hint="name the environment's interpreter: --python .venv/bin/python -- python train.py",
        )
    if rest[0].endswith(".py"):
        _refuse_own_requirements(rest[0])
        rest = ["python", *rest]
    folder = _uv_environment(Path.cwd())
    return _in_environment(rest, folder / "bin" / "python", hint="make it: uv sync")


def _refuse_own_requirements(script: str) -> None:
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if re.search(r"^# /// script\s*$", text, re.MULTILINE):
        raise UsageError(
            f"{script} lists its own requirements, for which uv makes a temporary environment",
            hint="make a permanent one, and name its interpreter: --python PATH",
        )


def _uv_environment(cwd: Path) -> Path:
    """Return uv's project environment: https://docs.astral.sh/uv/concepts/projects/config."""
    for folder in (cwd, *cwd.parents):
        if (folder / "pyproject.toml").is_file():
            return folder / (os.environ.get("UV_PROJECT_ENVIRONMENT") or ".venv")
    if active := os.environ.get("VIRTUAL_ENV"):
        return Path(active)
    return next((f / ".venv" for f in (cwd, *cwd.parents) if (f / ".venv").is_dir()), cwd / ".venv")


def _poetry(words: Sequence[str]) -> Within:
    rest = list(words[2:])
    if words[1:2] != ["run"] or not rest or rest[0].startswith("-"):
        raise UsageError("poetry is not a training script", hint="-- poetry run python train.py")
    try:
        done = subprocess.run(
            [words[0], "env", "info", "--executable"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=POETRY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"poetry did not report its environment: {error}") from error
    lines = done.stdout.strip().splitlines()
    hint = "make it: poetry install; or name an interpreter: --python PATH"
    if done.returncode != 0 or not lines:
        raise UsageError("poetry has no environment here yet", hint=hint)
    return _in_environment(rest, Path(lines[-1]), hint=hint)


def _in_environment(words: list[str], python: Path, *, hint: str) -> Within:
    """Return the words with programs of that environment instead of the `PATH`'s."""
    if not os.access(python, os.X_OK):
        raise UsageError(f"there is no interpreter {python} yet", hint=hint)
    program = python.parent / words[0]
    if os.sep not in words[0] and program.is_file():
        words = [str(program), *words[1:]]
    return Within(words=tuple(words), python=str(python))


# Launchers of processes ---------------------------------------------------------------------


def _torchrun(words: Sequence[str], *, legacy: bool = False) -> Within:
    """Resolve torchrun; with `legacy` its predecessor ``torch.distributed.launch``."""
    rest, given, by_variable = list(words), _by_variables(), not legacy
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        name = _SHORT.get(name, name)
        if name == "module":
            given[name] = (word, "1")
        elif legacy and name == "use-env":
            by_variable = True
        elif name == "standalone":
            continue
        elif name in _TORCHRUN_VALUES:
            value = value if equals else (rest.pop(0) if rest else "")
            given[name] = (word if equals else f"{word} {value}", value)
        else:
            raise _not_carried_over(word)
    for name in _SWITCHES:
        if name in given:
            raise _not_carried_over(given[name][0])
    nodes = _machines(given)
    count = _processes(given["nproc-per-node"][1]) if "nproc-per-node" in given else 1
    if not rest:
        raise UsageError("no script follows torchrun", hint="-- python train.py")
    by_option = not by_variable and count > 1
    if not by_variable and not by_option:
        rest.insert(1, "--local-rank=0")
    how = "one process" if count == 1 else f"{count} processes"
    how += f" on each of {nodes} machines" if nodes > 1 else ""
    world = count * nodes
    note = (
        f"torchrun with {how}: the script is started by itself, with RANK=0, WORLD_SIZE={world} and the like"
    )
    left_out = [given[name][0] for name in _LEFT_OUT if name in given]
    if left_out:
        note += f"; left out: {', '.join(left_out)}"
    words = ("python", *(["-m"] if "module" in given else []), *rest)
    launcher = launcher_text(TORCH_LAUNCH, count) if by_option else several(count, nodes)
    return Within(words=words, launcher=launcher, notes=(note,))


def _machines(given: Mapping[str, tuple[str, str]]) -> int:
    """Machines that torchrun would start processes on: a fixed number."""
    option, nodes = given.get("nnodes", ("", "1"))
    least, _, most = nodes.partition(":")
    if not least.isdecimal() or not 1 <= int(least) <= MOST_RANKS or (most and most != least):
        raise UsageError(
            f"torchrun {option} is not a fixed number of machines up to {MOST_RANKS}",
            hint="-- torchrun --nnodes 2 --nproc-per-node 2 train.py",
        )
    option, node = given.get("node-rank", ("", "0"))
    if node != "0":
        raise UsageError(
            f"torchrun {option} starts the processes of another machine than the first",
            hint="search from one machine, which starts all: leave --node-rank out",
        )
    return int(least)


def _not_carried_over(option: str) -> UsageError:
    return UsageError(
        f"torchrun's option {option} cannot be carried over",
        hint="leave it out; with one process leave torchrun out: -- python train.py",
    )


def _by_variables() -> dict[str, tuple[str, str]]:
    """Return options set by environment variables: option -> (its assignment, its value)."""
    found: dict[str, tuple[str, str]] = {}
    for name in ("nproc-per-node", *_OF_MACHINES, "max-restarts", "module", *_SWITCHES):
        variable = f"PET_{name.upper().replace('-', '_')}"
        value = os.environ.get(variable, "")
        if value and (value != "0" or name == "nproc-per-node" or name in _OF_MACHINES):
            found[name] = (f"{variable}={value}", value)
    return found


def _processes(text: str) -> int:
    """Return the number of processes for torchrun's option: a number, ``cpu``, ``gpu``, or ``auto``."""
    devices = len(host_facts().devices) if text in ("gpu", "auto") else 0
    if text == "gpu" and not devices:
        raise UsageError("torchrun --nproc-per-node gpu finds no device here", hint="--nproc-per-node 2")
    if text in ("cpu", "gpu", "auto"):
        return devices or os.cpu_count() or 1
    count = int(text) if text.isdecimal() else 0
    _check_count(count, "torchrun --nproc-per-node", text)
    return count


def _check_count(count: int, option: str, text: str) -> None:
    if not 1 <= count <= MOST_RANKS:
        raise UsageError(
            f"{option} {text!r} is not a number of processes up to {MOST_RANKS}",
            hint="-- torchrun --nproc-per-node 2 train.py",
        )


def _accelerate(words: Sequence[str], whole: Sequence[str], python: str) -> Within:
    if whole[0].endswith("accelerate") and whole[1:2] != ["launch"]:
        raise UsageError("accelerate is not a training script", hint="-- accelerate launch train.py")
    if not words:
        raise UsageError("no script follows accelerate launch", hint="-- accelerate launch train.py")
    one = _one_process(words)
    if one is not None and _accelerate_config() is None:
        note = (
            "accelerate launch with one process: the script is started by itself, with the variables that it "
            "sets"
        )
        if "OMP_NUM_THREADS" not in os.environ:
            note += " (OMP_NUM_THREADS=1 among them)"
        return Within(words=one, launcher=ACCELERATE, notes=(note,))
    python = python or _python_of(whole[0])
    found = accelerate_launch.resolve(python, words)
    given = list(words[: len(words) - len(found.words) + (found.words[0] == "-m")])
    launcher = launcher_text(ACCELERATE, found.count, _without(given, _COUNTED), found.variables)
    text = "one process" if found.count == 1 else f"{found.count} processes"
    note = f"accelerate launch with {text}: they are started by themselves, with the variables that it sets"
    return Within(words=("python", *found.words), python=python, launcher=launcher, notes=(note,))


_COUNTED: Final = {"num-processes": True, "m": False, "module": False}
"""Options handled separately from a launcher's own -> whether a value follows."""


def _one_process(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the script's words if the only option is a process count of one; else None."""
    rest, is_module, is_one = list(words), False, False
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in ("m", "module"):
            is_module = True
        elif name in ("num-processes", "num-machines"):
            value = value if equals else (rest.pop(0) if rest else "")
            is_one = is_one or name == "num-processes"
            if value != "1":
                return None
        else:
            return None
    return ("python", *(["-m"] if is_module else []), *rest) if is_one and rest else None


def _without(words: Sequence[str], names: Mapping[str, bool]) -> list[str]:
    """Return the words without these options and their values."""
    kept, rest = list[str](), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.lstrip("-").partition("=")
        name = name.replace("_", "-") if word.startswith("-") else ""
        if name not in names:
            kept.append(word)
        elif names[name] and not equals and rest:
            rest.pop(0)
    return kept


def _python_of(program: str) -> str:
    """Return the interpreter in a console script's first line; the running one without it."""
    path = Path(program) if os.sep in program else Path(shutil.which(program) or program)
    named = written_interpreter(path) if path.is_file() else None
    return named[0] if named and os.sep in named[0] else sys.executable


def _deepspeed(words: Sequence[str], python: str, program: str) -> Within:
    rest, count, is_module, options = list(words), 0, False, list[str]()
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.lstrip("-").replace("-", "_")
        if name in _DEEPSPEED_VALUES:
            value = value if equals else (rest.pop(0) if rest else "")
        if name in ("num_gpus", "num_accelerators"):
            count = int(value) if value.isdecimal() else 0
        elif name == "module":
            is_module = True
        elif name == "no_local_rank":
            options.append("--no_local_rank")
        elif name == "hostfile" or (name == "num_nodes" and value != "1"):
            raise UsageError(
                f"deepspeed {word} starts processes on several machines, "
                "which is carried over for torchrun only",
                hint="a script with deepspeed.initialize runs under torchrun, too: "
                "-- torchrun --nnodes 2 --nproc-per-node 8 train.py",
            )
        elif not (name in _DEEPSPEED_LEFT_OUT or name == "num_nodes"):
            raise UsageError(
                f"deepspeed's option {word} cannot be carried over",
                hint="on one machine: -- deepspeed --num_gpus 2 train.py",
            )
    count = count or len(host_facts().devices)
    if not count:
        raise UsageError("deepspeed finds no device here", hint="-- deepspeed --num_gpus 2 train.py")
    if not rest:
        raise UsageError("no script follows deepspeed", hint="-- deepspeed --num_gpus 2 train.py")
    _check_count(count, "deepspeed --num_gpus", str(count))
    note = (
        f"deepspeed with {count} processes: they are started by themselves, with the variables that it sets"
    )
    return Within(
        words=("python", *(["-m"] if is_module else []), *rest),
        python=python or (_python_of(program) if os.sep in program or shutil.which(program) else ""),
        launcher=launcher_text(DEEPSPEED, count, options),
        notes=(note,),
    )


def _accelerate_config() -> Path | None:
    """Return the file of ``accelerate config``, by the package's own rule for its location."""
    home = os.environ.get("HF_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(home) if home else cache / "huggingface"
    for name in ("default_config.yaml", "default_config.yml", "default_config.json"):
        if (folder / "accelerate" / name).is_file():
            return folder / "accelerate" / name
    return None
