"""Ownership of files: a home can be shared, and other accounts' files are not changed."""

from __future__ import annotations

import functools
import os
import pwd
import stat
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def foreign(folder: Path) -> str:
    """Return why a study's folder is not used, as a clause; empty if it is this account's own.

    For a link, both the link and its target must be this account's.
    """
    try:
        link, status = folder.lstat(), folder.stat()
    except FileNotFoundError:
        return "its link leads nowhere" if folder.is_symlink() else "it is gone"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "it is no folder"
    for uid in dict.fromkeys((link.st_uid, status.st_uid)):
        if not is_own(uid, folder.parent):
            return f"it belongs to {account(uid)}"
    if not os.access(folder, os.R_OK | os.X_OK):
        return "it cannot be read: Permission denied"
    return ""


def is_own(uid: int, folder: Path) -> bool:
    """Return whether a file with this owner is this account's, in a folder of the same file system."""
    return uid == os.geteuid() or uid == _owner_of_new_files(str(folder))


def account(uid: int) -> str:
    """Return the name of an account, else its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@functools.cache
def _owner_of_new_files(folder: str) -> int:
    """Return the owner that a file of this account gets there: another one where a mount maps accounts."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()
