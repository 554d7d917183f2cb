"""The part of this package that runs in the user's interpreter, in a folder that holds nothing else.

That interpreter has packages of its own, and none of the driver's may be seen by it: not the other ones of
the folder that this package is installed in either. So the modules of the training process are copied
into a folder by themselves, which a process is started from (``python FOLDER`` runs its ``__main__``),
and which is the one entry that `PYTHONPATH` gains, for processes that the script starts itself.
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
"""What the training process may import of ours; standard library and torch only."""

COMPILE_S = 60.0

_START = """\
import sys

if sys.flags.ignore_environment:
    # Where PYTHONPATH does not count, processes that the script starts find us by the end of its path.
    sys.path.append(sys.path[0])

from autotune.trial.__main__ import main

main()
"""


def make(place: Path, *, compiler: Sequence[str] = ()) -> str:
    """The folder to start from, below `place`; made where it is not there in just this version.

    Args:
        place: A folder of ours; made if missing. Several processes may call at once.
        compiler: Interpreter and options that are to run it: compiles it once, so that not every
            trial does. Left out, each run compiles what it needs.

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
        # Onto a folder that is not empty this fails: somebody else was quicker, with the same content.
        with contextlib.suppress(OSError):
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if not folder.is_dir():
        message = f"{folder} could not be made"
        raise OSError(message)
    return str(folder)


def trial_command(python: str, folder: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that runs our part of the training process under this interpreter.

    Args:
        python: Interpreter.
        folder: From `make`.
        options: The interpreter's own, as the user gave them.
    """
    return (python, *options, folder)


def environment(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment with this folder in front of the user's own `PYTHONPATH`."""
    own = env.get("PYTHONPATH", "")
    return {**env, "PYTHONPATH": folder + (os.pathsep + own if own else "")}


def _package() -> Path:
    return Path(__file__).resolve().parents[2]


def _copy(target: Path) -> None:
    # Compiled files come along and stay valid, since times are kept.
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
    """Names this version of the sources, so that another one is never taken for it."""
    told = hashlib.sha256(_START.encode())
    for path in _sources():
        told.update(path.as_posix().encode() + b"\0" + path.read_bytes())
    return told.hexdigest()[:12]


def _sources() -> Iterator[Path]:
    for name in PARTS:
        path = _package() / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
