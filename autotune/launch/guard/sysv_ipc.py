"""System V shared memory, semaphores and message queues: this user's, their creators, and removal.

They outlive every process, and their names do not identify a trial. A trial with its own IPC namespace has
its own objects; this module is for the others.

Standard library only, and nothing of autotune: the guard loads it by path under ``python -S -E``.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

Object = tuple[str, int]
"""Kind and number in the kernel."""

_NUMBERS = {"shm": "shmid", "sem": "semid", "msg": "msqid"}
_USERS = {"shm": ("cpid",), "sem": (), "msg": ("lspid", "lrpid")}
"""Columns of ``/proc/sysvipc`` with pids; for semaphores only `semctl` has them."""
_MOST_SEMAPHORES = 256
"""Largest number of semaphores per set whose last users are read."""
_IPC_RMID, _SEM_GETPID = 0, 11

_libc = ctypes.CDLL(None, use_errno=True)


def own() -> set[Object]:
    """Return objects that this user has created, from any process."""
    return {(kind, row[number]) for kind, number in _NUMBERS.items() for row in _rows(kind)}


def made_by(pids: Collection[int], objects: Collection[Object]) -> set[Object]:
    """Return the objects that these processes created.

    For kinds whose creator the kernel does not record: that only these processes used last.

    Args:
        pids: Processes, which may have ended.
        objects: From `own`.
    """
    found: set[Object] = set()
    for kind in {kind for kind, _ in objects}:
        for row in _rows(kind):
            users = {row[name] for name in _USERS[kind]}
            if kind == "sem":
                users = {_semctl(row["semid"], n) for n in range(min(row["nsems"], _MOST_SEMAPHORES))}
            users -= {0, -1}
            if users and users <= set(pids):
                found.add((kind, row[_NUMBERS[kind]]))
    return found & set(objects)


def remove(objects: Iterable[Object]) -> list[Object]:
    """Remove objects of this user; shared memory with attached processes is left.

    Returns:
        The removed objects.
    """
    remaining, gone = set(objects), list[Object]()
    for kind, number in _NUMBERS.items():
        for row in _rows(kind):
            one = (kind, row[number])
            if one in remaining and not row.get("nattch"):
                call = getattr(_libc, f"{kind}ctl")
                result = call(one[1], 0, _IPC_RMID) if kind == "sem" else call(one[1], _IPC_RMID, None)
                gone += [one] if result == 0 else []
    return sorted(gone)


def _semctl(number: int, place: int) -> int:
    return int(_libc.semctl(number, place, _SEM_GETPID))


def _rows(kind: str) -> Iterator[dict[str, int]]:
    """Yield the kernel's list of this user's objects of a kind, by column name."""
    try:
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as file:
            names, *lines = (line.split() for line in file)
        rows = [dict(zip(names, map(int, line), strict=False)) for line in lines]
    except (OSError, ValueError):
        return
    yield from (row for row in rows if row.get("cuid") == os.geteuid())
