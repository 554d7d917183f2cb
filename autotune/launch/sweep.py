"""Processes of one trial: found by descent and by the mark in their environment, ended within bounds.

Standard library only, and nothing of autotune: the guard loads it by path under ``python -S -E``.
"""

from __future__ import annotations

import os
import signal
import time

TRIAL_VARIABLE = "AUTOTUNE_TRIAL"
GUARD_VARIABLE = "AUTOTUNE_GUARD"
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def stat_fields(pid: int) -> list[bytes]:
    """Fields of ``/proc/<pid>/stat`` from the state on (field 3 is index 0); empty when gone."""
    _, closed, rest = _read(f"/proc/{pid}/stat").rpartition(b")")
    return rest.split() if closed else []


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot, 0 when gone; guards against pid reuse."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children it has waited for."""
    fields = stat_fields(pid)
    return sum(int(x) for x in fields[11:15]) * TICK_S if len(fields) > 15 else 0.0


def is_zombie(pid: int) -> bool:
    """It has ended and only waits for its parent."""
    fields = stat_fields(pid)
    return not fields or fields[0] in (b"Z", b"X")


def descendants(root: int) -> list[int]:
    """Every living process below `root`, parents first; `root` itself is left out."""
    found: list[int] = []
    seen = {root}
    queue = [root]
    while queue:
        for pid in _children(queue.pop(0)):
            if pid not in seen:
                seen.add(pid)
                found.append(pid)
                queue.append(pid)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return children
    if threads and not os.path.exists(f"/proc/{pid}/task/{threads[0]}/children"):
        return _children_by_scan(pid) if os.path.exists(f"/proc/{pid}") else children
    for thread in threads:
        children += [int(x) for x in _read(f"/proc/{pid}/task/{thread}/children").split()]
    return children


def _children_by_scan(parent: int) -> list[int]:
    return [pid for pid in all_pids() if (f := stat_fields(pid)) and int(f[1]) == parent]


def all_pids() -> list[int]:
    """Every process that ``/proc`` shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def marked(uid: str, variable: str = TRIAL_VARIABLE) -> list[int]:
    """Living processes whose environment at start named this trial, wherever they hang in the tree."""
    mark = f"{variable}={uid}".encode()
    me = os.getpid()
    return [
        pid
        for pid in all_pids()
        if pid != me and mark in _read(f"/proc/{pid}/environ").split(b"\0") and not is_zombie(pid)
    ]


def send(pids: list[int], number: int) -> None:
    """Signal each; those already gone, or not ours, are passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end_marked(uid: str, *, bound_s: float = 10.0) -> list[int]:
    """Kill every process that carries the trial's mark.

    Args:
        uid: The attempt's uid.
        bound_s: How long to go on looking.

    Returns:
        Pids that were still there at the end (uninterruptible sleep, another user).
    """
    until = time.monotonic() + bound_s
    pause = 0.002
    while True:
        left = marked(uid)
        if not left:
            return []
        send(left, signal.SIGKILL)
        if time.monotonic() >= until:
            return left
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
