"""Runner that executes each trial in a guarded process on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.clock import SystemClock
from autotune.devices.energy_counters import Meter
from autotune.errors import DiskFull
from autotune.launch.deadline import AGAIN_SHARE, LOCK_SHARE, shortened, whole_deadline_s
from autotune.launch.devices.device_care import DeviceCare, Held
from autotune.launch.devices.devices_sampler import device_sampler
from autotune.launch.fork_pool import LOADED, LOADED_TO_COMPILE, Forks, ForkServer
from autotune.launch.guard import process_tree
from autotune.launch.nsys import linger_s, reported, under_nsys
from autotune.launch.outcomes import outcomes_of, outside_of
from autotune.launch.result.process_reports import ProcessReports
from autotune.launch.result.trial_output import hide_secrets, trim_logs
from autotune.launch.runner import NOT_BEGUN, REMEDY, Runner, TrialResult, cold_start_note
from autotune.launch.running_trial import Running
from autotune.launch.workspace import isolation as enclosure
from autotune.launch.workspace import isolation_failures, runtime_library
from autotune.launch.workspace.disk_space import SpaceFloor
from autotune.launch.workspace.folders import remove_scratch, temporary_folder
from autotune.launch.workspace.orphans import end_strays
from autotune.launch.workspace.workspace import prepare
from autotune.model.trial import Failure, FailureKind, StartMode
from autotune.shortage import shortage
from autotune.text.encodable import writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autotune.clock import Clock
    from autotune.launch.result.host_samples import DeviceReading, HostSamples
    from autotune.model.trial import Assignment, Launch, Outcome

GRACE_S = 5.0
SHOWN_FILES = 3


class LocalRunner(Runner):
    """Runs assignments on this machine, one at a time.

    Each trial runs under a guard (`autotune.launch.guard.guard`) that ends with the trial or with this
    process. It has a directory of its own below the study's, and its writes do not reach the user's files.

    Args:
        study_dir: Trials live in ``trials/<uid>`` below it, published compile caches in ``cache``.
        isolation: ``overlay``, ``redirect``, or ``auto`` for the best that the machine allows.
        clock: Source of durations; None: the machine's clock.
        progress_floor_s: Lower bound of the limit on the time between two steps.
        sample_devices: Samples the accelerators; called a few times a second during a trial. None: a default
            sampler if there are accelerators.
        command: From the interpreter to the command to run in place of the trial runtime; for tests.
        space_floor_bytes: Free disk space below which a trial is refused; None: the default of `SpaceFloor`.
        grace_s: Time from the request to end to the kill.
        witness: Receives the reports and samples of each process after its end, for recorders.
        device_care: Locks and checks the accelerators; None: the default.
        loaded: Modules that a fork server imports before it forks trials.
        free_memory: Bytes available to a trial now. The memory limit of an assignment is reduced to it at the
            start. None: no such reduction.
        disturbs: Whether the search itself loads the machine now, as during its start. Steps in that time are
            set aside.
    """

    def __init__(
        self,
        *,
        study_dir: Path,
        isolation: str = "auto",
        clock: Clock | None = None,
        progress_floor_s: float = 30.0,
        sample_devices: Callable[[], DeviceReading | None] | None = None,
        command: Callable[[str], Sequence[str]] | None = None,
        space_floor_bytes: int | None = None,
        grace_s: float = GRACE_S,
        witness: Callable[[Assignment, ProcessReports, HostSamples], None] | None = None,
        device_care: DeviceCare | None = None,
        loaded: Sequence[str] = LOADED,
        free_memory: Callable[[], int] | None = None,
        disturbs: Callable[[], bool] = bool,
    ) -> None:
        self._study_dir = Path(study_dir).absolute()
        self._isolation = isolation
        self._clock = clock or SystemClock()
        self._progress_floor_s = progress_floor_s
        self._sample_devices = sample_devices
        self._device_care = device_care or DeviceCare()
        self._command = command
        self._floor = SpaceFloor(space_floor_bytes)
        self._grace_s = grace_s
        self._witness = witness
        self._free_memory = free_memory
        self._disturbs = disturbs
        self._running: Running | None = None
        self._stop_wanted = False
        self._notes: tuple[str, ...] = ()
        self._begun_s = 0.0
        self._start = StartMode.COLD
        to_compile = LOADED_TO_COMPILE if tuple(loaded) == LOADED else loaded
        self._forks = Forks(self._study_dir, loaded, to_compile, free_memory)
        self._blamed: set[str] = set()
        """Errors that an overlay may cause and that the script also raised without one."""

    @property
    def isolation(self) -> str:
        """``overlay`` or ``redirect``: how writes are kept off the user's files here."""
        if self._isolation == "auto":
            self._isolation = enclosure.available(str(self._study_dir / "trials"))
        return self._isolation

    def _isolation_of(self, launch: Launch) -> str:
        """Return the isolation mode for one launch, given what the file system of its folders allows."""
        if not launch.protect or self.isolation != "overlay":
            return self.isolation
        if isolation_failures.is_noted(self._study_dir):
            return "redirect"
        found = enclosure.found_for(launch.script, launch.cwd, launch.env, str(self._study_dir / "trials"))
        return found.mode

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        """Run an assignment; see `Runner.run`. Segments are yielded after the process has ended."""
        self._begun_s = self._clock.now_s()
        self._notes, self._start = (), StartMode.COLD
        try:
            outcomes, reports = self._run(assignment)
        except (OSError, MemoryError, RuntimeError) as error:
            outcomes, reports = {assignment.trial: _not_set_up(error, self._study_dir)}, ProcessReports()
        finally:
            # Reset at the end, not at the start: a signal may arrive right before the start.
            self._stop_wanted = False
        seconds = self._clock.now_s() - self._begun_s
        for number, outcome in outcomes.items():
            yield TrialResult(
                trial=number,
                outcome=outcome,
                seconds=seconds,
                facts=reports.facts,
                notes=self._notes,
                start=self._start,
            )

    def stop(self) -> None:
        """End the running process soon, or else the next one, as ``killed_user``."""
        self._stop_wanted = True
        running = self._running
        if running is not None:
            running.order("killed_user")

    def close(self) -> None:
        """End the fork servers, if any."""
        self._forks.close()

    def _run(self, assignment: Assignment) -> tuple[dict[int, Outcome], ProcessReports]:
        short = self._floor.refusal(self._study_dir)
        if short is not None:
            return {assignment.trial: short}, ProcessReports()
        launch, begun_s = assignment.launch, time.monotonic()
        held = self._device_care.hold(
            launch,
            stopped=lambda: self._stop_wanted,
            within_s=LOCK_SHARE * whole_deadline_s(assignment),
            uid=assignment.uid,
        )
        if self._stop_wanted:
            if isinstance(held, Held):
                held.hand_over()
            held = Failure(kind=FailureKind.KILLED_USER, message="ended by request before its start")
        if isinstance(held, Failure):
            return {assignment.trial: held}, ProcessReports()
        try:
            server = self._server(assignment)
            cut = shortened(assignment, time.monotonic() - begun_s)
            isolation = self._isolation_of(launch)
            outcomes, reports = self._run_held(cut, held, server, isolation)
            suspected = isolation_failures.suspected(outcomes.values())
            if suspected and launch.protect and isolation == "overlay" and suspected not in self._blamed:
                cut = shortened(assignment, time.monotonic() - begun_s, AGAIN_SHARE)
                outcomes, reports = self._run_redirected(cut, held, outcomes)
            self._notes += held.notes
            # Collected while the locks are held: later, another trial may have changed the state.
            self._device_care.release(
                held,
                launch,
                reports,
                outcomes,
                stopped=lambda: self._stop_wanted,
                uid=assignment.uid,
            )
        finally:
            held.hand_over()
        return outcomes, reports

    def _run_redirected(
        self, assignment: Assignment, held: Held, failed: dict[int, Outcome]
    ) -> tuple[dict[int, Outcome], ProcessReports]:
        """Run a trial again without the overlay that may have caused its failure.

        If it succeeds, all further trials of the study run in redirect mode. If it fails, the script is at
        fault.
        """
        enclosure.remove(self._study_dir / "trials" / assignment.uid)
        # The time of a third run is estimated from this one.
        self._begun_s = self._clock.now_s()
        self._notes = ()
        outcomes, reports = self._run_held(assignment, held, None, "redirect")
        suspected = isolation_failures.suspected(failed.values())
        message = isolation_failures.message_of(failed.values())
        if isolation_failures.is_measured(outcomes.values()):
            isolation_failures.note(self._study_dir, message)
            self._notes = (isolation_failures.sentence(message), *self._notes)
        elif isolation_failures.is_the_scripts(outcomes.values()):
            self._blamed.add(suspected)
            outcomes = isolation_failures.with_both(outcomes, suspected, message)
        return outcomes, reports

    def _server(self, assignment: Assignment) -> ForkServer | None:
        """Return the fork server for this trial; None for a cold start."""
        launch, fidelity = assignment.launch, assignment.segments[0].fidelity
        if assignment.start is not StartMode.FORK or self._command is not None or fidelity.under_nsys:
            return None
        if launch.world > 1:
            return None
        if self._forks.loads and launch.protect and self._isolation_of(launch) != "overlay":
            # Modules imported before the redirect may hold references to the original functions.
            self._notes = (cold_start_note("no overlay can be mounted here, which a fork needs"),)
            return None
        found = self._forks.server(
            launch,
            runtime_library.make(self._study_dir / "lib", compiler=(launch.python, *launch.options)),
            within_s=LOCK_SHARE * whole_deadline_s(assignment),
            stopped=lambda: self._stop_wanted,
        )
        if isinstance(found, ForkServer):
            return found
        self._notes = (cold_start_note(found),)
        return None

    def _run_held(
        self, assignment: Assignment, held: Held, server: ForkServer | None, isolation: str
    ) -> tuple[dict[int, Outcome], ProcessReports]:
        launch = assignment.launch
        running, before = self._started(assignment, held, server, isolation)
        result = self._followed(running, held)
        prepared = running.prepared
        hide_secrets(prepared.folder, launch.command, launch.env)
        wrote = enclosure.violations(
            before, enclosure.manifest(prepared.watched, skip=[str(self._study_dir)])
        )
        wrote = [writable(path) for path in wrote]
        study = str(self._study_dir)
        kept = [writable(path) for path in enclosure.kept_off(prepared.folder, prepared.places, study)]
        passing = (launch.env.get("TMPDIR", ""), study, str(prepared.temporary))
        far = enclosure.kept_off_elsewhere(prepared.folder, prepared.places, passing)
        far = [writable(path) for path in far]
        self._notes += _write_notes(wrote, kept, far, launch.cwd)
        outside = outside_of(running, result, wrote)
        if self._witness is not None:
            self._witness(assignment, running.reports, outside)
        outcomes = reported(outcomes_of(running, result, outside, wrote), result, prepared)
        has_failed = any(isinstance(outcome, Failure) for outcome in outcomes.values())
        if not has_failed:
            prepared.caches.publish()
        remove_scratch(prepared.folder)
        trim_logs(prepared.folder, failed=has_failed)
        return outcomes, running.reports

    def _started(
        self, assignment: Assignment, held: Held, server: ForkServer | None, isolation: str
    ) -> tuple[Running, enclosure.Manifest]:
        """Return the started process with its guard, and the manifest of the user's files if one is made."""
        launch = assignment.launch
        folder = ""
        if self._command is None:
            folder = runtime_library.make(self._study_dir / "lib", compiler=(launch.python, *launch.options))
            command: Sequence[str] = runtime_library.trial_command(launch.python, folder, launch.options)
        else:
            command = self._command(launch.python)
        try:
            prepared = prepare(self._study_dir, assignment, isolation, folder)
            before = enclosure.manifest(prepared.watched, skip=[str(self._study_dir)])
            run = under_nsys(command, prepared)
            running = Running(
                prepared,
                run,
                self._grace_s,
                held.descriptors,
                linger_s=linger_s(prepared),
                disks=self._floor.least_left((prepared.folder, prepared.temporary)),
                server=server,
                memory_limit_bytes=self._memory_limit(assignment),
                disturbs=self._disturbs,
            )
        except BaseException:
            if server is not None:
                # It is unknown how far the fork got; it counts as forked.
                self._start = StartMode.FORK
                end_strays(self._study_dir / "trials" / assignment.uid)
            # Without a guard, only this process can remove objects outside of the study.
            enclosure.remove(temporary_folder(assignment.uid))
            raise
        return running, before

    def _followed(self, running: Running, held: Held) -> dict[str, Any] | None:
        """Follow a trial to its end; return the guard's verdict, or None if there is none."""
        self._start = running.start
        if running.refused:
            self._notes = (cold_start_note(running.refused),)
        self._running = running
        try:
            running.meter = Meter(held.devices)
            if self._stop_wanted:
                running.order("killed_user")
            return running.follow(self._progress_floor_s, self._sampler(running, held))
        finally:
            self._running = None
            running.close()

    def _sampler(self, running: Running, held: Held) -> Callable[[], DeviceReading | None] | None:
        if self._sample_devices is not None:
            return self._sample_devices
        return device_sampler(
            lambda: process_tree.descendants(running.pid), held.devices, lambda: _uuids(running.reports)
        )

    def _memory_limit(self, assignment: Assignment) -> int:
        """Return the memory limit of the process tree, 0 for none, given what is free now."""
        allowed = assignment.memory_limit_bytes
        free = 0 if self._free_memory is None else max(1, self._free_memory())
        return min(allowed or free, free or allowed)


def _not_set_up(error: Exception, study_dir: Path) -> Failure:
    """Return the Failure of a trial for which this machine lacks something; raise other errors."""
    lacks = shortage(error, places=(study_dir,))
    if lacks is None and not isinstance(error, OSError):
        raise error
    return Failure(
        kind=FailureKind.DISK if isinstance(lacks, DiskFull) else FailureKind.INFRA_LOST,
        message=f"the trial could not be set up: {error if lacks is None else lacks.message}",
        evidence={NOT_BEGUN: 1} if lacks is None else {NOT_BEGUN: 1, REMEDY: lacks.hint},
    )


def _uuids(reports: ProcessReports) -> tuple[str, ...]:
    """Return the UUIDs of the devices that the process has reported."""
    return () if reports.facts is None else tuple(d.uuid for d in reports.facts.devices)


def _write_notes(wrote: Sequence[str], kept: Sequence[str], far: Sequence[str], cwd: str) -> tuple[str, ...]:
    """Return notes for the user on files that a trial has written in the project and elsewhere."""
    notes: list[str] = []
    if wrote:
        notes.append(f"while a trial ran, by it or by others, files of yours changed: {_listed(wrote, cwd)}")
    if kept:
        notes.append(f"the script writes into its project ({_listed(kept, cwd)}); such writes are redirected")
    if far:
        notes.append(
            f"the script writes outside its project ({_listed(far, '')}); such writes are redirected, too"
        )
    return tuple(notes)


def _listed(paths: Sequence[str], cwd: str) -> str:
    shown = [os.path.relpath(path, cwd) if cwd else path for path in paths[:SHOWN_FILES]]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
