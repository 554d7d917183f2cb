"""What the user wrote after `--`: an interpreter, a script, its arguments."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError, did_you_mean

_PYTHON = re.compile(r"pythonw?(\d+(\.\d+)*)?(\.exe)?", re.IGNORECASE)
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun", "uv", "poetry", "conda", "bash", "sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A training run as the user starts it.

    Args:
        python: Interpreter, absolute; symbolic links are kept, they name virtual environments.
        script: Absolute path.
        args: The script's own arguments.
    """

    python: str
    script: str
    args: tuple[str, ...]


def read_command(words: list[str], *, script: str = "", python: str = "") -> Command:
    """The run that these words mean.

    Args:
        words: What followed ``--``: the script's arguments where `script` is given, else
            ``[python] script args``.
        script: Of ``--script``; empty where the words hold it.
        python: Of ``--python``; empty for the one in the words, else the running interpreter.

    Raises:
        UsageError: No script is named, it does not exist, or the words start something else.
    """
    if script:
        return Command(python=_interpreter(python), script=_existing(script), args=tuple(words))
    if not words:
        raise UsageError(
            "no script is given",
            hint="autotune search --script train.py --budget 30m [-- the script's arguments]",
        )
    first = Path(words[0]).name
    if _PYTHON.fullmatch(first):
        return _after_python(words, python)
    if first in _LAUNCHERS:
        raise UsageError(
            f"{first} is a launcher, and only python scripts are started",
            hint="leave it out: autotune search -- python train.py ...",
        )
    if re.match(r"[A-Za-z_]\w*=", words[0]):
        name = words[0].partition("=")[0]
        raise UsageError(
            f"{words[0]!r} is no script", hint=f"set {name} before autotune: {words[0]} autotune ..."
        )
    return Command(python=_interpreter(python), script=_existing(words[0]), args=tuple(words[1:]))


def _after_python(words: list[str], python: str) -> Command:
    if len(words) == 1:
        raise UsageError("no script follows the interpreter", hint="-- python train.py ...")
    if words[1].startswith("-"):
        raise UsageError(
            f"the interpreter's option {words[1]} cannot be carried over",
            hint="name a script file: -- python train.py ...",
        )
    return Command(python=_interpreter(python or words[0]), script=_existing(words[1]), args=tuple(words[2:]))


def _interpreter(name: str) -> str:
    if not name:
        return sys.executable
    if os.sep in name:
        path = str(Path(name).absolute())
        if not os.access(path, os.X_OK):
            raise UsageError(f"there is no interpreter {name}")
        return path
    found = shutil.which(name)
    if found is None and name in ("python", "python3"):
        return sys.executable
    if found is None:
        raise UsageError(f"there is no interpreter {name} on the PATH")
    return str(Path(found).absolute())


def _existing(script: str) -> str:
    path = Path(script).expanduser().absolute()
    if path.is_file():
        return str(path)
    if path.is_dir():
        raise UsageError(f"{script} is a folder, not a script", hint=_candidates(path))
    guess = _near(path)
    hint = guess or f"it was looked for as {path}"
    raise UsageError(f"there is no script {script}", hint=hint)


def _near(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"there is no folder {path.parent}"
    return did_you_mean(path.name, names)


def _candidates(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.glob("*.py"))[:5]
    return f"scripts in it: {', '.join(names)}" if names else "name the script file"
