"""Load of other processes on the machine, sampled by the driver between the runs of a search.

One check reads ``/proc/<pid>/stat`` of each process once (about 15 us each) and compares it with the reading
before. Arguments of processes are never read: they may hold secrets of other users.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.devices.bounded import Bounded
from autotune.devices.find import find_devices
from autotune.launch.devices.devices_sampler import draws
from autotune.launch.guard import cpu_quota, guard, process_tree
from autotune.model.machine_load import MOST_NAMED, Culprit, MachineLoad, named

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autotune.devices.common import Device

SAMPLE_S: Final = 0.5
"""Time between the two readings of a single check: 50 clock ticks for a busy process."""

LEAST_S: Final = 0.2
"""Shortest useful time between readings: 20 clock ticks."""

NAME_CHARACTERS: Final = 32
_KERNEL_THREAD: Final = 0x00200000
"""Bit ``PF_KTHREAD`` of a process's flags."""

_FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""Initial PID namespace of the machine (``PROC_PID_INIT_INO``), which NVML uses for pids."""


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """One process in a reading.

    Args:
        parent: Pid of its parent.
        name: Name of the executable in the kernel, up to 15 characters.
        cpu_s: CPU seconds, including reaped children.
        cpu: CPU that it ran on last.
    """

    parent: int
    name: str
    cpu_s: float
    cpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSnapshot:
    """One reading of the machine.

    Args:
        t_s: Monotonic seconds.
        processes: By pid; kernel threads are left out.
        busy_s: CPU seconds of all processes on the CPUs that this process may use; None if unreadable.
        pressure_us: Microseconds for which some task waited for a CPU; None if unreadable.
        quota_s: CPU seconds of all processes under the quota; None without one.
    """

    t_s: float
    processes: Mapping[int, OtherProcess] = field(default_factory=dict[int, OtherProcess])
    busy_s: float | None = None
    pressure_us: float | None = None
    quota_s: float | None = None


def read_snapshot(limit: cpu_quota.Quota | None = None) -> LoadSnapshot:
    """Return a reading of the machine; unreadable processes are left out."""
    processes = {pid: found for pid in process_tree.all_pids() if (found := _process(pid)) is not None}
    return LoadSnapshot(
        t_s=time.monotonic(),
        processes=processes,
        busy_s=guard.busy_s(),
        pressure_us=guard.pressure_us(),
        quota_s=limit.look()[0] if limit is not None else None,
    )


def _process(pid: int) -> OtherProcess | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    head, closed, rest = text.rpartition(b")")
    fields = rest.split()
    if not closed or len(fields) < 37 or int(fields[6]) & _KERNEL_THREAD:
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    cpu_s = sum(map(int, fields[11:15])) * process_tree.TICK_S
    return OtherProcess(parent=int(fields[1]), name=name, cpu_s=cpu_s, cpu=int(fields[36]))


def family(processes: Mapping[int, OtherProcess], root: int) -> set[int]:
    """Return the pids of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found, queue = {root}, [root]
    while queue:
        new = [pid for pid in children.get(queue.pop(), ()) if pid not in found]
        found.update(new)
        queue += new
    return found


def cores_used(before: LoadSnapshot, after: LoadSnapshot) -> dict[int, float]:
    """Return the mean number of CPUs used per process; processes that start or end count for their parent.

    A parent inherits the CPU time of an ended child. The child's time before the first reading is subtracted.
    """
    seconds = after.t_s - before.t_s
    inherited: dict[int, float] = {}
    for pid, process in before.processes.items():
        if pid not in after.processes:
            heir = process.parent
            while heir not in after.processes and heir in before.processes:
                heir = before.processes[heir].parent
            inherited[heir] = inherited.get(heir, 0.0) + process.cpu_s
    used: dict[int, float] = {}
    for pid, process in after.processes.items():
        known = before.processes.get(pid)
        # A new process has used all of its time since; a reused pid counts as new.
        spent = process.cpu_s - (known.cpu_s if known is not None and known.cpu_s <= process.cpu_s else 0.0)
        used[pid] = max(0.0, spent - inherited.get(pid, 0.0)) / seconds
    return used


def load_between(
    before: LoadSnapshot,
    after: LoadSnapshot,
    *,
    root: int,
    cpus: Collection[int],
    limit: float | None = None,
    shares: Collection[int] | None = None,
    counts_unseen: bool = False,
    all_cpus: int = 0,
) -> MachineLoad:
    """Return the CPU use of processes outside the search between two readings.

    Args:
        before: The first reading.
        after: The second reading, at least `LEAST_S` later.
        root: Pid of the driver; its descendants belong to the search.
        cpus: Numbers of the CPUs that the search may use.
        limit: CPUs of a quota around the search; None without one.
        shares: Pids under that quota, which alone count then; None if unknown or without a quota.
        counts_unseen: Also count time of no visible process. Valid only while no trial of the search ends,
            since its time would be missing from the search's own.
        all_cpus: CPUs of the machine; 0: the same as `cpus`.
    """
    used = cores_used(before, after)
    own = family(after.processes, root) | family(before.processes, root)
    seconds = after.t_s - before.t_s
    is_part = len(cpus) < all_cpus
    found = [
        Culprit(name=after.processes[pid].name, pid=pid, cores=cores)
        for pid, cores in used.items()
        if pid not in own
        and cores > 0.0
        and (shares is None or pid in shares)
        and (not is_part or after.processes[pid].cpu in cpus)
    ]
    foreign = min(sum(one.cores for one in found), float(all_cpus or len(cpus)))
    if counts_unseen:
        total = _rate(before.busy_s, after.busy_s, seconds)
        if limit is not None:
            total = _rate(before.quota_s, after.quota_s, seconds)
        own_cores = sum(cores for pid, cores in used.items() if pid in own)
        foreign = max(foreign, (total or 0.0) - own_cores)
    waited = _rate(before.pressure_us, after.pressure_us, seconds)
    return MachineLoad(
        foreign_cores=foreign,
        cpus=len(cpus) if limit is None else limit,
        culprits=named(found, foreign),
        pressure_frac=None if waited is None else min(1.0, waited / 1e6),
    )


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else max(0.0, (after - before) / seconds)


class LoadCheck:
    """Checks the load of this machine for one search; its own processes do not count.

    Args:
        devices: Accelerators that trials will use.
        read: Takes a reading.
        sleep: Waits between two readings.
    """

    def __init__(
        self,
        devices: Sequence[Device] = (),
        *,
        read: Callable[[cpu_quota.Quota | None], LoadSnapshot] = read_snapshot,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._devices = devices
        self._read = read
        self._sleep = sleep
        self._cpus = usable_cpus()
        self._quota = cpu_quota.find(len(self._cpus))
        self._before: LoadSnapshot | None = None

    @classmethod
    def of_machine(cls, environ: Mapping[str, str]) -> LoadCheck:
        """Return the check for a search on this machine whose trials have this environment."""
        return cls([Bounded(device) for device in find_devices(environ)])

    def now(self) -> MachineLoad:
        """Return the load now, from two readings `SAMPLE_S` apart; no trial may be running."""
        before = self._read(self._quota)
        self._sleep(SAMPLE_S)
        return self._found(before, counts_unseen=True)

    def since_last(self) -> MachineLoad | None:
        """Return the load since the previous check, without waiting; None if it was too recent."""
        before = self._before
        if before is None or time.monotonic() - before.t_s < LEAST_S:
            return None
        return self._found(before, counts_unseen=False)

    def _found(self, before: LoadSnapshot, *, counts_unseen: bool) -> MachineLoad:
        after = self._before = self._read(self._quota)
        load = load_between(
            before,
            after,
            root=os.getpid(),
            cpus=self._cpus,
            limit=None if self._quota is None else self._quota.cpus,
            shares=_shares(self._quota),
            counts_unseen=counts_unseen,
            all_cpus=os.cpu_count() or 0,
        )
        culprits = tuple(map(_with_executable, load.culprits)) if load.is_busy_on_cpus else ()
        on_devices, slowdowns = self._sample_devices(family(after.processes, os.getpid()))
        return replace(load, culprits=(*culprits, *on_devices), slowdowns=slowdowns)

    def _sample_devices(self, own: Collection[int]) -> tuple[list[Culprit], tuple[str, ...]]:
        """Return foreign processes that compute on the accelerators, and reduced clocks."""
        culprits: list[Culprit] = []
        slowdowns: list[str] = []
        for device in self._devices:
            seen = device.sample()
            busy = set(seen.pids) & set(seen.busy_pids or ())
            others = sorted(pid for pid in busy if pid not in own and not draws(pid))
            culprits += [_on_device(pid, device.facts.name) for pid in others[:MOST_NAMED]]
            if seen.is_throttled:
                slowdowns.append(f"{device.facts.name}: {', '.join(seen.slowdowns)}")
        return culprits, tuple(slowdowns)


def usable_cpus() -> set[int]:
    """Return the numbers of the CPUs that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _shares(limit: cpu_quota.Quota | None) -> set[int] | None:
    """Return the pids of the processes under a quota; None without one, or if unreadable."""
    if limit is None:
        return None
    found: set[int] = set()
    for path in Path(limit.folder).rglob("cgroup.procs"):
        try:
            found.update(int(word) for word in path.read_text().split())
        except (OSError, ValueError):
            continue
    return found or None


def _with_executable(culprit: Culprit) -> Culprit:
    """Return the culprit with the name of its executable file if readable, else the kernel's name."""
    name = culprit.name
    with contextlib.suppress(OSError):
        name = os.path.basename(os.readlink(f"/proc/{culprit.pid}/exe")).removesuffix(" (deleted)")
    return replace(culprit, name=_printable(name))


def _on_device(pid: int, device: str) -> Culprit:
    """Return the culprit for a pid that NVML has reported in the machine's PID namespace."""
    try:
        here = os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() if here else ""
    except OSError:
        name = ""
    return Culprit(name=_printable(name), pid=pid, device=device)


def _printable(name: str) -> str:
    return "".join(c for c in name if c.isprintable() and c != '"')[:NAME_CHARACTERS]
