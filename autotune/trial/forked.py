"""A question that is answered in a forked child: whatever it changes, this process stays as it was."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def answer_of(task: Callable[[], Any], *, limit_s: float) -> Any:
    """Run a task in a child, as a loader's worker would run it, and return its answer.

    The child has no sockets or pipes of this process, whose other ends would be confused. Positions of open
    files are shared by fork and are put back; this process waits meanwhile.

    Args:
        task: Its answer is JSON-ready.
        limit_s: The child is killed after so many seconds.

    Returns:
        The answer; None where there is none: an error, the end of the time, no fork.
    """
    read, write = os.pipe()
    positions = _positions()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        return None
    if child == 0:
        _run(task, write)
    os.close(write)
    try:
        return _read_answer(read, limit_s)
    finally:
        os.close(read)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(child, 0)
        for descriptor, place in positions.items():
            with contextlib.suppress(OSError):
                os.lseek(descriptor, place, os.SEEK_SET)


def _run(task: Callable[[], Any], write: int) -> None:
    """In the child: nothing of the parent's may run again, not even its exit handlers."""
    try:
        silent = os.open(os.devnull, os.O_RDWR)
        for descriptor in list(descriptors()):
            mode = os.fstat(descriptor).st_mode
            is_line = stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
            if descriptor != write and (descriptor < 3 or is_line):
                os.dup2(silent, descriptor)
        os.write(write, json.dumps(task()).encode())
    except BaseException:
        os._exit(1)
    os._exit(0)


def _read_answer(read: int, limit_s: float) -> Any:
    text, until_s = b"", time.monotonic() + limit_s
    while time.monotonic() < until_s:
        ready, _, _ = select.select([read], [], [], max(0.0, until_s - time.monotonic()))
        part = os.read(read, 65536) if ready else b""
        if not part:
            break
        text += part
    try:
        return json.loads(text)
    except ValueError:
        return None


def descriptors() -> Iterator[int]:
    """Open file descriptors of this process; none where ``/proc`` does not show them."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.fstat(int(name))
                yield int(name)


def _positions() -> dict[int, int]:
    found: dict[int, int] = {}
    for descriptor in descriptors():
        with contextlib.suppress(OSError):
            if is_read_from(descriptor):
                found[descriptor] = os.lseek(descriptor, 0, os.SEEK_CUR)
    return found


def is_read_from(descriptor: int) -> bool:
    """Whether it is a file with a position that is only read: no thread writes to it meanwhile."""
    reads = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return reads and stat.S_ISREG(os.fstat(descriptor).st_mode)
