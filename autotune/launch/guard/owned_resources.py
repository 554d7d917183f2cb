"""Record of a trial's processes and System V objects, in its folder while its guard lives.

`autotune.launch.workspace.orphans` acts on a record without a living guard. It needs no mark in an
environment and no place in a process tree to find the recorded resources.

Standard library only, and nothing of autotune but this folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

if __package__:
    from autotune.launch.guard import process_tree, sysv_ipc
else:
    import process_tree  # pyright: ignore[reportMissingImports]
    import sysv_ipc  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

RECORD = "owned.json"


def boot_id() -> str:
    """Return the identity of this boot; process and object numbers are valid within one boot only."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Owned:
    """Processes and System V objects of a trial; see the module.

    Args:
        folder: Folder of the trial.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, RECORD)
        self._before = sysv_ipc.own()
        self._objects: set[sysv_ipc.Object] = set()
        self._starts: dict[int, int] = {}
        self._written: dict[str, Any] = {}

    def take(self, alive: Iterable[int], seen: Collection[int]) -> None:
        """Update the record.

        Args:
            alive: Processes of the trial now.
            seen: All its processes so far.
        """
        new = sysv_ipc.own() - self._before - self._objects
        if new:
            self._objects |= sysv_ipc.made_by(seen, new)
        self._starts = {pid: self._starts.get(pid) or process_tree.start_ticks(pid) for pid in alive}
        record = {
            "boot": boot_id(),
            "processes": sorted(self._starts.items()),
            "objects": sorted(self._objects),
        }
        if record != self._written:
            with contextlib.suppress(OSError):
                self._write(record)
                self._written = record

    def _write(self, record: dict[str, Any]) -> None:
        part = self._path + ".part"
        # The trial can write to this folder too, and may have put a link there.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(record, file)
        os.rename(part, self._path)

    def close(self) -> None:
        """Remove the objects and the record, after the processes have ended."""
        sysv_ipc.remove(self._objects)
        for path in (self._path, self._path + ".part"):
            with contextlib.suppress(OSError):
                os.unlink(path)
