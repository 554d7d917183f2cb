"""Processes of one trial: found by descent and by the mark in their environment, ended within bounds.

Standard library only, and nothing of autotune: the guard loads it by path under ``python -S -E``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TRIAL_VARIABLE = "AUTOTUNE_TRIAL"
GUARD_VARIABLE = "AUTOTUNE_GUARD"
GROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
"""Where control groups of version 2 are mounted: alone, or beside those of version 1."""
OLD_GROUP_ROOTS = {"freezer": "/sys/fs/cgroup/freezer", "pids": "/sys/fs/cgroup/pids"}
"""Where those of version 1 are mounted: a group of either controller keeps processes together."""

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


def enclosed(uid: str) -> list[int]:
    """Living processes in the mount namespace of a trial, which none can leave, whatever else it changes."""
    names = [f"/{uid}{end}".encode() for end in ("/", " ", ",")]
    ours = _namespace("self")
    return [
        pid
        for pid in all_pids()
        if _namespace(str(pid)) not in ("", ours)
        and any(name in table for table in [_read(f"/proc/{pid}/mountinfo")] for name in names)
        and not is_zombie(pid)
    ]


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def end_marked(uid: str, *, bound_s: float = 10.0) -> list[int]:
    """Kill every process that carries the trial's mark or is in its mount namespace.

    Args:
        uid: The attempt's uid.
        bound_s: How long to go on looking.

    Returns:
        Pids that were still there at the end (uninterruptible sleep, another user).
    """
    return end_all(lambda: sorted({*marked(uid), *enclosed(uid)}), bound_s=bound_s)


def end_all(find: Callable[[], list[int]], *, bound_s: float) -> list[int]:
    """Kill processes until none is found.

    Args:
        find: Finds them.
        bound_s: How long to go on looking.

    Returns:
        Pids that were still there at the end.
    """
    until = time.monotonic() + bound_s
    pause = 0.002
    while True:
        left = find()
        if not left:
            return []
        send(left, signal.SIGKILL)
        if time.monotonic() >= until:
            return left
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def groups(uid: str) -> list[str]:
    """Folders in which a trial's control group may be, whether it exists or not; version 2 first.

    They lie below the groups of this process. Empty where no group is mounted that holds it.
    """
    found: list[str] = []
    for line in reversed(_read("/proc/self/cgroup").decode(errors="replace").splitlines()):
        _, controllers, own = (*line.split(":", 2), "", "")[:3]
        if not own.startswith("/") or own.startswith("/.."):
            continue
        if controllers:
            roots = [OLD_GROUP_ROOTS[name] for name in controllers.split(",") if name in OLD_GROUP_ROOTS]
        else:
            roots = list(GROUP_ROOTS)
        for root in roots:
            folder = f"{root}{own.rstrip('/')}"
            # In a container the mount may be of another namespace, and the same path another group.
            if str(os.getpid()).encode() in _read(f"{folder}/cgroup.procs").split():
                found.append(f"{folder}/autotune-{uid}")
    return found


def make_group(uid: str) -> str:
    """Make a trial's control group; empty where this user may not.

    What a process of the group starts stays in it, whatever session or environment it takes. Nothing is
    limited or accounted differently.
    """
    for folder in groups(uid):
        try:
            os.mkdir(folder)
        except OSError:
            continue
        if os.access(f"{folder}/cgroup.procs", os.W_OK):
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
        if not _is_populated(folder) or time.monotonic() >= until:
            break
        time.sleep(0.005)
    _remove_group(folder)


def kill_group(folder: str) -> None:
    """Kill everything in a trial's control group, with one call what is being forked in it as well.

    Args:
        folder: From `make_group`.
    """
    # Kernels before 5.14 and version 1 have no such call; there a frozen group cannot fork meanwhile.
    if not _is_group(folder) or _put(f"{folder}/cgroup.kill", b"1"):
        return
    _put(f"{folder}/freezer.state", b"FROZEN")
    # Zero stands for a process of another namespace, and would mean our own process group.
    pids = [int(pid) for pid in _read(f"{folder}/cgroup.procs").split()]
    send([pid for pid in pids if pid > 1], signal.SIGKILL)
    _put(f"{folder}/freezer.state", b"THAWED")


def _put(path: str, text: bytes) -> bool:
    """Write to a file of the kernel's; whether that was possible."""
    try:
        # Nothing is made and no link is followed: the place may have been noted by somebody else.
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(file, text)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _is_populated(folder: str) -> bool:
    events = _read(f"{folder}/cgroup.events")
    return b"populated 1" in events if events else bool(_read(f"{folder}/cgroup.procs").split())


def _is_group(folder: str) -> bool:
    """It lies where control groups are mounted, under a name of ours, and no link leads there."""
    return (
        os.path.basename(folder).startswith("autotune-")
        and any(folder.startswith(f"{root}/") for root in (*GROUP_ROOTS, *OLD_GROUP_ROOTS.values()))
        and os.path.realpath(folder) == folder
    )


def _remove_group(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
