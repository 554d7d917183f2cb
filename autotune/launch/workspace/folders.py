"""Folders of a trial, and those removed with its process."""

from __future__ import annotations

import tempfile
from pathlib import Path

from autotune.launch.workspace import isolation

SCRATCH = ("upper", "work", "lower", "root", "empty", "memory", "shadow", "cache", "output")
"""Subfolders of a trial that are not needed after its process has ended."""


def temporary_folder(uid: str) -> Path:
    """Return a trial's ``TMPDIR``; short, as Unix sockets are created in it (path limit 107 bytes)."""
    return Path(tempfile.gettempdir()) / f"at-{uid}"


def remove_scratch(folder: Path) -> None:
    """Remove a trial's scratch files, in its folder and elsewhere.

    Args:
        folder: Folder of the trial; its name is the attempt's uid.
    """
    for scratch in (*(folder / name for name in SCRATCH), temporary_folder(folder.name)):
        isolation.remove(scratch)
