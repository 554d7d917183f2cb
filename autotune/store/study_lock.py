"""Lock of a study: `flock` on a file beside its journal, held by its one writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import StoreError, StudyLocked
from autotune.store.paths import LOCK_FILE, unwritable

if TYPE_CHECKING:
    from collections.abc import Generator

_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "fuse",
    "9p",
    "gpfs",
    "ceph",
    "beegfs",
    "afs",
    "gluster",
    "pvfs",
    "orangefs",
)
_NO_LOCKS = "Set AUTOTUNE_HOME to a directory on a local disk."


def is_network_filesystem(directory: Path, *, mounts: str | None = None) -> bool:
    """Return whether a directory is on a network or FUSE file system.

    Args:
        directory: Existing directory.
        mounts: Text in the form of ``/proc/self/mountinfo``, which is read by default.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
    real = os.path.realpath(directory)
    best, kind = "", ""
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if not dash or len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later one is on top.
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind.startswith(_NETWORK)


class StudyLock:
    """Exclusive `flock`; the file contains the holder's name for other processes."""

    def __init__(self, path: Path, *, prove: bool) -> None:
        self._path = path
        try:
            # Close-on-exec is Python's default: a trial's process must not keep the lock alive.
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise unwritable(f"{path} cannot be opened", path, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._holder()
            os.close(self._fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                message = f"{path.parent} cannot be locked: {error.strerror}"
                raise StoreError(message, hint=_NO_LOCKS) from error
            message = f"another driver writes to {path.parent}: {holder}"
            raise StudyLocked(
                message, hint="Wait for it, or end it; `autotune show` needs no lock."
            ) from error
        self.is_held = True
        if prove and not self._has_effect():
            self.release()
            message = f"locks have no effect in {path.parent}"
            raise StoreError(message, hint=_NO_LOCKS)
        note = (
            f"pid {os.getpid()} on host {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        )
        os.ftruncate(self._fd, 0)
        # On a full disk only the name is missing.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, note.encode(), 0)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self.is_held:
            self.is_held = False
            os.close(self._fd)

    def _holder(self) -> str:
        with contextlib.suppress(OSError):
            if text := os.pread(self._fd, 200, 0).decode(errors="replace").strip():
                return text
        return "an unknown process"

    def _has_effect(self) -> bool:
        # In another process: NFS implements flock by record locks, which never conflict within a process.
        code = (
            "import fcntl, sys\n"
            "file = open(sys.argv[1], 'r+')\n"
            "try:\n    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
            "except OSError:\n    sys.exit(3)\n"
        )
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", code, os.fspath(self._path)], timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 3


@contextlib.contextmanager
def locked(directory: Path) -> Generator[None, None, None]:
    """Lock a study against writers, like a journal opened for writing.

    Raises:
        StudyLocked: Another process writes to it.
        StoreError: The directory cannot be locked.
    """
    lock = StudyLock(directory / LOCK_FILE, prove=is_network_filesystem(directory))
    try:
        yield
    finally:
        lock.release()


def is_locked(directory: Path, name: str = LOCK_FILE) -> bool:
    """Return whether another process holds the lock of this study; does not wait."""
    try:
        # A link may lead elsewhere, and a pipe would block.
        fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
