"""Observed runs as forks of one process that has loaded torch: the same, in a third of the time.

What is left out is the import of torch itself: variables that torch reads then need a process of their own,
and the order of the script's imports is not shown.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import zoo_observer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_really_exit = os._exit
_SECONDS_BETWEEN_LOOKS = 0.02


def preload() -> None:
    """Load what scripts load; nothing may run threads afterwards."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import sklearn.datasets
    import torch
    import torch.utils.data

    assert sklearn.datasets is not None
    torch.set_num_threads(1)


def run(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], folder: Path, timeout_s: float
) -> tuple[int, str]:
    """Exit code (124: not ended in time) and what was written to stderr."""
    errors = folder / "stderr.txt"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _in_child(words, cwd, env, folder)
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), errors.read_text(encoding="utf-8", errors="replace")
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124, f"not ended after {timeout_s:g} s"


def _in_child(words: Sequence[str], cwd: Path, env: Mapping[str, str], folder: Path) -> None:
    code = 1
    try:
        os.setsid()
        for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.argv = ["zoo_observer", *words]
        sys.path[:] = [str(cwd), *(p for p in sys.path if p and not p.endswith("experiments/zoo"))]
        atexit._clear()
        zoo_observer.main()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it was, this process ends here
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    _really_exit(code)
