"""Processes of one trial: found by descent and by the mark in their environment, ended within bounds.

Standard library only, and nothing of autotune: the guard loads it by path under ``python -S -E``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TRIAL_VARIABLE = "AUTOTUNE_TRIAL"
GUARD_VARIABLE = "AUTOTUNE_GUARD"
GROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
"""Where control groups of version 2 are mounted: alone, or beside those of version 1."""

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
    mark = os.fsencode(f"{variable}={uid}")
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


def group(uid: str) -> str:
    """Folder of a trial's control group below that of this process, whether it exists or not.

    Empty where version 2 of control groups is not mounted or does not hold this process.
    """
    lines = _read("/proc/self/cgroup").decode(errors="replace").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "")
    if not own.startswith("/") or own.startswith("/.."):
        return ""
    for root in GROUP_ROOTS:
        folder = f"{root}{own.rstrip('/')}"
        # In a container the mount may be of another namespace, and the same path another group.
        if str(os.getpid()).encode() in _read(f"{folder}/cgroup.procs").split():
            return f"{folder}/autotune-{uid}"
    return ""


def make_group(uid: str) -> str:
    """Make it; empty where this user may not, or the kernel is older than 5.14.

    What a process of the group starts stays in it, whatever session or environment it takes. No
    controller is asked for, so nothing is limited or accounted differently.
    """
    folder = group(uid)
    try:
        os.mkdir(folder)
    except OSError:
        return ""
    if os.access(f"{folder}/cgroup.kill", os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK):
        return folder
    _remove_group(folder)
    return ""


def end_group(folder: str, *, bound_s: float = 10.0) -> None:
    """Kill everything in a trial's control group, and remove it; nothing where there is none.

    Args:
        folder: From `make_group`.
        bound_s: How long the kernel is waited for.
    """
    if not _is_group(folder):
        return
    until = time.monotonic() + bound_s
    while True:
        kill_group(folder)
        if b"populated 1" not in _read(f"{folder}/cgroup.events") or time.monotonic() >= until:
            break
        time.sleep(0.005)
    _remove_group(folder)


def kill_group(folder: str) -> None:
    """Kill everything in a trial's control group at once, what is being forked in it as well.

    Args:
        folder: From `make_group`.
    """
    if not _is_group(folder):
        return
    with contextlib.suppress(OSError):
        # Nothing is made and no link is followed: the place may have been noted by somebody else.
        file = os.open(f"{folder}/cgroup.kill", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(file, b"1")
        finally:
            os.close(file)


def _is_group(folder: str) -> bool:
    """It lies where control groups are mounted, under a name of ours, and no link leads there."""
    return (
        os.path.basename(folder).startswith("autotune-")
        and any(folder.startswith(f"{root}/") for root in GROUP_ROOTS)
        and os.path.realpath(folder) == folder
    )


def _remove_group(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
