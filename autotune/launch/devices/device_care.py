"""Accelerators of a trial: locked for it, checked after a failure, and free again after its end.

The lock of a device is a file named after its UUID, the same for all searches on this machine. The kernel
releases it with the last process that holds it: the trial's guard. On a cluster node a trial also claims the
node's CPUs (`autotune.launch.devices.machine_lock`); on one machine the search does.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import signal
import subprocess
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.devices.bounded import Bounded
from autotune.devices.find import find_devices
from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.load_check import usable_cpus
from autotune.launch.devices.lock_folder import lock_folder, opened
from autotune.launch.devices.machine_lock import MachineLock
from autotune.launch.guard import process_tree
from autotune.launch.runner import NOT_BEGUN
from autotune.model.trial import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.devices.common import Device
    from autotune.launch.result.process_reports import ProcessReports
    from autotune.model.trial import Launch, Outcome

log = logging.getLogger(__name__)

CANARY = Path(__file__).resolve().parents[2] / "trial" / "entry" / "device_canary.py"
LOCK_S = 300.0
"""Longer than a trial of another search usually takes."""
FREE_S = 10.0
COOL_S = 30.0
"""Longest wait for a device to cool after the previous trial; longer heat is due to the machine."""
SLACK_BYTES = 64 * 1024**2
RETRY_S = 30.0
"""Interval between checks of a device that does not compute, while a trial waits for it."""

CANARY_S = 60.0
CANARIES = 2
_POLL_S = 0.1
_KILL_S = 5.0
_BROKEN: set[str] = set()
"""UUIDs of devices that no longer computed after a trial of this process."""
_SUSPECT = (
    FailureKind.CUDA_FATAL,
    FailureKind.CRASH_SIGNAL,
    FailureKind.TIMEOUT_PROGRESS,
    FailureKind.TIMEOUT_TOTAL,
)
_HELD: weakref.WeakSet[Held] = weakref.WeakSet()
"""Holders of locks in this process."""


@dataclass(eq=False)
class Held:
    """Devices locked for one trial."""

    devices: Sequence[Device]
    locks: list[int] = field(default_factory=list[int])
    used_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """UUID -> memory in use before the trial."""
    claim: MachineLock | None = None
    """Claim on the node's CPUs and devices."""
    notes: tuple[str, ...] = ()
    """Messages for the user."""

    def __post_init__(self) -> None:
        _HELD.add(self)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of all locks; a process that inherits them also holds the devices."""
        return (*self.locks, *(() if self.claim is None else self.claim.descriptors))

    def hand_over(self) -> None:
        """Close the locks in this process; a living guard that inherited them still holds the devices."""
        while self.locks:
            os.close(self.locks.pop())
        if self.claim is not None:
            self.claim.release()


def _close_all() -> None:
    """Close the locks in a fork of the host program, which would hold the devices while it lives."""
    for held in list(_HELD):
        held.hand_over()


os.register_at_fork(after_in_child=_close_all)


class DeviceCare:
    """Locks and checks the devices of one runner's trials; does nothing without devices.

    Args:
        find: Returns the visible devices for a trial's environment.
        folder: Folder of lock files; None: the machine's default.
        lock_s: Longest wait for another search's trial to end.
        free_s: Longest wait for memory to be released after a trial.
        cool_s: Longest wait for a device with thermally reduced clocks.
        probe: Returns an empty string if the devices of a launch compute, else the reason as a line of text;
            None: `run_canary`.
        request: Claim that each trial makes on this machine; None if the search has claimed it.
    """

    def __init__(
        self,
        find: Callable[[Mapping[str, str]], Sequence[Device]] = find_devices,
        *,
        folder: Path | None = None,
        lock_s: float = LOCK_S,
        free_s: float = FREE_S,
        cool_s: float = COOL_S,
        probe: Callable[[Launch], str] | None = None,
        request: ClaimRequest | None = None,
    ) -> None:
        self._find = find
        self._request = request
        self._folder = folder
        self._lock_s = lock_s
        self._free_s = free_s
        self._cool_s = cool_s
        self._probe = probe
        self._found: dict[str | None, Sequence[Device]] = {}

    def devices(self, environ: Mapping[str, str]) -> Sequence[Device]:
        """Return the devices visible in this environment; slow devices do not block the caller."""
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        if visible not in self._found:
            self._found[visible] = [Bounded(device) for device in self._find(environ)]
        return self._found[visible]

    def hold(
        self, launch: Launch, *, stopped: Callable[[], bool], within_s: float = math.inf, uid: str = ""
    ) -> Held | Failure:
        """Lock the devices of a trial before its start; return a Failure if it cannot start.

        Args:
            launch: Launch of the trial.
            stopped: Returns True once the trial has been cancelled.
            within_s: Longest wait, if shorter than the usual wait for a device; it is part of the trial's
                time.
            uid: Uid of the attempt; marks the processes started for it.
        """
        devices = self.devices(launch.env)
        uuids = sorted({d.facts.uuid for d in devices if d.facts.uuid})
        if any(d.is_silent for d in devices):
            return Failure(
                kind=FailureKind.CONTENDED,
                message="a device did not report its identity in time, so it was not locked",
            )
        if _BROKEN & set(uuids):
            why = self._until_it_computes(launch, stopped, min(self._lock_s, within_s), uid)
            if why:
                return _lost(why, next(uuid for uuid in uuids if uuid in _BROKEN))
            _BROKEN.difference_update(uuids)
        held = Held(devices)
        refused = self._claim(held, uuids, stopped, within_s)
        if refused is not None:
            return refused
        lock_s = min(self._lock_s, within_s)
        until = time.monotonic() + lock_s
        for uuid in uuids:
            lock = self._lock(uuid, until, stopped)
            if lock is None:
                held.hand_over()
                name = next(d.facts.name for d in devices if d.facts.uuid == uuid)
                return Failure(
                    kind=FailureKind.CONTENDED,
                    message=f"another search has been using {name} for {lock_s:.0f} s",
                    evidence={"device": uuid},
                )
            held.locks += [lock] if lock >= 0 else []
        self._cool(devices, stopped, within_s)
        held.used_bytes = _used(devices)
        return held

    def release(
        self,
        held: Held,
        launch: Launch,
        reports: ProcessReports,
        outcomes: Mapping[int, Outcome],
        *,
        stopped: Callable[[], bool] = lambda: False,
        uid: str = "",
    ) -> None:
        """Wait until a trial's memory is released, and check whether a device that failed computes again.

        Args:
            held: From `hold`; the locks are not changed.
            launch: Launch of the trial.
            reports: Reports of its process.
            outcomes: Outcome per segment.
            stopped: Returns True once the result is not needed any more.
            uid: As for `hold`.
        """
        if not held.devices:
            return
        left = self._wait_until_free(held, stopped)
        if left:
            log.warning("%.2f GiB of device memory was not released after a trial", left / 2**30)
        trained = reports.facts is None or bool(reports.facts.devices)
        kinds = {outcome.kind for outcome in outcomes.values() if isinstance(outcome, Failure)}
        if not trained or not kinds & set(_SUSPECT):
            return
        why = ""
        for _ in range(CANARIES):
            why = "" if stopped() else self._why_broken(launch, stopped, uid)
            if not why or stopped():
                return
        log.warning("the device no longer computes: %s", why)
        _BROKEN.update(d.facts.uuid for d in held.devices if d.facts.uuid)

    def _why_broken(self, launch: Launch, stopped: Callable[[], bool], uid: str) -> str:
        return run_canary(launch, stopped, uid) if self._probe is None else self._probe(launch)

    def _until_it_computes(
        self, launch: Launch, stopped: Callable[[], bool], within_s: float, uid: str
    ) -> str:
        """Wait until the device computes; return why it does not, or an empty string.

        The failure is not returned at once. If trials run in parallel, a broken device is always free and
        would attract all of them.
        """
        until = time.monotonic() + within_s
        while why := self._why_broken(launch, stopped, uid):
            again = min(until, time.monotonic() + RETRY_S)
            while time.monotonic() < again and not stopped():
                time.sleep(_POLL_S)
            if time.monotonic() >= until or stopped():
                return why
        return ""

    def _claim(
        self, held: Held, uuids: Sequence[str], stopped: Callable[[], bool], within_s: float
    ) -> Failure | None:
        """Claim this machine for the trial; return why it cannot start, or None."""
        if self._request is None:
            return None
        resources = Resources(cpus=frozenset(usable_cpus()), devices=frozenset(uuids))
        claim = held.claim = MachineLock(self._request, resources, folder=self._folder)
        wait_s = min(self._request.wait_s, within_s)
        until = time.monotonic() + wait_s
        while (ahead := claim.ahead()) is not None and time.monotonic() < until and not stopped():
            time.sleep(_POLL_S)
        if ahead is not None and not self._request.share:
            held.hand_over()
            message = f"{ahead.text}; waited {wait_s:.0f} s"
            return Failure(kind=FailureKind.CONTENDED, message=message)
        if ahead is not None:
            held.notes = (f"measured beside another search: {ahead.study} (pid {ahead.pid})",)
        claim.begin()
        return None

    def _cool(self, devices: Sequence[Device], stopped: Callable[[], bool], within_s: float) -> None:
        until = time.monotonic() + min(self._cool_s, within_s)
        while any("hw_thermal" in device.sample().slowdowns for device in devices):
            if time.monotonic() > until or stopped():
                return
            time.sleep(_POLL_S)

    def _wait_until_free(self, held: Held, stopped: Callable[[], bool]) -> int:
        """Wait for the release of memory; return the bytes in use above the previous use."""
        until = time.monotonic() + self._free_s
        while True:
            excess = {
                uuid: used - held.used_bytes.get(uuid, used) - SLACK_BYTES
                for uuid, used in _used(held.devices).items()
            }
            most = max(excess.values(), default=0)
            if most <= 0 or stopped():
                return 0
            if time.monotonic() > until:
                return most + SLACK_BYTES
            time.sleep(_POLL_S)

    def _lock(self, uuid: str, until: float, stopped: Callable[[], bool]) -> int | None:
        """Return a descriptor that holds the lock, None if it is taken, -1 if locking is not possible."""
        try:
            lock = opened(self._folder or lock_folder(), f"autotune-{uuid}.lock")
        except OSError as error:
            log.warning("devices cannot be locked here: %s", error)
            return -1
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until or stopped():
                    os.close(lock)
                    return None
                time.sleep(_POLL_S)
            except OSError as error:
                log.warning("devices cannot be locked here: %s", error)
                os.close(lock)
                return -1
            else:
                return lock


def run_canary(launch: Launch, stopped: Callable[[], bool] = lambda: False, uid: str = "") -> str:
    """Compute on the visible devices with the script's interpreter; return the error, or an empty string.

    The process ends with this one. If it does not, it can be found by the mark of its trial.

    Args:
        launch: Launch of the trial.
        stopped: Returns True once the result is not needed any more; the wait then ends.
        uid: Uid of the attempt.
    """
    source = CANARY.read_text(encoding="utf-8")
    process = subprocess.Popen(
        [launch.python, "-c", source, str(os.getpid())],
        env={**launch.env, **({process_tree.TRIAL_VARIABLE: uid} if uid else {})},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until = time.monotonic() + CANARY_S
    output = b""
    while True:
        try:
            _, output = process.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() < until and not stopped():
                continue
            _kill(process)
            return "the check was cancelled" if stopped() else f"no answer within {CANARY_S:.0f} s"
        break
    if process.returncode == 0:
        return ""
    lines = output.decode(errors="backslashreplace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that waits inside the driver cannot be reaped, and must not block the search.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_KILL_S)


def _used(devices: Sequence[Device]) -> dict[str, int]:
    seen = {d.facts.uuid: d.sample().used_bytes for d in devices}
    return {uuid: used for uuid, used in seen.items() if used is not None}


def _lost(why: str, uuid: str) -> Failure:
    return Failure(
        kind=FailureKind.INFRA_LOST,
        message=f"the device no longer computes: {why}",
        evidence={NOT_BEGUN: 1, "device": uuid},
    )
