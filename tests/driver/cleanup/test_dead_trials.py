"""A search that starts removes what killed searches have left on the machine."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING

from autotune.driver.cleanup.dead_trials import end_dead_trials
from autotune.launch.guard import owned_resources, sysv_ipc
from autotune.store.journal import Journal
from autotune.store.paths import home, new_id
from autotune.store.study_lock import locked

if TYPE_CHECKING:
    from pathlib import Path


def left() -> tuple[Path, sysv_ipc.Object]:
    """A study whose trial has left shared memory, and the record of it."""
    folder = home() / "studies" / new_id()
    Journal.create(folder, ballast_bytes=0).close()
    trial = folder / "trials" / "t0000-a1-aaaaaa"
    trial.mkdir(parents=True)
    number = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
    record = {"boot": owned_resources.boot_id(), "processes": [], "objects": [["shm", number]]}
    (trial / owned_resources.RECORD).write_text(json.dumps(record))
    return folder, ("shm", number)


def test_what_is_left_of_a_killed_search_is_removed_and_reported() -> None:
    folder, one = left()
    try:
        (message,) = end_dead_trials()
        assert "System V objects: 1" in message
        assert one not in sysv_ipc.own()
        assert end_dead_trials() == []
        assert list(folder.glob("trials/*/owned.json")) == []
    finally:
        sysv_ipc.remove([one])


def test_a_running_search_is_left_alone() -> None:
    folder, one = left()
    try:
        with locked(folder):
            assert end_dead_trials() == []
        assert one in sysv_ipc.own()
    finally:
        sysv_ipc.remove([one])
