"""A started guard and what is heard of its trial: watched to its end, and ended where it breaks a limit."""

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
"""Variables of what shares memory with servers outside of a trial."""


@dataclass
class Running:
    """A started guard and what is heard of its trial."""

    prepared: Workspace
    command: Sequence[str]
    grace_s: float
    locks: tuple[int, ...] = ()
    told: ProcessReports = field(default_factory=ProcessReports)
    devices: list[DeviceReading] = field(default_factory=list[DeviceReading])
    progress_limit_s: float = 0.0
    meter: Meter | None = None
    energies: list[EnergySample] = field(default_factory=list[EnergySample])
    linger_s: float = LINGER_S
    disks: dict[str, int] = field(default_factory=dict[str, int])
    server: ForkServer | None = None
    start: StartMode = StartMode.COLD
    refused: str = ""
    """Why the server did not fork this one."""
    memory_limit_bytes: int = 0
    disturbs: Callable[[], bool] = bool
    """Whether the search itself uses the machine at the moment, as while it starts."""
    disturbed: list[Span] = field(default_factory=list[Span])
    """When it did."""

    def __post_init__(self) -> None:
        folder = self.prepared.folder
        self._reader = Reader(folder / "events.jsonl", self.prepared.assignment.uid)
        self._teller = DisturbanceWriter(folder)
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
            # A guard that was forked all the same learns from it that it has no launcher.
            os.close(self._life_fd)
            raise
        finally:
            os.close(read_fd)
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._guard.stdin as stdin:
            stdin.write(json.dumps(orders).encode())

    def _orders(self) -> dict[str, Any]:
        """What the guard is told to run, and within which limits."""
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
            # Nobody reads them any more where the launcher has died, and who does what it does is not known.
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
        """The keeper, forked; None where there is no server or it refuses. Orders are made to fit."""
        if self.server is None:
            return None
        found = self.server.fork(self.prepared.assignment.uid, life_fd, log_fd, self.locks)
        if isinstance(found, str):
            self.refused = found
            return None
        self.start = StartMode.FORK
        # It has the locks under other numbers, and hands none of them on.
        orders.update(locks=[], lent_bytes=self.server.lent_bytes)
        return found

    @property
    def pid(self) -> int:
        """The guard's pid."""
        return self._guard.pid

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.prepared.assignment.segments

    @property
    def deadline_s(self) -> float:
        return whole_deadline_s(self.prepared.assignment)

    @property
    def fidelity(self) -> Fidelity:
        """Of the segment that is open."""
        return next((s for s in self.segments if s.trial not in self.told.closed), self.segments[-1]).fidelity

    def order(self, why: str) -> None:
        """Have the guard end the trial for this reason; the first reason counts."""
        with contextlib.suppress(OSError):
            os.write(self._life_fd, why.encode() + b"\n")

    def close(self) -> None:
        """Let go of the guard; it ends its trial by itself if it has not yet."""
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
            # It waits inside the kernel, which nothing ends from outside; the search goes on without it.
            log.warning("the guard of %s (pid %d) cannot be ended", self.prepared.folder.name, self.pid)

    def follow(
        self, progress_floor_s: float, sample_devices: Callable[[], DeviceReading | None] | None
    ) -> dict[str, Any] | None:
        """Watch until the guard has ended; its verdict, None where it left none."""
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
                # No hang: it cannot move. The guard, which may lengthen its deadline, decides how long.
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
            if self.told.done is not None or self.told.broke is not None:
                finished_s = finished_s or now
            limit_s = self._limit_s(progress_floor_s)
            if ordered:
                pass
            elif finished_s:
                if now - finished_s > self.linger_s:
                    ordered = True
                    self.order("lingers")
            elif now - (moved_s if self.told.rows else begun_s) > limit_s:
                ordered = True
                self.progress_limit_s = limit_s
                self.order("timeout_progress")
            if now > last_s:
                # Stuck: the guard below its keeper, and what it could not end.
                process_tree.send([*reversed(process_tree.descendants(self.pid)), self.pid], signal.SIGKILL)
            if now > last_s + REAP_S:
                break

    def _look(self, sample_devices: Callable[[], DeviceReading | None] | None) -> None:
        """Accelerators and energy counters as they are now, where there are any."""
        sample = sample_devices() if sample_devices is not None else None
        if sample is not None:
            self.devices.append(sample)
        self._is_stopped = guard.is_stopped(self._script())
        t_ns = time.perf_counter_ns() if sample is None else sample.t_ns
        self._teller.look(t_ns, is_disturbed=self._is_stopped or (sample is not None and sample.spoils))
        self._note_own_disturbance()
        if self.meter is not None and self.meter.exists:
            self.energies.append(self.meter.sample())

    def _note_own_disturbance(self) -> None:
        """Add the time since the last look where the search used the machine in it, or stood still itself."""
        began_ns, self._looked_ns = self._looked_ns, time.perf_counter_ns()
        if self._looked_ns - began_ns > guard.GAP_S * 1e9:
            # Stopped, perhaps with the trial; if so the samples of the guard set the time aside as well.
            self._teller.tell(began_ns, self._looked_ns)
        before, self._is_disturbed = self._is_disturbed, self.disturbs()
        if before or self._is_disturbed:
            self.disturbed.append((began_ns, self._looked_ns))
            self._teller.tell(began_ns, self._looked_ns)

    def _script(self) -> int:
        """Pid of the script: the guard is the keeper's only child, and starts the script as its first."""
        if not self._script_pid:
            for guard_pid in process_tree.descendants(self.pid)[:1]:
                self._script_pid = next(iter(process_tree.descendants(guard_pid)), 0)
        return self._script_pid

    def _fills_a_disk(self) -> bool:
        """Nearly nothing is left where it writes, which others need as well, and the journal."""
        for place, least_bytes in self.disks.items():
            with contextlib.suppress(OSError):
                if shutil.disk_usage(place).free < least_bytes:
                    return True
        return False

    def _await_guard(self) -> None:
        """Its keeper was killed; it ends the trial all the same, and its verdict is worth waiting for."""
        until_s = time.monotonic() + guard.ALONE_GRACE_S + REAP_S
        while process_tree.marked(self.prepared.assignment.uid, process_tree.GUARD_VARIABLE):
            if time.monotonic() > until_s:
                return
            time.sleep(0.02)

    def _limit_s(self, floor_s: float) -> float:
        starting = len(self.told.rows) < FIRST_STEPS or self.told.compiling or self.told.beating
        # Evaluating and writing checkpoints take what they take, as starting does.
        setup_s = self.fidelity.setup_s if starting else 0.0
        return max(floor_s, STEP_FACTOR * self.told.median_step_s(), setup_s)

    def _read(self) -> bool:
        """Take what the trial has told meanwhile; whether it moved on."""
        moved = False
        for event in self._reader.read():
            self.told.take(event)
            moved = True
        return moved


class _EndOf:
    """Waits for a process to end, woken by its end where the kernel can do so."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked) -> None:
        self._process = process
        try:
            self._fd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            self._fd = -1

    def wait(self, seconds: float) -> bool:
        if self._fd >= 0:
            # Not by `select`, which takes no descriptor from 1024 on: a program may have that many open.
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.poll(seconds * 1000)
        else:
            time.sleep(seconds)
        return self._process.poll() is not None

    def close(self) -> None:
        """Let go of it; nothing is waited for."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
