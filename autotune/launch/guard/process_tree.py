"""Processes of one trial: found by descent and by the mark in their environment, ended in bounded time.

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
"""Mount points of control groups version 2: alone, or beside those of version 1."""
OLD_GROUP_ROOTS = {"freezer": "/sys/fs/cgroup/freezer", "pids": "/sys/fs/cgroup/pids"}
"""Mount points of version 1; either controller's groups contain all child processes."""

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/<pid>/stat`` from the state on (field 3 is index 0); empty when gone."""
    _, closed, rest = _read(f"/proc/{pid}/stat").rpartition(b")")
    return rest.split() if closed else []


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, 0 if gone; guards against pid reuse."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its reaped children."""
    fields = stat_fields(pid)
    return sum(int(x) for x in fields[11:15]) * TICK_S if len(fields) > 15 else 0.0


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended and was not reaped."""
    fields = stat_fields(pid)
    return not fields or fields[0] in (b"Z", b"X")


def descendants(root: int) -> list[int]:
    """Return all living descendants of `root`, parents first, without `root` itself."""
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
    """Return all processes in ``/proc``."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def marked(uid: str, variable: str = TRIAL_VARIABLE) -> list[int]:
    """Return living processes whose initial environment named this trial, anywhere in the tree."""
    mark = os.fsencode(f"{variable}={uid}")
    me = os.getpid()
    return [
        pid
        for pid in all_pids()
        if pid != me and mark in _read(f"/proc/{pid}/environ").split(b"\0") and not is_zombie(pid)
    ]


def send(pids: list[int], number: int) -> None:
    """Send each process a signal; skip those that are gone or belong to another user."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def enclosed(uid: str) -> list[int]:
    """Return living processes in a trial's mount namespace, which they cannot leave."""
    names = [f"/{uid}{end}".encode() for end in ("/", " ", ",")]
    own = _namespace("self")
    return [
        pid
        for pid in all_pids()
        if _namespace(str(pid)) not in ("", own)
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
        bound_s: Time limit of the search.

    Returns:
        Remaining pids (uninterruptible sleep, another user).
    """
    return end_all(lambda: sorted({*marked(uid), *enclosed(uid)}), bound_s=bound_s)


def end_all(find: Callable[[], list[int]], *, bound_s: float) -> list[int]:
    """Kill processes until none is found.

    Args:
        find: Returns the pids.
        bound_s: Time limit of the search.

    Returns:
        Remaining pids.
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
    """Return possible folders of a trial's control group, existing or not; version 2 first.

    They lie below the groups of this process. Empty if no suitable hierarchy is mounted.
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
            # In a container the mount may show another namespace, where the same path is another group.
            if str(os.getpid()).encode() in _read(f"{folder}/cgroup.procs").split():
                found.append(f"{folder}/autotune-{uid}")
    return found


def make_group(uid: str) -> str:
    """Create a trial's control group; return an empty string if this user may not.

    Children stay in the group, whatever their session or environment. Nothing is limited or accounted
    differently.
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
    """Kill all processes of a trial's control group and remove it; do nothing if there is none.

    Args:
        folder: From `make_group`.
        bound_s: Time limit for the kernel.
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
    """Kill all processes of a trial's control group in one call, including those being forked.

    Args:
        folder: From `make_group`.
    """
    # Kernels before 5.14 and version 1 have no such call; a frozen group cannot fork.
    if not _is_group(folder) or _put(f"{folder}/cgroup.kill", b"1"):
        return
    _put(f"{folder}/freezer.state", b"FROZEN")
    # Zero means a process of another namespace; to `kill` it would mean this process group.
    pids = [int(pid) for pid in _read(f"{folder}/cgroup.procs").split()]
    send([pid for pid in pids if pid > 1], signal.SIGKILL)
    _put(f"{folder}/freezer.state", b"THAWED")


def _put(path: str, text: bytes) -> bool:
    """Write to a kernel file; return whether it succeeded."""
    try:
        # No file is created and no link followed: the path may have been written by another user.
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
    """Return whether a folder is a trial's control group below a mount point, reached without links."""
    return (
        os.path.basename(folder).startswith("autotune-")
        and any(folder.startswith(f"{root}/") for root in (*GROUP_ROOTS, *OLD_GROUP_ROOTS.values()))
        and os.path.realpath(folder) == folder
    )


def _remove_group(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
