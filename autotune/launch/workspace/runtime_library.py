"""The modules that run in the user's interpreter, copied into a folder of their own.

The user's interpreter has its own packages, and must not import any of the driver's, including those beside
autotune in its installation folder. So the modules of the training process are copied into a separate folder.
A process is started from it (``python FOLDER`` runs its ``__main__``). It is also added to `PYTHONPATH`, for
processes that the script starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PARTS = (
    "answer",
    "compare",
    "knobs",
    "loss",
    "model",
    "protocol",
    "source",
    "statistics",
    "text",
    "trial",
    "__init__.py",
    "clock.py",
    "errors.py",
    "sdk.py",
)
"""Modules that the training process may import; standard library and torch only."""

COMPILE_S = 60.0

_START = """\
import sys

if sys.flags.ignore_environment:
    # Where PYTHONPATH does not count, child processes of the script use the end of sys.path.
    sys.path.append(sys.path[0])

from autotune.trial.__main__ import main

main()
"""


def make(place: Path, *, compiler: Sequence[str] = ()) -> str:
    """Return the folder to start from, below `place`; created if this version is missing.

    Args:
        place: Folder; created if missing. Several processes may call at once.
        compiler: Interpreter and options of the trials, used to compile the modules once. Empty: each trial
            compiles them.

    Raises:
        OSError: It cannot be written.
    """
    folder = place / _digest()
    if folder.is_dir():
        return str(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place))
    try:
        _copy(draft / "autotune")
        (draft / "__main__.py").write_text(_START, encoding="utf-8")
        if compiler:
            _compile(draft, compiler)
        # The rename fails if another process was faster; its content is the same.
        with contextlib.suppress(OSError):
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if not folder.is_dir():
        message = f"{folder} could not be made"
        raise OSError(message)
    return str(folder)


def trial_command(python: str, folder: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command that runs the trial runtime under this interpreter.

    Args:
        python: Interpreter.
        folder: From `make`.
        options: Options of the interpreter from the user's command.
    """
    return (python, *options, folder)


def environment(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the environment with this folder in front of the user's `PYTHONPATH`."""
    own = env.get("PYTHONPATH", "")
    return {**env, "PYTHONPATH": folder + (os.pathsep + own if own else "")}


def _package() -> Path:
    return Path(__file__).resolve().parents[2]


def _copy(target: Path) -> None:
    # Compiled files are copied too; they stay valid as modification times are preserved.
    target.mkdir()
    for name in PARTS:
        source = _package() / name
        if source.is_dir():
            shutil.copytree(source, target / name)
        else:
            shutil.copy2(source, target / name)


def _compile(folder: Path, compiler: Sequence[str]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [*compiler, "-m", "compileall", "-q", "autotune"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMPILE_S,
            check=False,
        )


def _digest() -> str:
    """Return the name of this version of the sources."""
    digest = hashlib.sha256(_START.encode())
    for path in _sources():
        digest.update(path.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _sources() -> Iterator[Path]:
    for name in PARTS:
        path = _package() / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
