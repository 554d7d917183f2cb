"""Guard of one trial: owns its process tree, so that nothing of it is left behind.

Runs as a separate process, ``python -S -E guard.py <life fd>``, with its orders as one JSON object on
standard input. The launcher holds the write end of the life pipe: its end of file, or one line with a reason,
ends the trial. The verdict is in ``result.json``, written before the guard exits.

The started process forks at once: the child is the guard, the parent its keeper. The keeper waits and, if the
guard was killed, ends all that it owned.

Standard library only, and nothing of autotune but this folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if __package__:
    from autotune.launch.guard import cpu_quota, namespace, owned_resources, process_tree
else:
    import cpu_quota  # pyright: ignore[reportMissingImports]
    import namespace  # pyright: ignore[reportMissingImports]
    import owned_resources  # pyright: ignore[reportMissingImports]
    import process_tree  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    Become = Callable[[dict[str, Any]], None]

SAMPLE_S = 0.25
DUMP_S = 1.0
LEFTOVER_GRACE_S = 0.5
ALONE_GRACE_S = 1.0
"""Grace period if the launcher has died: its killer may kill this process next."""

LEAST_S = 1.0
"""Minimum time for each of marks and control group, even if killing has used up the rest."""

DRAIN_S = 1.0
KEEPER_REAP_S = 10.0
HEAD_BYTES = 1024 * 1024
TAIL_BYTES = 4 * 1024 * 1024
STAT_BYTES = 128 * 1024
CHUNK_BYTES = 64 * 1024
MAX_SAMPLES = 4000
STOOD_STILL = 7
"""Index in a sample's row: 1 if the script was stopped for some of the time since the row before."""

LENDERS = 3
"""Processes outside a forked trial that share its first pages: fork server, keeper, guard."""

AWAY_S = 5.0
"""Longer gaps between two polls mean that this process was stopped, with the trial.

Causes are a suspended job or a paused container; the time does not count as a hang.
"""

GAP_S = 2.0
"""Samples further apart than this (eight periods) mean that the guard itself was stopped."""

READING_EACH = 50
"""Time between readings of shared pages, in durations of one: 0.2 s for nine processes of 3 GB."""

READING_EACH_NEAR = 4
"""The same if an estimate exceeds the limit, as memory may run out soon."""

READ_S = 0.1
"""Longest part of a reading within one sample; output is drained and children are reaped in between."""

SAMPLE_EACH = 5
"""Least time between samples, in durations of one: with 1,500 processes one takes 0.2 s."""

SLEPT_S = 0.5
"""The machine was suspended if the clock that includes sleep gained this much on the other one."""

LOGS = ("stdout.log", "stderr.log", "events.jsonl", "stacks.txt", "faults.log")
"""Files with a trial's reports and output, which may hold secrets."""

DUMP_REASONS = ("timeout_progress", "timeout_total")
GROUP_FILE = "group"
"""File in the folder of a running trial: path of its control group, for cleanup without a guard."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (mount point, not a temporary file)
SHARED_NAMES = ("torch_", "nccl-", "psm_", "sem.")
"""Prefixes of shared memory names that torch, NCCL and multiprocessing leave when killed."""
SHARED_LOOKS = 4
"""Number of polls after which a new name that no process of the trial has mapped is ignored."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def ending_s(grace_s: float, reap_s: float) -> float:
    """Return the time after its deadline within which a guard writes its verdict, in seconds.

    It holds even if processes cannot be killed.

    Args:
        grace_s: From the request to end to the kill.
        reap_s: For the kill, by descent, mark and control group together.
    """
    return DUMP_S + grace_s + reap_s + 2 * LEAST_S + 2 * DRAIN_S


class Drain:
    """Takes output off a pipe so that the script never blocks; retains the head and the tail.

    Args:
        path: Output file; the head is written at once, the tail at the end of the trial.
    """

    def __init__(self, path: str, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._head_left = head_bytes
        self._tail: deque[bytearray] = deque()
        self._tail_bytes = 0
        self._tail_limit = tail_bytes
        self.drained = 0
        self.open = True

    def pump(self) -> bool:
        """Read once; return False at the end of the stream or if no data is available."""
        try:
            data = os.read(self.read_fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.open = False
            return False
        self.drained += len(data)
        if self._head_left > 0:
            self._store(data[: self._head_left])
            data, self._head_left = data[self._head_left :], self._head_left - len(data)
        if data:
            self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        # Parts are merged: with one object per byte, as some scripts write, memory grows forty-fold.
        if self._tail and len(self._tail[-1]) + len(data) <= CHUNK_BYTES:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    def _store(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            self._head_left = 0

    def close(self) -> None:
        """Read the rest of the pipe, then write the tail."""
        until = time.monotonic() + DRAIN_S
        while time.monotonic() < until and self.pump():
            pass
        if self._tail:
            tail = b"".join(self._tail)[-self._tail_limit :]
            dropped = self.drained - (os.lseek(self._file, 0, os.SEEK_CUR) + len(tail))
            if dropped > 0:
                self._store(f"\n[{dropped} bytes left out]\n".encode())
            self._store(tail)
        os.close(self._file)


class Footprint:
    """Memory of a process tree in which pages that processes share count once (proportional set size).

    The kernel walks all page tables for a reading. So readings take at most one fiftieth of the time, and a
    long one is taken in parts. Between readings, the last one plus the growth of each process is used. A new
    process counts with its size beyond its parent's, as forks share pages. This estimate is an upper bound
    and never ends a trial.
    """

    def __init__(self) -> None:
        self.is_read = False
        """Whether the last result is a completed reading, not an estimate."""
        self._bytes = 0
        self._rss: dict[int, int] = {}
        self._unread: list[int] = []
        self._part: dict[int, tuple[int, int]] = {}
        """Reading in progress: pid -> its share and its resident size at that time."""
        self._read_s = 0.0
        self._cost_s = 0.0
        self._part_s = 0.0

    def of(self, rss: dict[int, int], *, limit_bytes: int = 0) -> int:
        """Return the memory of these processes in bytes; above the limit only if a reading found that.

        Args:
            rss: Resident size of each process.
            limit_bytes: A larger estimate triggers a reading, and is capped until then; 0: no limit.
        """
        estimate = self._estimate(rss)
        is_above = 0 < limit_bytes < estimate
        if not self._unread and self._is_due(READING_EACH_NEAR if is_above else READING_EACH):
            self._unread, self._part, self._part_s = list(rss), {}, 0.0
        self.is_read = bool(self._unread) and self._read_on(rss)
        if self.is_read:
            return self._bytes
        return limit_bytes if is_above else estimate

    def _is_due(self, each: int) -> bool:
        return not self._rss or time.monotonic() - self._read_s > each * self._cost_s

    def _read_on(self, rss: dict[int, int]) -> bool:
        """Read some of the processes; return True once all have been read."""
        begun_s = time.monotonic()
        while self._unread:
            pid = self._unread.pop()
            if pid in rss:
                share = _pss(pid)
                self._part[pid] = (self._beyond_parent(pid, rss) if share is None else share, rss[pid])
            if time.monotonic() - begun_s > READ_S:
                break
        self._part_s += time.monotonic() - begun_s
        if self._unread:
            return False
        # Fewer processes share the pages of those that ended, so no page counts twice. If many have ended,
        # the largest process alone is a better lower bound.
        alive = {pid: seen for pid, seen in self._part.items() if pid in rss}
        self._bytes = max([sum(share for share, _ in alive.values()), *rss.values()])
        self._rss = {pid: size for pid, (_, size) in alive.items()}
        self._read_s, self._cost_s = time.monotonic(), self._part_s
        return True

    def _estimate(self, rss: dict[int, int]) -> int:
        grown = (
            size - self._rss[pid] if pid in self._rss else self._beyond_parent(pid, rss)
            for pid, size in rss.items()
        )
        return self._bytes + sum(max(0, more) for more in grown)

    def _beyond_parent(self, pid: int, rss: dict[int, int]) -> int:
        """Return the resident size of a process beyond its parent's in the tree; all of it without one."""
        fields = process_tree.stat_fields(pid)
        return max(0, rss[pid] - (rss.get(int(fields[1]), 0) if len(fields) > 1 else 0))


class Samples:
    """Memory and CPU of the trial's tree, and of the rest of the machine, four times a second.

    Args:
        lent_bytes: Memory that a forked trial shares with its fork server, keeper and guard, and would
            otherwise
            have itself.
    """

    def __init__(self, lent_bytes: int = 0) -> None:
        self._lent_bytes = lent_bytes
        self.quota = cpu_quota.find(_usable_cpus())
        """CPU quota around the trial, if it is less than its CPUs."""
        self.peak_bytes = 0
        self.rows: list[list[float | int | None]] = []
        self._footprint = Footprint()
        self._own_s: dict[int, float] = {}
        self.is_stopped = False
        """The script's process was stopped by a signal or a debugger at the last sample."""
        self._asleep_s = _asleep_s()
        self.alive: list[int] = []
        """Processes of the tree at the last sample."""
        self._worked_ns = time.process_time_ns()

    @property
    def pids(self) -> set[int]:
        """Pids of all processes observed in the tree so far."""
        return set(self._own_s)

    def take(self, script: int = 0, limit_bytes: int = 0) -> int:
        """Take one sample; return the memory of the tree in bytes.

        File pages are left out, as the kernel reclaims them when needed, however much of a dataset is
        mapped. Shared pages count once (`Footprint`); for a single process this is its resident size. The
        peak is the largest reading, as estimates may count shared pages twice.

        Args:
            script: Pid of the script's process; 0 if it has not started.
            limit_bytes: A larger value is returned only if it was read; 0: no limit.
        """
        pids = self.alive = process_tree.descendants(os.getpid())
        rss = {pid: _rss(pid) for pid in pids}
        total, is_read = sum(rss.values()), True
        if len(pids) > 1:
            lent = int(self._lent_bytes * LENDERS / (len(pids) + LENDERS))
            most = max(1, limit_bytes - lent) if limit_bytes else 0
            total = min(total, self._footprint.of(rss, limit_bytes=most) + lent)
            is_read = self._footprint.is_read
        if is_read:
            self.peak_bytes = max(self.peak_bytes, total)
        for pid in pids:
            self._own_s[pid] = max(self._own_s.get(pid, 0.0), process_tree.cpu_s(pid))
        if len(self.rows) >= MAX_SAMPLES:
            self.rows = _thinned(self.rows)
        t_ns = time.perf_counter_ns()
        row = [t_ns, total, busy_s(), self._tree_s(pids), pressure_us()]
        under_quota = self.quota.look() if self.quota is not None else (None, None)
        self.rows.append([*row, *under_quota, int(self._stood_still(t_ns, script))])
        return total

    def _stood_still(self, t_ns: int, script: int) -> bool:
        """Return whether the script was stopped for some of the time since the previous sample."""
        was_stopped, self.is_stopped = self.is_stopped, is_stopped(script)
        slept_s, self._asleep_s = -self._asleep_s, _asleep_s()
        slept_s += self._asleep_s
        # Long samples of large trees are the guard's own work, not a gap.
        worked_ns, self._worked_ns = -self._worked_ns, time.process_time_ns()
        worked_ns += self._worked_ns
        since_ns = t_ns - int(self.rows[-1][0] or 0) - worked_ns if self.rows else 0
        return was_stopped or self.is_stopped or slept_s > SLEPT_S or since_ns > GAP_S * 1e9

    def _tree_s(self, alive: list[int]) -> float:
        return sum(self._own_s[pid] for pid in alive)


def _thinned(rows: list[list[float | int | None]]) -> list[list[float | int | None]]:
    """Return every second row, including the last; a stop in a dropped row is moved to the next."""
    kept = rows[::-2][::-1]
    dropped = rows[-2::-2][::-1]
    # Counted from the end, each dropped row directly precedes the retained one at the same index.
    for row, before in zip(reversed(kept), reversed(dropped), strict=False):
        row[STOOD_STILL] = max(row[STOOD_STILL] or 0, before[STOOD_STILL] or 0)
    return kept


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal (SIGSTOP, Ctrl-Z) or a debugger."""
    fields = process_tree.stat_fields(pid) if pid else []
    return bool(fields) and fields[0] in (b"T", b"t")


def _asleep_s() -> float:
    """Return the seconds for which this machine was suspended since boot; 0.0 if unknown."""
    with_sleep = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if with_sleep is None else time.clock_gettime(with_sleep) - time.monotonic()


def _rss(pid: int) -> int:
    """Return the resident memory without file pages; all of it if the kernel does not distinguish them."""
    anonymous = shared = None
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            for line in file.read().split(b"\n"):
                if line.startswith(b"RssAnon:"):
                    anonymous = int(line.split()[1]) * 1024
                elif line.startswith(b"RssShmem:"):
                    shared = int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return 0
    return _resident(pid) if anonymous is None or shared is None else anonymous + shared


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * process_tree.PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _pss(pid: int) -> int | None:
    """Return the proportional set size without file pages; with them on kernels before 5.4.

    None if the process is alive and may not be read.
    """
    found: dict[bytes, int] = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb", buffering=0) as file:
            for line in file.read().split(b"\n"):
                name, _, rest = line.partition(b":")
                if name in (b"Pss", b"Pss_Anon", b"Pss_Shmem"):
                    found[name] = int(rest.split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0 if process_tree.is_zombie(pid) else None
    if b"Pss_Anon" in found and b"Pss_Shmem" in found:
        return found[b"Pss_Anon"] + found[b"Pss_Shmem"]
    return found.get(b"Pss")


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_s() -> float | None:
    """Return the CPU seconds used on the permitted CPUs, stolen time included.

    Load on the other CPUs of a large machine does not affect a job with four of them.
    """
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    is_part = 0 < len(numbers) < (os.cpu_count() or 0)
    try:
        with open("/proc/stat", "rb", buffering=0) as file:
            text = file.read(STAT_BYTES if is_part else 512)
        return busy_ticks(text, numbers if is_part else ()) * process_tree.TICK_S
    except (OSError, ValueError, IndexError):
        return None


def busy_ticks(text: bytes, numbers: Collection[int]) -> int:
    """Return the busy ticks of all CPUs together, or of some, from ``/proc/stat``.

    Args:
        text: The first lines of the file.
        numbers: Numbers of CPUs; empty: all.

    Raises:
        ValueError, IndexError: Unexpected format.
    """
    rows = [line.split() for line in text.split(b"\n") if line.startswith(b"cpu")]
    chosen = [row for row in rows[1:] if int(row[0][3:]) in numbers] if numbers else rows[:1]
    if not chosen:
        message = "no such CPU"
        raise ValueError(message)
    # user, nice, system, irq, softirq, steal. Not idle and iowait; guests are part of user.
    return sum(int(row[k]) for row in chosen for k in (1, 2, 3, 6, 7, 8))


def pressure_us() -> int | None:
    """Return the microseconds for which some task waited for a CPU; None if unreadable.

    Only differences are meaningful.
    """
    try:
        with open("/proc/pressure/cpu", "rb", buffering=0) as file:
            return int(file.read().split(b"total=", 1)[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None


def _write_atomically(path: str, record: dict[str, Any]) -> None:
    data = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    # The trial can write to this folder too, and may have put a link there.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + ".part")
    fd = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + ".part", path)


def _pass_by(_number: int, _frame: object) -> None:
    """Ignore a notice to the whole job ahead of its end; the launcher handles it."""


_passed_by: dict[int, Any] = {}
"""Signals ignored by guard and keeper -> their former handlers, which the script gets back."""


def _let_notices_pass() -> None:
    # A handler, because ignored signals would be inherited by the script.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        before = signal.signal(number, _pass_by)
        _passed_by[number] = signal.SIG_DFL if before is None else before


class IsScript(BaseException):
    """Raised in the forked process of a trial, which is the script from here on."""


def _become_script(
    spec: dict[str, Any], guard_pid: int, out: int, err: int, group: str, become: Become | None
) -> None:
    """Run the steps between fork and exec in the child; return only if there is no exec."""
    os.setsid()
    if group:
        with contextlib.suppress(OSError), open(f"{group}/cgroup.procs", "w") as file:
            file.write("0")
    os.dup2(out, 1)
    os.dup2(err, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
    os.chdir(spec["cwd"])
    if spec.get("stdin"):
        with contextlib.suppress(OSError):
            given = os.open(spec["stdin"], os.O_RDONLY)
            os.dup2(given, 0)
            os.close(given)
    if enclosure := spec.get("enclosure"):
        namespace.enter(**enclosure)
    elif spec.get("own_ipc"):
        namespace.own_ipc()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guard_pid:
        os._exit(127)
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGCHLD,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_DFL)
    for number, handler in _passed_by.items():
        signal.signal(number, handler)
    if become is not None:
        become(spec)
        return
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


class Guard:
    """One trial from start to result; see the module.

    Args:
        spec: The orders.
        life_fd: Read end of the life pipe.
        become: If the script is not executed as a program: turns the forked process into the equivalent of a
            new
            one. `IsScript` is then raised there.
    """

    def __init__(self, spec: dict[str, Any], life_fd: int, become: Become | None = None) -> None:
        self.spec = spec
        self.become = become
        self.life_fd = life_fd
        self.uid = str(spec["uid"])
        self.folder = str(spec["trial_dir"])
        self.started_s = time.monotonic()
        self.deadline_s = self.started_s + float(spec["deadline_s"])
        # Longest extension for a stopped script, so that the search still ends in time.
        self.patience_s = float(spec.get("patience_s") or 0.0)
        self.memory_limit = int(spec.get("memory_limit_bytes") or 0)
        self.why = ""
        self.status: int | None = None
        self.script_ended_s = 0.0
        self.killed = ""
        self.spawn_error = ""
        self.script = 0
        self.alone = False
        self.shared_before = set(_objects())
        self.shared_used: set[str] = set()
        self.shared_looks: dict[str, int] = {}
        self.group = self._make_group()
        self.owned = owned_resources.Owned(self.folder)
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(wake_write, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.out = Drain(os.path.join(self.folder, "stdout.log"))
        self.err = Drain(os.path.join(self.folder, "stderr.log"))

    def _make_group(self) -> str:
        """Create the control group that is killed at the end; its path is recorded before it is used."""
        folder = process_tree.make_group(self.uid)
        if folder:
            try:
                with open(os.path.join(self.folder, GROUP_FILE), "w") as file:
                    file.write(folder)
            except OSError:
                process_tree.end_group(folder)
                return ""
        return folder

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD and not self.why:
            self.why = f"guard_{signal.Signals(number).name.lower()}"

    def run(self) -> None:
        """Start, watch and end the trial, and write the verdict."""
        self._spawn()
        self.samples = Samples(int(self.spec.get("lent_bytes") or 0))
        if not self.spawn_error:
            self._watch()
        survivors = self._end()
        self.out.close()
        self.err.close()
        self._report(survivors)

    def _spawn(self) -> None:
        error_read, error_write = os.pipe()
        guard_pid = os.getpid()
        self.script = os.fork()
        if self.script == 0:
            try:
                _become_script(
                    self.spec, guard_pid, self.out.write_fd, self.err.write_fd, self.group, self.become
                )
            except BaseException as error:
                try:
                    os.write(error_write, f"{type(error).__name__}: {error}".encode()[:4000])
                finally:
                    os._exit(127)
            raise IsScript
        os.close(error_write)
        os.close(self.out.write_fd)
        os.close(self.err.write_fd)
        parts: list[bytes] = []
        while select.select([error_read], [], [], 20.0)[0] and (data := os.read(error_read, 4096)):
            parts.append(data)
        os.close(error_read)
        if parts:
            self.spawn_error = b"".join(parts).decode(errors="backslashreplace")
            self.why = "spawn"

    def _watch(self) -> None:
        next_sample_s = 0.0
        looked_s = time.monotonic()
        while self.status is None and not self.why:
            now = time.monotonic()
            if now - looked_s > AWAY_S:
                self.deadline_s += now - looked_s
            elif self.samples.is_stopped:
                given_s = min(now - looked_s, self.patience_s)
                self.deadline_s, self.patience_s = self.deadline_s + given_s, self.patience_s - given_s
            looked_s = now
            if now >= self.deadline_s:
                self.why = "timeout_total"
                break
            if now >= next_sample_s:
                used = self.samples.take(self.script, self.memory_limit)
                self._note_shared()
                self.owned.take(self.samples.alive, self.samples.pids)
                took_s = time.monotonic() - now
                # If /proc is slow, skip whole periods rather than sample in bursts.
                next_sample_s = max(next_sample_s, now) + max(SAMPLE_S, min(SAMPLE_EACH * took_s, GAP_S / 2))
                if self.memory_limit and used > self.memory_limit:
                    self.why = "memory_limit"
                    break
            self._wait(min(next_sample_s, self.deadline_s) - time.monotonic(), life=True)
        # A script that was stopped together with this guard may end before the next sample.
        self.samples.take(self.script)

    def _note_shared(self) -> None:
        """Record the owners of new shared memory names; after a crash they cannot be determined."""
        new = {name for name in _objects() if not name.startswith("torch_")} - self.shared_before
        new = {name for name in new - self.shared_used if self.shared_looks.get(name, 0) < SHARED_LOOKS}
        if not new:
            return
        self.shared_used |= _mapped_objects(self._tree()) & new
        for name in new - self.shared_used:
            self.shared_looks[name] = self.shared_looks.get(name, 0) + 1

    def _wait(self, seconds: float, *, life: bool) -> None:
        """Sleep up to this time; meanwhile drain output, reap, and read the life pipe."""
        fds = [self.wake_read, *(d.read_fd for d in (self.out, self.err) if d.open)]
        if life:
            fds.append(self.life_fd)
        ready = select.select(fds, [], [], max(0.0, seconds))[0]
        if self.wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake_read, 4096)
        for drain in (self.out, self.err):
            if drain.read_fd in ready:
                drain.pump()
        self._reap()
        if life and self.life_fd in ready:
            received = os.read(self.life_fd, 4096)
            self.alone = not received
            order = received.decode(errors="replace").split("\n")[0].strip()
            self.why = self.why or order or "launcher_gone"

    def _is_alone(self) -> bool:
        """Return whether the launcher has died; its earlier orders are still carried out."""
        while not self.alone and select.select([self.life_fd], [], [], 0)[0]:
            self.alone = not os.read(self.life_fd, 4096)
        return self.alone

    def _reap(self) -> bool:
        """Reap all dead children; return False once there are no children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.script:
                self.status = status
                self.script_ended_s = time.monotonic()

    def _tree(self) -> list[int]:
        return process_tree.descendants(os.getpid())

    def _end(self) -> list[int]:
        if self.status is None and self.why in DUMP_REASONS:
            self._dump_stacks()
        tree = self._tree()
        self.owned.take(tree, {self.script, *tree, *self.samples.pids})
        shared = _mapped_objects(tree)
        if self._reap():
            alone = self.status is not None
            grace_s = LEFTOVER_GRACE_S if alone else float(self.spec.get("grace_s", 5.0))
            if self.why == "launcher_gone" or self.why.startswith("guard_"):
                grace_s = min(grace_s, ALONE_GRACE_S)
            self.killed = "" if alone else "TERM"
            self._signal_until_gone(signal.SIGTERM, grace_s, repeat=False)
        # One time span for all: several processes stuck in the kernel share the wait.
        reap_s = float(self.spec.get("reap_s", 10.0))
        until_s = time.monotonic() + reap_s
        if self._reap():
            self.killed = self.killed and "KILL"
            self._signal_until_gone(signal.SIGKILL, reap_s, repeat=True)
        least_s = min(LEAST_S, reap_s)
        strays = process_tree.end_marked(self.uid, bound_s=max(least_s, until_s - time.monotonic()))
        if self.group:
            process_tree.end_group(self.group, bound_s=max(least_s, until_s - time.monotonic()))
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, GROUP_FILE))
        self._reap()
        self.owned.close()
        _remove_objects(
            shared | self.shared_used, self.shared_before, {self.script, *tree, *self.samples.pids}
        )
        return sorted({*strays, *(pid for pid in self._tree() if not process_tree.is_zombie(pid))})

    def _dump_stacks(self) -> None:
        tree = [self.script, *process_tree.descendants(self.script)]
        able = [pid for pid in tree if _catches(pid, signal.SIGUSR2)]
        process_tree.send(able, signal.SIGUSR2)
        until = time.monotonic() + (DUMP_S if able else 0.0)
        while self.status is None and (left := until - time.monotonic()) > 0:
            self._wait(min(left, 0.1), life=False)

    def _signal_until_gone(self, number: int, bound_s: float, *, repeat: bool) -> None:
        until = time.monotonic() + bound_s
        signalled: set[int] = set()
        pause = 0.01
        alone = self.alone
        while True:
            if repeat and self.group:
                # A process that forks in a loop can outrun kills from a list of processes.
                process_tree.kill_group(self.group)
            tree = self._tree()
            process_tree.send([pid for pid in tree if repeat or pid not in signalled], number)
            if not repeat:
                # A stopped process handles no signal before it continues.
                process_tree.send([pid for pid in tree if pid not in signalled], signal.SIGCONT)
            signalled.update(tree)
            self._wait(pause, life=False)
            if not self._reap() or time.monotonic() >= until:
                return
            if not repeat and not alone and self._is_alone():
                alone, until = True, min(until, time.monotonic() + ALONE_GRACE_S)
            pause = min(pause * 1.5, 0.02 if repeat else 0.1)

    def _report(self, survivors: list[int]) -> None:
        status = self.status
        exited = status is not None and os.WIFEXITED(status)
        signalled = status is not None and os.WIFSIGNALED(status)
        now = time.monotonic()
        record: dict[str, Any] = {
            "uid": self.uid,
            "why": self.why or "exit",
            "code": os.WEXITSTATUS(status) if exited and status is not None else None,
            "signal": os.WTERMSIG(status) if signalled and status is not None else None,
            "killed": self.killed,
            "spawn_error": self.spawn_error,
            "script_s": (self.script_ended_s or now) - self.started_s,
            "seconds": now - self.started_s,
            "peak_bytes": self.samples.peak_bytes,
            "memory_limit_bytes": self.memory_limit,
            "stdout_bytes": self.out.drained,
            "stderr_bytes": self.err.drained,
            "survivors": survivors,
            "samples": self.samples.rows,
            "cpu_quota": self.samples.quota.cpus if self.samples.quota is not None else None,
        }
        path = os.path.join(self.folder, "result.json")
        try:
            _write_atomically(path, record)
        except OSError:
            # On a full disk the verdict matters more than the logs and the samples.
            self._remove_scratch()
            for name in ("stdout.log", "stderr.log"):
                try:
                    os.truncate(os.path.join(self.folder, name), 0)
                except OSError:
                    continue
            _write_atomically(path, {**record, "samples": []})
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        # Done here, as the launcher may have died.
        for scratch in self.spec.get("scratch", ()):
            namespace.remove(scratch)
        if self._is_alone():
            for left in self.spec.get("left_alone", ()):
                namespace.remove(left)
            for name in LOGS:
                with contextlib.suppress(OSError):
                    _hide(os.path.join(self.folder, name), self.spec.get("secrets", ()))


def _hide(path: str, secrets: Iterable[str]) -> None:
    """Remove words from a file that the trial could also write to; links are not followed."""
    with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "r+b") as file:
        data = clean = file.read()
        for secret in secrets:
            clean = clean.replace(secret.encode(errors="surrogateescape"), b"<redacted>")
        if clean != data:
            file.seek(0)
            file.truncate()
            file.write(clean)


def _objects() -> list[str]:
    """Return names in shared memory that only libraries use, from any process."""
    try:
        return [name for name in os.listdir(SHARED_MEMORY) if name.startswith(SHARED_NAMES)]
    except OSError:
        return []


def _mapped_objects(pids: list[int]) -> set[str]:
    """Return those of these names that the processes use; their creators may have ended long ago.

    The trial's own shared memory is on another device, whatever its name.
    """
    names = set(_objects())
    device = _device(SHARED_MEMORY)
    found: set[str] = set()
    for pid in pids if names else ():
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
                rows = [line.split() for line in file if SHARED_MEMORY in line]
            used = {os.path.basename(row[-1]) for row in rows if row[3] == device}
        except OSError:
            continue
        found |= used & names
    return found


def _device(path: str) -> str:
    """Return the device mounted there, as in ``/proc/<pid>/maps``."""
    try:
        number = os.stat(path).st_dev
    except OSError:
        return ""
    return f"{os.major(number):02x}:{os.minor(number):02x}"


def _remove_objects(used: set[str], before: set[str], pids: set[int]) -> None:
    """Remove shared memory that a killed tree has left behind, as names outlive their creator.

    Torch writes the creator into the name. Other names must have been used by the tree at its end, have been
    created during the trial, and be unused now.
    """
    names = _objects()
    others = {name for name in names if name in used - before and not name.startswith("torch_")}
    gone = others - _mapped_objects(process_tree.all_pids()) if others else others
    for name in names:
        if name.startswith("torch_"):
            creator = name.split("_")[1]
            is_left_over = name in used or (creator.isdecimal() and int(creator) in pids)
            if is_left_over and not os.path.exists(f"/proc/{creator}"):
                gone.add(name)
    for name in gone:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(SHARED_MEMORY, name))


def _catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal, so that the signal does not end it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except OSError:
        pass
    return False


def _keep(guard_pid: int) -> int:
    """Wait for the guard; if it was killed, end all that it owned.

    Its orphans become children of this process, also those without session and environment mark.
    """

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(guard_pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    status = 0
    with contextlib.suppress(ChildProcessError):
        pid = 0
        while pid != guard_pid:
            pid, status = os.waitpid(-1, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return 0
    # Killed, or ended by an error: either way its processes remain.
    until = time.monotonic() + KEEPER_REAP_S
    groups = process_tree.groups(os.environ.get(process_tree.GUARD_VARIABLE, ""))
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            for group in groups:
                process_tree.kill_group(group)
            process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)
    for group in groups:
        process_tree.end_group(group, bound_s=1.0)
    return 1


def _fork_keeper(life_fd: int) -> None:
    """Fork; the parent becomes the keeper and does not return, the child is the guard."""
    keeper = os.getpid()
    guard_pid = os.fork()
    if guard_pid:
        code = 1
        try:
            os.close(life_fd)
            os.close(0)
            code = _keep(guard_pid)
        finally:
            os._exit(code)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # TERM, not KILL: without its keeper the guard still ends its trial.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(1)


def _lowest(fd: int) -> int:
    """Return the file under the lowest free descriptor, as `select` takes none above 1023."""
    low = os.dup(fd)
    os.close(fd)
    return low


def main(life_fd: int, become: Become | None = None) -> int:
    """Read the orders from standard input and carry them out.

    Args:
        life_fd: Read end of the life pipe.
        become: See `Guard`.

    Raises:
        IsScript: In the process of the script, with `become`.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A fork of the host program that inherited the life pipe would keep it open.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    _let_notices_pass()
    life_fd = _lowest(life_fd)
    _fork_keeper(life_fd)
    parts: list[bytes] = []
    while data := os.read(0, 1 << 20):
        parts.append(data)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    spec = json.loads(b"".join(parts))
    for lock in spec.get("locks", ()):
        # Held by this process and not inherited by the script.
        os.set_inheritable(lock, False)
    Guard(spec, life_fd, become).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
