"""Common folder for the locks of this machine: every account adds files and removes only its own."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

VARIABLE: Final = "AUTOTUNE_LOCKS"
"""Environment variable with another folder, which containers on one machine can share."""

SYSTEM_FOLDER: Final = "/run/lock"
OWN_FOLDER: Final = "/tmp/autotune-locks"  # noqa: S108 (checked before use; $TMPDIR differs between accounts)

_FOR_ALL: Final = 0o1777
"""Mode of the folder: all accounts may add files, and the sticky bit restricts removal to the owner."""


def lock_folder() -> Path:
    """Return the folder for lock files.

    Raises:
        OSError: There is no folder that all accounts share.
    """
    if named := os.environ.get(VARIABLE):
        chosen = Path(named).expanduser().absolute()
        chosen.mkdir(parents=True, exist_ok=True)
        return chosen
    if is_for_all(SYSTEM_FOLDER):
        return Path(SYSTEM_FOLDER)
    folder = Path(OWN_FOLDER)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(_FOR_ALL)
    if not is_for_all(OWN_FOLDER):
        raise PermissionError(errno.EPERM, "it is not a folder that all accounts share", OWN_FOLDER)
    return folder


def is_for_all(path: str) -> bool:
    """Return whether this is a folder, no link, that all accounts may use and none can damage."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and stat.S_IMODE(mode) & _FOR_ALL == _FOR_ALL


def opened(folder: Path, name: str) -> int:
    """Open a lock file for reading, which suffices for a lock; its owner may be another account.

    Raises:
        OSError: It cannot be opened, or is a link.
    """
    path = folder / name
    # In a world-writable folder there may be a link, or a pipe that blocks on opening.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)
