"""A started guard and the reports of its trial, followed to the end; limits are enforced here."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.devices.energy_counters import EnergySample
from autotune.launch.deadline import whole_deadline_s
from autotune.launch.guard import guard, process_tree
from autotune.launch.result.host_samples import DeviceReading
from autotune.launch.result.process_reports import ProcessReports
from autotune.launch.workspace.folders import SCRATCH
from autotune.launch.workspace.orphans import REAP_S, end_strays
from autotune.model.trial import StartMode
from autotune.protocol.disturbed import DisturbanceWriter, Span
from autotune.protocol.lines import Reader, open_plain
from autotune.text.redact import plain_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.devices.energy_counters import Meter
    from autotune.launch.fork_pool import Forked, ForkServer
    from autotune.launch.workspace.workspace import Workspace
    from autotune.model.trial import Fidelity, Segment

log = logging.getLogger(__name__)

POLL_S = 0.25
LINGER_S = 5.0
STEP_FACTOR = 10.0
FIRST_STEPS = 3
SHARING = ("CUDA_MPS_PIPE_DIRECTORY",)
"""Variables of a trial that shares memory with servers outside it."""


@dataclass
class Running:
    """A started guard and the reports of its trial."""

    prepared: Workspace
    command: Sequence[str]
    grace_s: float
    locks: tuple[int, ...] = ()
    reports: ProcessReports = field(default_factory=ProcessReports)
    devices: list[DeviceReading] = field(default_factory=list[DeviceReading])
    progress_limit_s: float = 0.0
    meter: Meter | None = None
    energies: list[EnergySample] = field(default_factory=list[EnergySample])
    linger_s: float = LINGER_S
    disks: dict[str, int] = field(default_factory=dict[str, int])
    server: ForkServer | None = None
    start: StartMode = StartMode.COLD
    refused: str = ""
    """Reason why the server did not fork this trial."""
    memory_limit_bytes: int = 0
    disturbs: Callable[[], bool] = bool
    """Whether the search itself loads the machine now, as during its start."""
    disturbed: list[Span] = field(default_factory=list[Span])
    """Times at which the search loaded the machine."""

    def __post_init__(self) -> None:
        folder = self.prepared.folder
        self._reader = Reader(folder / "events.jsonl", self.prepared.assignment.uid)
        self._disturbances = DisturbanceWriter(folder)
        self._is_disturbed = False
        self._is_stopped = False
        self._script_pid = 0
        read_fd, self._life_fd = os.pipe()
        self.start_ns = self._looked_ns = time.perf_counter_ns()
        orders = self._orders()
        try:
            with (folder / "guard.log").open("wb") as guard_log:
                self._guard = self._forked(read_fd, guard_log.fileno(), orders) or subprocess.Popen(
                    [sys.executable, "-S", "-E", guard.__file__, str(read_fd)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=guard_log,
                    pass_fds=[read_fd, *self.locks],
                    start_new_session=True,
                    cwd="/",
                    env={
                        "PATH": os.defpath,
                        "LANG": "C.UTF-8",
                        process_tree.GUARD_VARIABLE: self.prepared.assignment.uid,
                    },
                )
        except BaseException:
            # If a guard was forked nevertheless, this end of file ends it.
            os.close(self._life_fd)
            raise
        finally:
            os.close(read_fd)
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._guard.stdin as stdin:
            stdin.write(json.dumps(orders).encode())

    def _orders(self) -> dict[str, Any]:
        """Return the guard's orders: command and limits."""
        launch, folder = self.prepared.assignment.launch, self.prepared.folder
        orders: dict[str, Any] = {
            "uid": self.prepared.assignment.uid,
            "trial_dir": str(folder),
            "argv": list(self.command),
            "env": self.prepared.env,
            "cwd": launch.cwd,
            "stdin": launch.stdin,
            "deadline_s": self.deadline_s,
            "patience_s": self.prepared.assignment.patience_s,
            "grace_s": self.grace_s,
            "reap_s": REAP_S,
            "memory_limit_bytes": self.memory_limit_bytes,
            "scratch": [str(self.prepared.temporary)],
            # If the launcher has died, the guard hides these secrets and removes these files itself.
            "secrets": plain_secrets(launch.command, launch.env),
            "left_alone": [str(self.prepared.plan_path), *(str(folder / name) for name in SCRATCH)],
            "locks": list(self.locks),
        }
        shares = any(name in self.prepared.env for name in SHARING)
        orders["own_ipc"] = launch.protect and not shares
        if self.prepared.enclosed:
            orders["enclosure"] = {
                "base": str(folder),
                "keep": [str(folder)],
                "must": list(self.prepared.protected),
                "shares": shares,
                "temporary": str(self.prepared.temporary),
                "beside": self.prepared.beside,
            }
        return orders

    def _forked(self, life_fd: int, log_fd: int, orders: dict[str, Any]) -> Forked | None:
        """Return the forked keeper; None without a server or on refusal. Adapts the orders."""
        if self.server is None:
            return None
        found = self.server.fork(self.prepared.assignment.uid, life_fd, log_fd, self.locks)
        if isinstance(found, str):
            self.refused = found
            return None
        self.start = StartMode.FORK
        # The forked guard has the locks under other descriptors, and closes them in its children.
        orders.update(locks=[], lent_bytes=self.server.lent_bytes)
        return found

    @property
    def pid(self) -> int:
        """Pid of the keeper, the parent of the guard."""
        return self._guard.pid

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.prepared.assignment.segments

    @property
    def deadline_s(self) -> float:
        return whole_deadline_s(self.prepared.assignment)

    @property
    def fidelity(self) -> Fidelity:
        """Fidelity of the open segment."""
        return next(
            (s for s in self.segments if s.trial not in self.reports.closed), self.segments[-1]
        ).fidelity

    def order(self, why: str) -> None:
        """Have the guard end the trial for this reason; only the first reason counts."""
        with contextlib.suppress(OSError):
            os.write(self._life_fd, why.encode() + b"\n")

    def close(self) -> None:
        """Close the pipes to the guard, which then ends its trial if it still runs."""
        with contextlib.suppress(OSError):
            os.close(self._life_fd)
        if self._guard.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(self.grace_s + REAP_S)
        if self._guard.poll() is None:
            process_tree.send([*reversed(process_tree.descendants(self.pid)), self.pid], signal.SIGKILL)
        end_strays(self.prepared.folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(REAP_S)
        if self._guard.poll() is None:
            # A process that waits inside the kernel cannot be killed; the search continues.
            log.warning("the guard of %s (pid %d) cannot be ended", self.prepared.folder.name, self.pid)

    def follow(
        self, progress_floor_s: float, sample_devices: Callable[[], DeviceReading | None] | None
    ) -> dict[str, Any] | None:
        """Follow the trial until the guard has ended; return its verdict, or None if there is none."""
        with contextlib.closing(_EndOf(self._guard)) as ends:
            self._watch(ends, progress_floor_s, sample_devices)
        self._look(None)
        if (self._guard.returncode or 0) < 0:
            self._await_guard()
        self._read()
        try:
            with open_plain(self.prepared.folder / "result.json") as file:
                return json.loads(file.read())
        except (OSError, ValueError):
            return None

    def _watch(
        self,
        ends: _EndOf,
        progress_floor_s: float,
        sample_devices: Callable[[], DeviceReading | None] | None,
    ) -> None:
        moved_s = begun_s = looked_s = time.monotonic()
        patience_s = self.prepared.assignment.patience_s
        last_s = begun_s + self.deadline_s + guard.ending_s(self.grace_s, REAP_S) + LINGER_S
        finished_s = sampled_s = 0.0
        ordered = False
        while not ends.wait(POLL_S):
            now = time.monotonic()
            if (away_s := now - looked_s) > guard.AWAY_S:
                moved_s, begun_s, last_s = moved_s + away_s, begun_s + away_s, last_s + away_s
                finished_s += away_s if finished_s else 0.0
            elif self._is_stopped:
                # A stopped process is no hang. The guard may extend its deadline, so it decides.
                given_s = min(away_s, patience_s)
                patience_s -= given_s
                moved_s, begun_s, last_s = moved_s + given_s, begun_s + given_s, last_s + given_s
                finished_s += given_s if finished_s else 0.0
            looked_s = now
            moved_s = now if self._read() else moved_s
            if now - sampled_s >= guard.SAMPLE_S:
                sampled_s = now
                self._look(sample_devices)
                if not ordered and self._fills_a_disk():
                    ordered = True
                    self.order("disk")
            if self.reports.done is not None or self.reports.broke is not None:
                finished_s = finished_s or now
            limit_s = self._limit_s(progress_floor_s)
            if ordered:
                pass
            elif finished_s:
                if now - finished_s > self.linger_s:
                    ordered = True
                    self.order("lingers")
            elif now - (moved_s if self.reports.rows else begun_s) > limit_s:
                ordered = True
                self.progress_limit_s = limit_s
                self.order("timeout_progress")
            if now > last_s:
                # The guard is stuck: kill it, its keeper, and the processes that the guard could not kill.
                process_tree.send([*reversed(process_tree.descendants(self.pid)), self.pid], signal.SIGKILL)
            if now > last_s + REAP_S:
                break

    def _look(self, sample_devices: Callable[[], DeviceReading | None] | None) -> None:
        """Sample accelerators and energy counters; record whether the script is stopped or disturbed."""
        sample = sample_devices() if sample_devices is not None else None
        if sample is not None:
            self.devices.append(sample)
        self._is_stopped = guard.is_stopped(self._script())
        t_ns = time.perf_counter_ns() if sample is None else sample.t_ns
        self._disturbances.sample(
            t_ns, is_disturbed=self._is_stopped or (sample is not None and sample.spoils)
        )
        self._note_own_disturbance()
        if self.meter is not None and self.meter.exists:
            self.energies.append(self.meter.sample())

    def _note_own_disturbance(self) -> None:
        """Record the time since the last sample if the search loaded the machine, or was itself stopped."""
        began_ns, self._looked_ns = self._looked_ns, time.perf_counter_ns()
        if self._looked_ns - began_ns > guard.GAP_S * 1e9:
            # This process was stopped, perhaps with the trial; then the guard's samples mark that time as
            # well.
            self._disturbances.write(began_ns, self._looked_ns)
        before, self._is_disturbed = self._is_disturbed, self.disturbs()
        if before or self._is_disturbed:
            self.disturbed.append((began_ns, self._looked_ns))
            self._disturbances.write(began_ns, self._looked_ns)

    def _script(self) -> int:
        """Return the pid of the script: first child of the guard, which is the keeper's only child."""
        if not self._script_pid:
            for guard_pid in process_tree.descendants(self.pid)[:1]:
                self._script_pid = next(iter(process_tree.descendants(guard_pid)), 0)
        return self._script_pid

    def _fills_a_disk(self) -> bool:
        """Return whether a disk of the trial, shared with others and with the journal, is nearly full."""
        for place, least_bytes in self.disks.items():
            with contextlib.suppress(OSError):
                if shutil.disk_usage(place).free < least_bytes:
                    return True
        return False

    def _await_guard(self) -> None:
        """Wait for the verdict of a guard whose keeper was killed; it still ends its trial."""
        until_s = time.monotonic() + guard.ALONE_GRACE_S + REAP_S
        while process_tree.marked(self.prepared.assignment.uid, process_tree.GUARD_VARIABLE):
            if time.monotonic() > until_s:
                return
            time.sleep(0.02)

    def _limit_s(self, floor_s: float) -> float:
        starting = len(self.reports.rows) < FIRST_STEPS or self.reports.compiling or self.reports.beating
        # At the start, in a compile and after a heartbeat (evaluation, checkpoint), the limit is the start's.
        setup_s = self.fidelity.setup_s if starting else 0.0
        return max(floor_s, STEP_FACTOR * self.reports.median_step_s(), setup_s)

    def _read(self) -> bool:
        """Read new events of the trial; return True on progress."""
        moved = False
        for event in self._reader.read():
            self.reports.take(event)
            moved = True
        return moved


class _EndOf:
    """Waits for the end of a process, through a pidfd where available."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked) -> None:
        self._process = process
        try:
            self._fd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            self._fd = -1

    def wait(self, seconds: float) -> bool:
        if self._fd >= 0:
            # `select` takes no descriptor above 1023, and the program may have more open files.
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.poll(seconds * 1000)
        else:
            time.sleep(seconds)
        return self._process.poll() is not None

    def close(self) -> None:
        """Close the pidfd without waiting."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
