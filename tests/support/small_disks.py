"""Small disks that really are full, for tests that may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20

SmallDisk = Callable[..., Path]
"""Mounts one: its name, its size, and how much of it stays free (None: all)."""


@contextmanager
def _mounted(place: Path, size_bytes: int) -> Iterator[None]:
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0755", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, free_bytes: int = 0) -> None:
    """Leave so much room on a disk."""
    status = os.statvfs(place)
    taken = status.f_bavail * status.f_frsize - free_bytes
    with (place / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, taken))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mounts a disk of its own below the test's folder; skips where that is not allowed."""
    if not hasattr(os, "geteuid") or os.geteuid():
        pytest.skip("only root may mount a disk")
    with ExitStack() as mounts:

        def make(name: str, size_bytes: int, *, free_bytes: int | None = None) -> Path:
            place = tmp_path / name
            mounts.enter_context(_mounted(place, size_bytes))
            if free_bytes is not None:
                fill(place, free_bytes)
            return place

        yield make
