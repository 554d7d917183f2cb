"""Where a trial writes, and what of that goes with its process."""

from __future__ import annotations

import tempfile
from pathlib import Path

from autotune.launch.workspace import isolation

SCRATCH = ("upper", "work", "lower", "root", "empty", "memory", "shadow", "cache", "output")
"""Of a trial's folder: what nobody reads once its process has ended."""


def temporary_folder(uid: str) -> Path:
    """A trial's ``TMPDIR``: short, because Unix sockets are made in it and their paths end at 107 bytes."""
    return Path(tempfile.gettempdir()) / f"at-{uid}"


def remove_scratch(folder: Path) -> None:
    """Remove what a trial needed while it ran, in its folder and beside.

    Args:
        folder: The trial's; its name is the attempt's uid.
    """
    for scratch in (*(folder / name for name in SCRATCH), temporary_folder(folder.name)):
        isolation.remove(scratch)
