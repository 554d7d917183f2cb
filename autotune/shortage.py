"""Conversion of errors that mean a used-up resource (disk, memory, processes) to `AutotuneError`.

Python, SQLite and other libraries report a full disk or a reached limit in many different forms.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING, Final

from autotune.errors import AutotuneError, BackendError, DiskFailed, DiskFull

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Place = str | os.PathLike[str]

_ENOUGH_BYTES: Final = 64 * 1024**2
"""A disk with more free space than this is not full; a quota may be. The journal reserves 16 MiB."""
_LEAST_BYTES: Final = 64 * 1024
"""Free space that SQLite needs to create its smallest files."""
_UNITS: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_ELSEWHERE: Final = "set AUTOTUNE_HOME or TMPDIR to a folder on another disk"
_STARTS: Final = ("subprocess.py", "popen_fork.py", "pty.py")
"""Files of the standard library that start processes; EAGAIN from other files has other causes."""


def shortage(error: BaseException, *, what: str = "", places: Sequence[Place] = ()) -> AutotuneError | None:
    """Return the error for a used-up resource, or None if `error` has another cause.

    Args:
        error: Examined together with its causes.
        what: What failed, as the beginning of the sentence.
        places: Files or folders that may have been written, used if the error names none.
    """
    for cause in _causes(error):
        found = _recognised(cause, places)
        if found is not None:
            found.message = f"{what}: {found.message}" if what else found.message
            return found
    return None


def first_line(error: BaseException, places: Sequence[Place] = ()) -> str:
    """Return a used-up resource as one line, else the type of the error and its first line."""
    found = shortage(error, places=places)
    if found is not None:
        return found.message
    line = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def size_text(size: float) -> str:
    """Return a size as text: ``6.8 GiB``, ``512.0 MiB``, ``3.2 KiB``, ``12 bytes``."""
    unit, factor = next(((u, f) for u, f in _UNITS if size >= f), ("", 1))
    return f"{size / factor:.1f} {unit}" if unit else f"{size:.0f} bytes"


def address_space_bytes() -> int | None:
    """Return the limit of this process's address space (``ulimit -v``), or None if unlimited."""
    return _limit(resource.RLIMIT_AS)


def address_space() -> str:
    """Return the limit of this process's address space as a clause, empty if unlimited."""
    limit = _limit(resource.RLIMIT_AS)
    return f"this process may use {size_text(limit)} of address space" if limit is not None else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, also SQLite's own error within one of SQLAlchemy."""
    known: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        yield one
        original = getattr(one, "orig", None)
        waiting += [one.__cause__, one.__context__, original if isinstance(original, BaseException) else None]


def _recognised(error: BaseException, places: Sequence[Place]) -> AutotuneError | None:
    text = str(error)
    if isinstance(error, OSError):
        return _of_system(error, [error.filename] if isinstance(error.filename, str) else places)
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _no_memory(text)):
        return _memory()
    if isinstance(error, RuntimeError) and "can't start new thread" in text:
        return _processes()
    if type(error).__module__ == "sqlite3":
        if "disk is full" in text:
            return _full(places)
        if "unable to open database file" in text and _free(_fullest(places)) < _LEAST_BYTES:
            return _full(places)
        if "readonly database" in text or "disk I/O error" in text:
            return _failed(text, places)
    return None


def _of_system(error: OSError, places: Sequence[Place]) -> AutotuneError | None:
    number = error.errno
    if number == errno.ENOSPC:
        return _full(places)
    if number == errno.EDQUOT:
        message = f"the quota of disk space is used up{_in(_fullest(places))}"
        return DiskFull(message, hint=f"make room there, or {_ELSEWHERE}")
    if number == errno.EROFS:
        return _failed("read-only file system", places)
    if number in (errno.EMFILE, errno.ENFILE):
        return _files()
    if number == errno.ENOMEM:
        return _memory()
    if number == errno.EAGAIN and _starts_process(error):
        return _processes()
    if number == errno.ENOENT and "No usable temporary directory" in str(error):
        message = "no temporary folder can be written: TMPDIR, /tmp and the current folder are full or closed"
        return BackendError(message, hint="make room in /tmp, or set TMPDIR to a folder on another disk")
    return None


def _full(places: Sequence[Place]) -> DiskFull:
    folder = _fullest(places)
    hint = f"make room there, or {_ELSEWHERE}"
    if folder and _free(folder) < _ENOUGH_BYTES:
        status = os.statvfs(folder)
        if status.f_files and not status.f_favail:
            return DiskFull(f"the disk of {folder} takes no more files (0 inodes free)", hint=hint)
        free = size_text(status.f_bavail * status.f_frsize)
        return DiskFull(f"the disk of {folder} is full ({free} free)", hint=hint)
    where = folder if len(places) == 1 else ""
    return DiskFull(f"a disk is full, or a quota is used up{_in(where)}", hint=hint)


def _failed(text: str, places: Sequence[Place]) -> DiskFailed:
    folder = _fullest(places)
    free = f" ({size_text(_free(folder))} free)" if folder else ""
    hint = f"check that the disk is mounted and writable, or {_ELSEWHERE}"
    return DiskFailed(f"{text}{_in(folder)}{free}", hint=hint)


def _files() -> BackendError:
    limit = _limit(resource.RLIMIT_NOFILE)
    most = f": this process may open {limit}" if limit is not None else ""
    return BackendError(f"too many files are open{most}", hint="allow more: ulimit -n 4096")


def _memory() -> BackendError:
    space = address_space()
    if space:
        return BackendError(f"there is not enough memory: {space}", hint="allow more: ulimit -v unlimited")
    hint = "end other programs, or allow this container more memory"
    return BackendError("there is not enough memory on this machine", hint=hint)


def _processes() -> BackendError:
    limit, space = _limit(resource.RLIMIT_NPROC), address_space()
    limits = [f"this user may have {limit} of them"] if limit is not None else []
    limits += [space] if space else []
    commands = ["ulimit -v unlimited"] if space else []
    commands += ["ulimit -u 4096"] if limit is not None else []
    message = "no more threads or processes can be started" + (f": {', and '.join(limits)}" if limits else "")
    hint = (
        f"allow more: {' and '.join(commands)}"
        if commands
        else "allow this container more processes (pids.max)"
    )
    return BackendError(message, hint=hint)


def _no_memory(text: str) -> bool:
    return "Cannot allocate memory" in text or "failed to map segment from shared object" in text


def _starts_process(error: BaseException) -> bool:
    """Return whether the error was raised while a process was started."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.endswith(_STARTS):
        trace = trace.tb_next
    return trace is not None


def _limit(which: int) -> int | None:
    soft, _hard = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _in(folder: str) -> str:
    return f" in {folder}" if folder else ""


def _fullest(places: Iterable[Place]) -> str:
    """Return the existing folder with the least free space of these places, or an empty string."""
    folders = [found for place in places if (found := _existing(os.fspath(place)))]
    return min(folders, key=_free, default="")


def _existing(path: str) -> str:
    """Return the path or its nearest existing parent folder; empty if none can be examined."""
    try:
        path = os.path.abspath(path)  # noqa: PTH100 (pathlib may not be importable any more)
    except OSError:
        return ""
    while not os.path.isdir(path):  # noqa: PTH112 (pathlib may not be importable)
        if path == os.path.dirname(path):  # noqa: PTH120 (pathlib may not be importable)
            return ""
        path = os.path.dirname(path)  # noqa: PTH120 (pathlib may not be importable)
    return path


def _free(folder: str) -> int:
    """Return the free bytes of a disk: 0 without free inodes, 2**63 if unknown."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 2**63
    return 0 if status.f_files and not status.f_favail else status.f_bavail * status.f_frsize
