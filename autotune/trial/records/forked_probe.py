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
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_GRACE_S = 2.0
"""For a child that is asked to end: it leaves the blocks that it is in, and unlocks what it has locked."""


class _Ended(BaseException):
    """The child is asked to end; no error that code of the script's would take for one of its own."""


def answer_of(task: Callable[[], Any], *, limit_s: float) -> Any:
    """Run a task in a child, as a loader's worker would run it, and return its answer.

    The child has no sockets or pipes of this process, whose other ends would be confused. Positions of open
    files are shared by fork and are put back; this process waits meanwhile. Locks of `multiprocessing` are
    shared as well, so a child that takes too long is asked to end, and killed only where it does not.

    Args:
        task: Its answer is JSON-ready.
        limit_s: The child has to end after so many seconds.

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
        _end(child, read)
        os.close(read)
        for descriptor, place in positions.items():
            with contextlib.suppress(OSError):
                os.lseek(descriptor, place, os.SEEK_SET)


def _run(task: Callable[[], Any], write: int) -> NoReturn:
    """In the child: nothing of the parent's may run again, not even its exit handlers."""
    code = 1
    try:
        try:
            _answer(task, write)
            code = 0
        finally:
            os._exit(code)
    finally:
        # The one exception of `_asked_to_end` may have come between the two.
        os._exit(code)


def _answer(task: Callable[[], Any], write: int) -> None:
    signal.signal(signal.SIGTERM, _asked_to_end)
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in list(descriptors()):
        mode = os.fstat(descriptor).st_mode
        is_line = stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
        if descriptor != write and (descriptor < 3 or is_line):
            os.dup2(silent, descriptor)
    os.write(write, json.dumps(task()).encode())


def _asked_to_end(_number: int, _frame: FrameType | None) -> None:
    # Once: what the blocks that are left do is not interrupted.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _end(child: int, read: int) -> None:
    """Wait for a child that has answered; ask one that has not to end, then kill it."""
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
