"""Runs a trial in a guarded process of its own and says how it ended."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.apply.command import with_output
from autotune.clock import SystemClock
from autotune.core import wire
from autotune.core.live import Part, Visited, visited
from autotune.core.measurement import Measurement
from autotune.core.redact import plain_secrets, redact, redact_data, secret_values
from autotune.core.trial import Failure, FailureKind, Family, Start
from autotune.core.writable import writable
from autotune.devices.energy import EnergySample, Meter
from autotune.devices.nsys import find_nsys, nsys_command
from autotune.launch import caches, classify, enclosure, guard, library, measure, sweep
from autotune.launch.device_care import DeviceCare, Held
from autotune.launch.devices_sampler import device_sampler
from autotune.launch.forking import LOADED, LOADED_TO_COMPILE, Forked, Forks, ForkServer
from autotune.launch.ports import with_port
from autotune.launch.runner import NOT_BEGUN, Ended, Runner, said_of_cold_starts
from autotune.protocol.disturbed import Teller
from autotune.protocol.lines import Reader, open_plain
from autotune.protocol.plan import PLAN_VARIABLE, PRIVATE, PROFILE_NSYS, TRIAL_VARIABLE, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autotune.clock import Clock
    from autotune.core.trial import Assignment, Fidelity, Launch, Outcome, Segment

log = logging.getLogger(__name__)

POLL_S = 0.25
GRACE_S = 5.0
REAP_S = 10.0
LINGER_S = 5.0
NSYS_LINGER_S = 60.0
"""Nsight Systems writes its report once what it watches has ended."""
SPACE_FLOOR_BYTES = 2 * 1024**3
SPACE_FLOOR_FRAC = 0.05
LOW_SPACE_SHARE = 0.25
"""Of the floor: a trial that leaves no more than this is ended, before all else on that disk fails."""

LESS_MEMORY_SHARE = 0.75
"""Of what was planned for a trial: where less than that is free when it begins, others have come."""

LOCK_SHARE = 0.5
"""Of a trial's time: so much may pass until its devices are free. With less left it would fail for that."""

STEP_FACTOR = 10.0
FIRST_STEPS = 3
SHARING = ("CUDA_MPS_PIPE_DIRECTORY",)
"""Variables of what shares memory with servers outside of a trial."""
SHOWN_FILES = 3
KEPT_LOG_BYTES = 64 * 1024
KEPT_FAILURES = 10
_LOGS = ("stdout.log", "stderr.log")
_NOTE_BYTES = 40
_TAIL_BYTES = 64 * 1024
_STACKS_BYTES = 8 * 1024
_SAID_CHARS = 200
_NO_TRIAL = -1
"""Stands for the part of a visit that ended its process."""
_SCRATCH = ("upper", "work", "lower", "root", "empty", "memory", "shadow", "cache", "output")
_TOLD = (
    *("plan.json", "result.json", "stdout.log", "stderr.log", "guard.log"),
    *("stacks.txt", "faults.log", "events.jsonl"),
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def trial_command(python: str, folder: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that runs our part of the training process under this interpreter.

    Args:
        python: Interpreter.
        folder: From `library.make`.
        options: The interpreter's own, as the user gave them.
    """
    return (python, *options, folder)


class LocalRunner(Runner):
    """Runs assignments on this machine, one at a time.

    Each runs under a guard (`autotune.launch.guard`) that outlives neither the trial nor this
    process, in a directory of its own below the study's, with its writes kept off the user's files.

    Args:
        study_dir: Trials live in ``trials/<uid>`` below it, published compile caches in ``cache``.
        isolation: ``overlay``, ``redirect``, or ``auto`` for the best that the machine allows.
        clock: Durations come from it; the machine's where None.
        progress_floor_s: No limit on the time between two steps is shorter.
        sample_devices: Looks at the accelerators once; called a few times a second while a trial
            runs. None for one of our own where the machine has accelerators.
        command: From the interpreter to the command to run instead of ours; for tests.
        space_floor_bytes: Less free disk space than this refuses a trial; None for 2 GiB or 5 % of
            the disk, whichever is less.
        grace_s: From the request to end to the kill.
        witness: Shown everything that was heard and seen of a process once it has ended; for recorders
            that keep more than its outcome.
        device_care: Looks after the accelerators; None for one of our own.
        loaded: What a fork server imports before it forks trials that may be forked.
        free_memory: Bytes that a trial may take on this machine as it is now: what an assignment allows is
            cut to that when it begins. None where that is left to whoever made the assignment.
    """

    def __init__(
        self,
        *,
        study_dir: Path,
        isolation: str = "auto",
        clock: Clock | None = None,
        progress_floor_s: float = 30.0,
        sample_devices: Callable[[], measure.DeviceSample | None] | None = None,
        command: Callable[[str], Sequence[str]] | None = None,
        space_floor_bytes: int | None = None,
        grace_s: float = GRACE_S,
        witness: Callable[[Assignment, measure.Told, measure.Outside], None] | None = None,
        device_care: DeviceCare | None = None,
        loaded: Sequence[str] = LOADED,
        free_memory: Callable[[], int] | None = None,
    ) -> None:
        self._study_dir = Path(study_dir).absolute()
        self._isolation = isolation
        self._clock = clock or SystemClock()
        self._progress_floor_s = progress_floor_s
        self._sample_devices = sample_devices
        self._device_care = device_care or DeviceCare()
        self._command = command
        self._space_floor_bytes = space_floor_bytes
        self._grace_s = grace_s
        self._witness = witness
        self._free_memory = free_memory
        self._running: _Running | None = None
        self._stop_wanted = False
        self._notes: tuple[str, ...] = ()
        self._start = Start.COLD
        self._forks = Forks(self._study_dir, loaded, LOADED_TO_COMPILE if tuple(loaded) == LOADED else loaded)
        self._visited: Visited | None = None
        self._lost_visit: dict[int, Outcome] = {}

    @property
    def isolation(self) -> str:
        """``overlay`` or ``redirect``: how writes are kept off the user's files here."""
        if self._isolation == "auto":
            self._isolation = enclosure.available(str(self._study_dir / "trials"))
        return self._isolation

    def _isolation_of(self, launch: Launch) -> str:
        """The same for one launch: what its folders do not allow is not tried in the trial."""
        if not launch.protect or self.isolation != "overlay":
            return self.isolation
        must = enclosure.protected(launch.script, launch.cwd, launch.env)
        return enclosure.available(str(self._study_dir / "trials"), must)

    def run(self, assignment: Assignment) -> Iterator[Ended]:
        """Run it; see `Runner.run`. Segments are told once the process has ended."""
        begun_s = self._clock.now_s()
        self._notes, self._visited, self._lost_visit = (), None, {}
        self._start = Start.COLD
        try:
            outcomes, told = self._run(assignment)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            failure = Failure(
                kind=FailureKind.DISK if full else FailureKind.INFRA_LOST,
                message=f"the trial could not be set up: {error}",
                evidence={NOT_BEGUN: 1},
            )
            outcomes, told = {assignment.trial: failure}, measure.Told()
        finally:
            # Not at the beginning: a signal may come right before it, and must not be forgotten.
            self._stop_wanted = False
        seconds = self._clock.now_s() - begun_s
        for number, outcome in outcomes.items():
            yield Ended(
                trial=number,
                outcome=outcome,
                seconds=seconds,
                facts=told.facts,
                notes=self._notes,
                start=self._start,
                visited=self._visited if number == assignment.trial else None,
            )

    def stop(self) -> None:
        """End the running process soon, or else the next one, as ``killed_user``."""
        self._stop_wanted = True
        running = self._running
        if running is not None:
            running.order("killed_user")

    def close(self) -> None:
        """End the fork servers, where there are any."""
        self._forks.close()

    def _run(self, assignment: Assignment) -> tuple[dict[int, Outcome], measure.Told]:
        short = self._short_of_space()
        if short is not None:
            return {assignment.trial: short}, measure.Told()
        launch, begun_s = assignment.launch, time.monotonic()
        held = self._device_care.hold(
            launch,
            stopped=lambda: self._stop_wanted,
            within_s=LOCK_SHARE * _deadline_s(assignment),
            uid=assignment.uid,
        )
        if self._stop_wanted:
            if isinstance(held, Held):
                held.hand_over()
            held = Failure(kind=FailureKind.KILLED_USER, message="ended by request before it began")
        if isinstance(held, Failure):
            return {assignment.trial: held}, measure.Told()
        try:
            server = self._server(assignment)
            shortened = _shortened(assignment, time.monotonic() - begun_s)
            outcomes, told = self._run_held(shortened, held, server)
            # Still ours: what is found out now would else be found out of somebody else's trial.
            self._device_care.release(
                held,
                launch,
                told,
                {**outcomes, **self._lost_visit},
                stopped=lambda: self._stop_wanted,
                uid=assignment.uid,
            )
        finally:
            held.hand_over()
        return outcomes, told

    def _server(self, assignment: Assignment) -> ForkServer | None:
        """What this trial is forked from; None where it is started anew."""
        launch, fidelity = assignment.launch, assignment.segments[0].fidelity
        if assignment.start is not Start.FORK or self._command is not None or fidelity.under_nsys:
            return None
        if self._forks.loads and launch.protect and self._isolation_of(launch) != "overlay":
            # What is imported before writes are redirected may have kept the functions as they were.
            self._notes = (said_of_cold_starts("no overlay can be mounted here, which a fork needs"),)
            return None
        found = self._forks.server(
            launch,
            library.make(self._study_dir / "lib", compiler=(launch.python, *launch.options)),
            within_s=LOCK_SHARE * _deadline_s(assignment),
            stopped=lambda: self._stop_wanted,
        )
        if isinstance(found, ForkServer):
            return found
        self._notes = (said_of_cold_starts(found),)
        return None

    def _run_held(
        self, assignment: Assignment, held: Held, server: ForkServer | None
    ) -> tuple[dict[int, Outcome], measure.Told]:
        launch = assignment.launch
        folder = ""
        if self._command is None:
            folder = library.make(self._study_dir / "lib", compiler=(launch.python, *launch.options))
            command: Sequence[str] = trial_command(launch.python, folder, launch.options)
        else:
            command = self._command(launch.python)
        isolation = self._isolation_of(launch)
        try:
            prepared = _prepare(self._study_dir, assignment, isolation, folder)
            before = enclosure.manifest(prepared.watched, skip=[str(self._study_dir)])
            run = _under_nsys(command, prepared)
            running = _Running(
                prepared,
                run,
                self._grace_s,
                tuple(held.locks),
                linger_s=_linger_s(prepared),
                disks=self._disks(prepared),
                server=server,
                memory_limit_bytes=self._memory_limit(assignment),
            )
        except BaseException:
            if server is not None:
                # Nobody knows how far it came, and it counts as forked.
                self._start = Start.FORK
                end_strays(self._study_dir / "trials" / assignment.uid)
            # Without a guard nobody else removes what lies outside the study.
            enclosure.remove(temporary_folder(assignment.uid))
            raise
        self._start = running.start
        if running.refused:
            self._notes = (said_of_cold_starts(running.refused),)
        self._running = running
        try:
            running.meter = Meter(held.devices)
            if self._stop_wanted:
                running.order("killed_user")
            result = running.follow(self._progress_floor_s, self._sampler(running, held))
        finally:
            self._running = None
            running.close()
        hide_secrets(prepared.folder, launch.command, launch.env)
        wrote = enclosure.violations(
            before, enclosure.manifest(prepared.watched, skip=[str(self._study_dir)])
        )
        wrote = [writable(path) for path in wrote]
        kept = [writable(path) for path in enclosure.kept_off(prepared.folder, prepared.places)]
        self._notes += _said_of_writes(wrote, kept, launch.cwd)
        outside = _outside(running, result, wrote)
        if self._witness is not None:
            self._witness(assignment, running.told, outside)
        outcomes = _reported(_outcomes(running, result, outside, wrote), result, prepared)
        own = outcomes.get(assignment.trial)
        if isinstance(own, Measurement):
            self._visited, failure = _visited(running, result, outside, own)
            self._lost_visit = {} if failure is None else {_NO_TRIAL: failure}
        ended = [*outcomes.values(), *self._lost_visit.values()]
        if all(not isinstance(outcome, Failure) for outcome in ended):
            prepared.caches.publish()
        _remove_scratch(prepared.folder)
        trim_logs(prepared.folder, failed=any(isinstance(o, Failure) for o in ended))
        return outcomes, running.told

    def _sampler(self, running: _Running, held: Held) -> Callable[[], measure.DeviceSample | None] | None:
        if self._sample_devices is not None:
            return self._sample_devices
        return device_sampler(
            lambda: sweep.descendants(running.pid), held.devices, lambda: _uuids(running.told)
        )

    def _short_of_space(self) -> Failure | None:
        self._study_dir.mkdir(parents=True, exist_ok=True)
        free_bytes, floor_bytes = self._space(self._study_dir)
        if free_bytes >= floor_bytes:
            return None
        free, needed = free_bytes / 2**30, floor_bytes / 2**30
        return Failure(
            kind=FailureKind.DISK,
            message=f"{free:.2f} GiB are free in {self._study_dir}, {needed:.2f} GiB are needed",
            evidence={"free_bytes": free_bytes, "floor_bytes": floor_bytes, NOT_BEGUN: 1},
        )

    def _space(self, place: Path) -> tuple[int, int]:
        """Bytes that are free on a disk, and below which no trial is begun."""
        usage = shutil.disk_usage(place)
        if self._space_floor_bytes is not None:
            return usage.free, self._space_floor_bytes
        return usage.free, min(SPACE_FLOOR_BYTES, int(usage.total * SPACE_FLOOR_FRAC))

    def _memory_limit(self, assignment: Assignment) -> int:
        """What its process tree may take; 0 for no limit. Others may have come since the search began."""
        allowed = assignment.memory_limit_bytes
        free = 0 if self._free_memory is None else max(1, self._free_memory())
        return min(allowed or free, free or allowed)

    def _disks(self, prepared: _Prepared) -> dict[str, int]:
        """Where a trial writes -> bytes that it has to leave free there; not where it is that full anyhow."""
        found: dict[str, int] = {}
        for place in (prepared.folder, prepared.temporary):
            free_bytes, floor_bytes = self._space(place)
            if free_bytes >= floor_bytes:
                found[str(place)] = int(LOW_SPACE_SHARE * floor_bytes)
        return found


def _deadline_s(assignment: Assignment) -> float:
    visit_s = 0.0 if assignment.visit is None else assignment.visit.deadline_s
    return sum(segment.fidelity.deadline_s for segment in assignment.segments) + visit_s


def _shortened(assignment: Assignment, waited_s: float) -> Assignment:
    """The assignment without the time that was waited for its devices: the budget goes on meanwhile."""
    if waited_s < 1.0:
        return assignment
    share = 1.0 - min(LOCK_SHARE, waited_s / _deadline_s(assignment))

    def cut(segment: Segment) -> Segment:
        deadline_s = share * segment.fidelity.deadline_s
        setup_s = min(segment.fidelity.setup_s, deadline_s)
        return replace(segment, fidelity=replace(segment.fidelity, deadline_s=deadline_s, setup_s=setup_s))

    visit = assignment.visit
    visit = None if visit is None else replace(visit, limit_s=share * visit.limit_s)
    return replace(assignment, segments=tuple(map(cut, assignment.segments)), visit=visit)


def _uuids(told: measure.Told) -> tuple[str, ...]:
    """The devices that the process itself says it uses."""
    return () if told.facts is None else tuple(d.uuid for d in told.facts.devices)


def _said_of_writes(wrote: Sequence[str], kept: Sequence[str], cwd: str) -> tuple[str, ...]:
    """What a person should know of the files that a trial has written in the project."""
    notes: list[str] = []
    if wrote:
        notes.append(f"while a trial ran, by it or by others, files of yours changed: {_listed(wrote, cwd)}")
    if kept:
        notes.append(
            f"the script writes into its project ({_listed(kept, cwd)}); that is kept off your files"
        )
    return tuple(notes)


def _listed(paths: Sequence[str], cwd: str) -> str:
    shown = [os.path.relpath(path, cwd) for path in paths[:SHOWN_FILES]]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A trial's directory, ready to start."""

    assignment: Assignment
    folder: Path
    temporary: Path
    caches: caches.Caches
    env: dict[str, str]
    plan_path: Path
    enclosed: bool
    protected: tuple[str, ...]
    places: tuple[str, ...]
    """The project and the working directory: what is written there is the user's to know."""
    watched: tuple[str, ...]


def _write_private(path: Path, text: str) -> None:
    """A plan holds the user's arguments, and these may be secrets."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def clear_up(folder: Path, words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Do for a trial what its launcher did not live to do: end it, hide its secrets, remove its scratch.

    Args:
        folder: The trial's; its name is the attempt's uid.
        words: Of the command that it was started by, which may hold secrets, as far as they are known; its
            plan may know more.
        environ: That it had, as far as that is known.
    """
    end_strays(folder)
    _remove_scratch(folder)
    if folder.is_dir():
        with (
            contextlib.suppress(OSError, ValueError, KeyError, TypeError),
            open_plain(folder / "plan.json") as file,
        ):
            words = [*words, *map(str, json.loads(file.read())["argv"])]
        hide_secrets(folder, words, environ)
        trim_logs(folder, failed=True)


def _remove_scratch(folder: Path) -> None:
    for scratch in (*(folder / name for name in _SCRATCH), temporary_folder(folder.name)):
        enclosure.remove(scratch)


def end_strays(folder: Path) -> None:
    """End what is left of a trial whose guard is gone: by its control group, and by its mark.

    Args:
        folder: The trial's; its name is the attempt's uid.
    """
    note = folder / guard.GROUP_FILE
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open_plain(note) as file:
            place = file.read().decode()
        if os.path.basename(place) == f"autotune-{folder.name}":
            sweep.end_group(place, bound_s=REAP_S)
        note.unlink()
    sweep.end_marked(folder.name, bound_s=REAP_S)


def _under_nsys(command: Sequence[str], prepared: _Prepared) -> Sequence[str]:
    """The command, run by Nsight Systems where that is what the trial is for.

    Raises:
        FileNotFoundError: It is not installed here.
    """
    fidelity = prepared.assignment.segments[0].fidelity
    if not fidelity.under_nsys:
        return command
    nsys = find_nsys(prepared.env)
    if not nsys:
        raise FileNotFoundError("nsys is not installed here")
    report = str(prepared.folder / PROFILE_NSYS)
    return nsys_command(nsys, report, command, window=fidelity.probe == "nsys")


def _linger_s(prepared: _Prepared) -> float:
    return NSYS_LINGER_S if prepared.assignment.segments[0].fidelity.under_nsys else LINGER_S


def _reported(
    outcomes: dict[int, Outcome], result: dict[str, Any] | None, prepared: _Prepared
) -> dict[int, Outcome]:
    """What a trial is worth that ran for a report: without a whole one nothing, whatever was measured."""
    number, fidelity = prepared.assignment.trial, prepared.assignment.segments[0].fidelity
    if not fidelity.under_nsys:
        return outcomes
    report = prepared.folder / PROFILE_NSYS
    ended = result is not None and result["why"] == "exit" and not result["killed"]
    if ended and not isinstance(outcomes[number], Failure) and report.is_file() and report.stat().st_size:
        if _has_secrets(prepared.assignment.launch):
            report.with_name(report.name + PRIVATE).touch()
        return outcomes
    report.unlink(missing_ok=True)
    if isinstance(outcomes[number], Failure):
        return outcomes
    said = log_tail(prepared.folder, 1)
    message = "nsys left no report" if ended else f"nsys was not done {NSYS_LINGER_S:.0f} s after the script"
    message += f": {said.strip()[:_SAID_CHARS]}" if said.strip() else ""
    evidence: dict[str, str | int | float] = {"dir": str(prepared.folder)}
    return {number: Failure(kind=FailureKind.NO_METRIC, message=message, evidence=evidence)}


def _has_secrets(launch: Launch) -> bool:
    """What it was started with must not be handed on: `nsys` keeps environment and command line."""
    words = (*launch.env.values(), *launch.command, *launch.argv)
    known = secret_values([*launch.command, *launch.argv])
    return bool(known) or any(redact(word, launch.env, free=True) != word for word in words)


def temporary_folder(uid: str) -> Path:
    """A trial's ``TMPDIR``: short, because Unix sockets are made in it and their paths end at 107 bytes."""
    return Path(tempfile.gettempdir()) / f"at-{uid}"


def _prepare(study_dir: Path, assignment: Assignment, isolation: str, our_part: str) -> _Prepared:
    launch = assignment.launch
    folder = study_dir / "trials" / assignment.uid
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    temporary = temporary_folder(assignment.uid)
    enclosure.remove(temporary)
    temporary.mkdir(mode=0o700)
    cached = caches.prepare(study_dir, folder, launch.cache_key)
    overlay = launch.protect and isolation == "overlay"
    redirect = launch.protect and isolation == "redirect"
    protected = enclosure.protected(launch.script, launch.cwd, launch.env) if launch.protect else ()
    if redirect:
        (folder / "shadow").mkdir()
    output = folder / "output"
    if launch.output_args:
        output.mkdir()
    plan = Plan(
        nonce=assignment.uid,
        script=launch.script,
        module=launch.module,
        argv=with_output(launch.argv, launch.output_args, str(output)),
        events_path=str(folder / "events.jsonl"),
        trial_dir=str(folder),
        changes=launch.changes,
        segments=assignment.segments,
        seed=launch.seed,
        measure=launch.measure,
        batch=launch.batch,
        shadow_dir=str(folder / "shadow") if redirect else "",
        protected=(*protected, "/") if redirect else (),
        sites=tuple(dict.fromkeys(c.site for c in launch.changes if c.site)),
        visit=assignment.visit,
    )
    plan_path = folder / "plan.json"
    _write_private(plan_path, wire.dumps(plan))
    env = {
        **with_port(launch.env),
        **cached.env,
        "TMPDIR": str(temporary),
        PLAN_VARIABLE: str(plan_path),
        TRIAL_VARIABLE: assignment.uid,
    }
    if our_part:
        env = library.environment(env, our_part)
    home = os.path.realpath(launch.env.get("HOME") or "/")
    # A home holds what other programs write all the time; only the project is compared.
    ours = dict.fromkeys(os.path.realpath(p) for p in (enclosure.project_root(launch.script), launch.cwd))
    places = tuple(place for place in ours if place != home)
    return _Prepared(
        assignment=assignment,
        folder=folder,
        temporary=temporary,
        caches=cached,
        env=env,
        plan_path=plan_path,
        enclosed=overlay,
        protected=protected,
        places=places,
        watched=places if redirect else (),
    )


@dataclass
class _Running:
    """A started guard and what is heard of its trial."""

    prepared: _Prepared
    command: Sequence[str]
    grace_s: float
    locks: tuple[int, ...] = ()
    told: measure.Told = field(default_factory=measure.Told)
    devices: list[measure.DeviceSample] = field(default_factory=list[measure.DeviceSample])
    progress_limit_s: float = 0.0
    meter: Meter | None = None
    energies: list[EnergySample] = field(default_factory=list[EnergySample])
    linger_s: float = LINGER_S
    disks: dict[str, int] = field(default_factory=dict[str, int])
    server: ForkServer | None = None
    start: Start = Start.COLD
    refused: str = ""
    """Why the server did not fork this one."""
    memory_limit_bytes: int = 0

    def __post_init__(self) -> None:
        launch = self.prepared.assignment.launch
        folder = self.prepared.folder
        self._reader = Reader(folder / "events.jsonl", self.prepared.assignment.uid)
        self._teller = Teller(folder)
        read_fd, self._life_fd = os.pipe()
        self.start_ns = time.perf_counter_ns()
        orders: dict[str, Any] = {
            "uid": self.prepared.assignment.uid,
            "trial_dir": str(folder),
            "argv": list(self.command),
            "env": self.prepared.env,
            "cwd": launch.cwd,
            "deadline_s": self.deadline_s,
            "grace_s": self.grace_s,
            "reap_s": REAP_S,
            "memory_limit_bytes": self.memory_limit_bytes,
            "scratch": [str(self.prepared.temporary)],
            # Nobody reads them any more where the launcher has died, and who does what it does is not known.
            "secrets": plain_secrets(launch.command, launch.env),
            "left_alone": [str(self.prepared.plan_path), *(str(folder / name) for name in _SCRATCH)],
            "locks": list(self.locks),
        }
        if self.prepared.enclosed:
            orders["enclosure"] = {
                "base": str(folder),
                "keep": [str(folder), str(self.prepared.temporary)],
                "must": list(self.prepared.protected),
                "shares": any(name in self.prepared.env for name in SHARING),
            }
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
                        sweep.GUARD_VARIABLE: self.prepared.assignment.uid,
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

    def _forked(self, life_fd: int, log_fd: int, orders: dict[str, Any]) -> Forked | None:
        """The keeper, forked; None where there is no server or it refuses. Orders are made to fit."""
        if self.server is None:
            return None
        found = self.server.fork(self.prepared.assignment.uid, life_fd, log_fd, self.locks)
        if isinstance(found, str):
            self.refused = found
            return None
        self.start = Start.FORK
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
        return _deadline_s(self.prepared.assignment)

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
            sweep.send([*reversed(sweep.descendants(self.pid)), self.pid], signal.SIGKILL)
        end_strays(self.prepared.folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(REAP_S)
        if self._guard.poll() is None:
            # It waits inside the kernel, which nothing ends from outside; the search goes on without it.
            log.warning("the guard of %s (pid %d) cannot be ended", self.prepared.folder.name, self.pid)

    def follow(
        self, progress_floor_s: float, sample_devices: Callable[[], measure.DeviceSample | None] | None
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
        sample_devices: Callable[[], measure.DeviceSample | None] | None,
    ) -> None:
        moved_s = begun_s = looked_s = time.monotonic()
        last_s = begun_s + self.deadline_s + guard.ending_s(self.grace_s, REAP_S) + LINGER_S
        finished_s = sampled_s = 0.0
        ordered = False
        while not ends.wait(POLL_S):
            now = time.monotonic()
            if (away_s := now - looked_s) > guard.AWAY_S:
                moved_s, begun_s, last_s = moved_s + away_s, begun_s + away_s, last_s + away_s
                finished_s += away_s if finished_s else 0.0
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
                sweep.send([*reversed(sweep.descendants(self.pid)), self.pid], signal.SIGKILL)
            if now > last_s + REAP_S:
                break

    def _look(self, sample_devices: Callable[[], measure.DeviceSample | None] | None) -> None:
        """Accelerators and energy counters as they are now, where there are any."""
        sample = sample_devices() if sample_devices is not None else None
        if sample is not None:
            self.devices.append(sample)
            self._teller.look(sample.t_ns, is_disturbed=sample.spoils)
        if self.meter is not None and self.meter.exists:
            self.energies.append(self.meter.sample())

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
        while sweep.marked(self.prepared.assignment.uid, sweep.GUARD_VARIABLE):
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


def _outside(running: _Running, result: dict[str, Any] | None, wrote: Sequence[str]) -> measure.Outside:
    return measure.Outside(
        start_ns=running.start_ns,
        samples=measure.read_samples(result["samples"] if result else ()),
        devices=tuple(running.devices),
        peak_bytes=int(result["peak_bytes"]) if result else 0,
        # What it had then less than that was somebody else's for a while, and bounds no other trial.
        limit_bytes=running.prepared.assignment.memory_limit_bytes or running.memory_limit_bytes,
        cold=running.prepared.caches.cold,
        quota=(result or {}).get("cpu_quota"),
        energies=tuple(running.energies),
        flags=("wrote_outside",) if wrote else (),
    )


def _outcomes(
    running: _Running, result: dict[str, Any] | None, outside: measure.Outside, wrote: Sequence[str]
) -> dict[int, Outcome]:
    """Closed segments keep what they measured; the one that was open is charged with the ending."""
    told, assignment = running.told, running.prepared.assignment
    outcomes: dict[int, Outcome] = {}
    for segment in assignment.segments:
        closed = told.closed.get(segment.trial)
        if closed is None:
            failure = classify.classify(
                result,
                told,
                log_tail(running.prepared.folder),
                segment.fidelity,
                progress_limit_s=running.progress_limit_s,
            )
            failure = _others_memory(failure, running, result)
            extra: dict[str, str | int | float] = {
                "attempt": assignment.attempt,
                "dir": str(running.prepared.folder),
            }
            stacks = _text(running.prepared.folder / "stacks.txt", _STACKS_BYTES)
            if stacks:
                extra["stacks"] = stacks
            if wrote:
                extra["wrote_outside"] = "; ".join(wrote[:10])
            outcomes[segment.trial] = Failure(
                kind=failure.kind,
                message=failure.message,
                evidence={**failure.evidence, **extra},
                readings=failure.readings,
            )
            break
        # What a visit does to memory and device afterwards is none of the segment's.
        seen = outside if assignment.visit is None else outside.until(closed.sent_ns or closed.end_ns)
        outcomes[segment.trial] = measure.measure(closed, told, seen, assignment.launch.changes)
    return outcomes


def _others_memory(failure: Failure, running: _Running, result: dict[str, Any] | None) -> Failure:
    """Not charged to a config where others had taken much of the memory that the search counted on."""
    allowed, had = running.prepared.assignment.memory_limit_bytes, running.memory_limit_bytes
    if not result or result["why"] != "memory_limit" or not 0 < had < LESS_MEMORY_SHARE * allowed:
        return failure
    return replace(
        failure,
        kind=FailureKind.CONTENDED,
        message=f"others had taken memory of this machine: {failure.message}",
    )


def _visited(
    running: _Running, result: dict[str, Any] | None, outside: measure.Outside, own: Measurement
) -> tuple[Visited | None, Failure | None]:
    """What came of the visit, None without one; and the failure that ended it.

    A failure charges the part that was open. A script that came to its own end, and what ends a process for
    reasons that are none of its config's, charge nothing.
    """
    told, assignment = running.told, running.prepared.assignment
    visit, closed = assignment.visit, told.closed.get(assignment.trial)
    if visit is None or closed is None:
        return None, None
    begun_ns = since_ns = closed.sent_ns or closed.end_ns
    parts: list[Part] = []
    failure: Failure | None = None
    for number, config in enumerate(visit.parts(), start=1):
        ended = told.parts.get(number)
        if ended is None:
            failure = _visit_failure(running, result)
            now_ns = since_ns if failure is None else time.perf_counter_ns()
            if failure is not None and config is not None:
                seconds = (now_ns - since_ns) / 1e9
                parts.append(Part(config=config, rate=None, seconds=seconds, failure=failure.kind.label))
            since_ns = max(now_ns, told.rows[-1].t_ns if told.rows else now_ns)
            break
        parts.append(measure.visit_part(ended, config, told, outside, since_ns))
        since_ns = ended.sent_ns
    return visited(own.throughput, parts, max(0.0, (since_ns - begun_ns) / 1e9)), failure


def _visit_failure(running: _Running, result: dict[str, Any] | None) -> Failure | None:
    """What ended a process in the middle of its visit; None where nothing but the end of its script did."""
    if running.told.done is not None:
        return None
    failure = classify.classify(
        result,
        running.told,
        log_tail(running.prepared.folder),
        running.fidelity,
        progress_limit_s=running.progress_limit_s,
    )
    is_its_own = failure.kind.family not in (Family.LOST, Family.CANCELLED)
    return failure if is_its_own else None


def trim_logs(folder: Path, *, failed: bool) -> None:
    """Keep what trials have printed within bounds, however many of them there are.

    Of a trial that was measured the end of its output is kept; of those that failed the last
    `KEPT_FAILURES` keep all of it.

    Args:
        folder: Of a trial that has ended, among those of its study.
        failed: How it ended.
    """
    if not failed:
        chosen = [folder]
    else:
        ended = [place for place in folder.parent.iterdir() if (place / "result.json").is_file()]
        whole = [place for place in ended if any(_is_long(place / name) for name in _LOGS)]
        chosen = sorted(whole, key=lambda place: (place / "result.json").stat().st_mtime)[:-KEPT_FAILURES]
    for place in chosen:
        for name in _LOGS:
            with contextlib.suppress(OSError):
                _trim(place / name)


def _is_long(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > KEPT_LOG_BYTES + _NOTE_BYTES


def _trim(path: Path) -> None:
    with open_plain(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size <= KEPT_LOG_BYTES + _NOTE_BYTES:
            return
        file.seek(size - KEPT_LOG_BYTES)
        tail = file.read()
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as shorter:
        shorter.write(f"[{size - len(tail)} bytes left out]\n".encode() + tail)
    part.replace(path)


def log_tail(folder: Path, lines: int = classify.TAIL_LINES) -> str:
    """The last lines of a trial's error output, or of its output where there is none."""
    for name in ("stderr.log", "stdout.log"):
        text = _text(folder / name)
        if text.strip():
            return "\n".join(text.splitlines()[-lines:])
    return ""


def hide_secrets(folder: Path, words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Take secrets out of what a trial has left: its output, stacks, events, and the plan it was started by.

    Files without one stay as they are; a file that cannot be written anew is removed.

    Args:
        folder: Of a trial that has ended.
        words: Of its command.
        environ: That it had.
    """
    known = secret_values(words)
    for name in _TOLD:
        path = folder / name
        try:
            if path.is_symlink() or not path.is_file():
                continue
            # One character per byte: what is no text comes back as it was.
            text = path.read_bytes().decode(errors="surrogateescape")
            if name.endswith(".json"):
                clean = _clean_json(text, environ)
            elif name == "events.jsonl":
                # Rows of steps are most of it, and numbers.
                clean = "".join(
                    line if '"Steps"' in line else redact(line, environ, known=known, free=True)
                    for line in text.splitlines(keepends=True)
                )
            else:
                clean = redact(text, environ, known=known, free=True)
            if clean != text:
                path.write_bytes(clean.encode(errors="surrogateescape"))
        except OSError:
            path.unlink(missing_ok=True)


def _clean_json(text: str, environ: Mapping[str, str]) -> str:
    """JSON without secrets, by its fields; what is none is left."""
    try:
        data = json.loads(text)
    except ValueError:
        return text
    clean = redact_data(data, environ)
    return text if clean == data else json.dumps(clean)


def _text(path: Path, last_bytes: int = _TAIL_BYTES) -> str:
    """The end of a file as text, whatever its bytes are; empty where there is none."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
            return file.read().decode(errors="backslashreplace")
    except OSError:
        return ""


def run_plain(launch: Launch, plan_dir: Path) -> int:
    """Run the user's script with a config for real: unguarded, unmeasured, as the user would.

    Standard streams are inherited and signals are passed on.

    Args:
        launch: With ``measure=False``.
        plan_dir: An existing or new folder of ours for the plan.

    Returns:
        The script's exit code; 128 + n where signal n ended it.
    """
    plan_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    plan = Plan(
        nonce=f"apply-{os.getpid()}",
        script=launch.script,
        module=launch.module,
        argv=launch.argv,
        events_path=str(plan_dir / "events.jsonl"),
        trial_dir=str(plan_dir),
        changes=launch.changes,
        seed=launch.seed,
        measure=False,
        sites=tuple(dict.fromkeys(c.site for c in launch.changes if c.site)),
        status_path=str(plan_dir / "status.json"),
    )
    plan_path = plan_dir / "plan.json"
    _write_private(plan_path, wire.dumps(plan))
    folder = library.make(plan_dir / "lib")
    process = subprocess.Popen(
        [*trial_command(launch.python, folder, launch.options)],
        cwd=launch.cwd,
        env={**library.environment(with_port(launch.env), folder), PLAN_VARIABLE: str(plan_path)},
    )

    def forward(number: int, _frame: object) -> None:
        # A terminal has already told the whole foreground group about Ctrl-C.
        if number != signal.SIGINT or not sys.stdin or not sys.stdin.isatty():
            process.send_signal(number)

    kept = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        code = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code
