"""Tasks in a forked child, so that their side effects do not reach this process."""

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
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_GRACE_S = 2.0
"""Time for a child to end on request; it leaves its blocks and releases its locks."""


class _Ended(BaseException):
    """End request of the child; not derived from exceptions that the script's code handles."""


def answer_of(task: Callable[[], Any], *, limit_s: float) -> Any:
    """Run a task in a child, like a loader's worker, and return its result.

    Sockets and pipes are closed in the child, whose peers would be confused. Offsets of open files are shared
    by fork and are restored; this process waits meanwhile. Locks of `multiprocessing` are shared as well, so
    a child that takes too long is first requested to end, and then killed.

    Args:
        task: Returns a JSON-serializable result.
        limit_s: Time limit of the child, in seconds.

    Returns:
        The result; None after an error, a timeout or a failed fork.
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
        _end(child, read)
        os.close(read)
        for descriptor, place in positions.items():
            with contextlib.suppress(OSError):
                os.lseek(descriptor, place, os.SEEK_SET)


def _run(task: Callable[[], Any], write: int) -> NoReturn:
    """Run the task in the child; no code of the parent may run again, not even its exit handlers."""
    code = 1
    try:
        try:
            _answer(task, write)
            code = 0
        finally:
            os._exit(code)
    finally:
        # The exception of the signal handler may have been raised between the two.
        os._exit(code)


def _answer(task: Callable[[], Any], write: int) -> None:
    signal.signal(signal.SIGTERM, _raise_ended)
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in list(descriptors()):
        mode = os.fstat(descriptor).st_mode
        is_line = stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
        if descriptor != write and (descriptor < 3 or is_line):
            os.dup2(silent, descriptor)
    os.write(write, json.dumps(task()).encode())


def _raise_ended(_number: int, _frame: FrameType | None) -> None:
    # Raised once, so that cleanup in the blocks is not interrupted.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _end(child: int, read: int) -> None:
    """Wait for a child that has answered; request another one to end, then kill it."""
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGTERM)
        # Its end of the pipe is closed when it ends.
        select.select([read], [], [], _GRACE_S)
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.waitpid(child, 0)


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
    """Return open file descriptors of this process; none without ``/proc``."""
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
    """Return whether it is a read-only file with an offset, to which no thread writes meanwhile."""
    reads = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return reads and stat.S_ISREG(os.fstat(descriptor).st_mode)
