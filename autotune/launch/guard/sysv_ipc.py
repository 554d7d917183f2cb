"""System V shared memory, semaphores and message queues: which are this user's, who made them, their removal.

They outlive every process, and their names tell nothing of a trial. A trial with an IPC namespace of its own
has its own; this is for the others.

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
"""Columns of ``/proc/sysvipc`` with processes; of semaphores the kernel tells them by `semctl` alone."""
_MOST_SEMAPHORES = 256
"""Of a set, whose last users are read."""
_IPC_RMID, _SEM_GETPID = 0, 11

_libc = ctypes.CDLL(None, use_errno=True)


def own() -> set[Object]:
    """Objects that this user has created, of whatever process."""
    return {(kind, row[number]) for kind, number in _NUMBERS.items() for row in _rows(kind)}


def made_by(pids: Collection[int], objects: Collection[Object]) -> set[Object]:
    """The objects that these processes created; where the kernel keeps no creator, that they alone used last.

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
    """Remove objects of this user's; memory that some process has attached stays.

    Returns:
        The removed ones.
    """
    wanted, gone = set(objects), list[Object]()
    for kind, number in _NUMBERS.items():
        for row in _rows(kind):
            one = (kind, row[number])
            if one in wanted and not row.get("nattch"):
                call = getattr(_libc, f"{kind}ctl")
                result = call(one[1], 0, _IPC_RMID) if kind == "sem" else call(one[1], _IPC_RMID, None)
                gone += [one] if result == 0 else []
    return sorted(gone)


def _semctl(number: int, place: int) -> int:
    return int(_libc.semctl(number, place, _SEM_GETPID))


def _rows(kind: str) -> Iterator[dict[str, int]]:
    """What the kernel lists of this user's objects of a kind, by the names of its columns."""
    try:
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as file:
            names, *lines = (line.split() for line in file)
        rows = [dict(zip(names, map(int, line), strict=False)) for line in lines]
    except (OSError, ValueError):
        return
    yield from (row for row in rows if row.get("cuid") == os.geteuid())
