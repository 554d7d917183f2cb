"""Reconciler: compares desired and actual states every two seconds, and acts on the difference.

Every action can be repeated, so a service that was killed continues from the same state.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import AutotuneError, BackendError
from autotune.service import reverify
from autotune.service.command import command_of
from autotune.service.jobs import Job, Jobs, JobState
from autotune.service.progress import Result, result_of, unsent_trials, verified_of
from autotune.service.queue import Waiting, decide
from autotune.service.reports import Reports
from autotune.service.states import ENDINGS, WITH_JOB, SearchState, ending
from autotune.shortage import shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from autotune.service.store import Database

log = logging.getLogger(__name__)

TICK_S: Final = 2.0
MOST_LOSSES: Final = 3
"""Lost jobs of one search after which it is given up."""
SILENT_S: Final = 600.0
"""Seconds without heartbeats after which a driver hangs; its heartbeat thread does not wait for trials."""
MOST_READ: Final = 256 * 1024
"""Last bytes of a failed search's output in which its error is searched."""
_STOPPED: Final = (75, 130, 137, 143)
"""Exit codes of a search ended by a signal (docs/exit_codes.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Location of the files of searches, on storage that jobs share with the service.

    Args:
        root: Parent of the bundles and of a folder per search.
    """

    root: Path

    def search(self, search_id: str) -> Path:
        """Return the folder of a search."""
        return self.root / "searches" / search_id

    def code(self, search_id: str) -> Path:
        """Return the working directory of its script."""
        return self.search(search_id) / "code"

    def home(self, search_id: str) -> Path:
        """Return its AUTOTUNE_HOME, with the journal."""
        return self.search(search_id) / "home"

    def report(self, search_id: str) -> Path:
        """Return the file with the service's address for its driver."""
        return self.search(search_id) / "report.json"

    def best(self, search_id: str) -> Path:
        """Return its best.yaml."""
        return self.search(search_id) / "best.yaml"


class Reconciler:
    """Moves searches between states.

    Args:
        database: Database of the service.
        jobs: Backend that runs searches.
        place: Location of their files.
        capacity: Slots: GPUs of the cluster, or number of parallel searches.
        prepare: Unpacks the code of a search into its folder; repeats have no effect.
        options: Options of ``autotune search`` that the service sets: tracking store, Ray address.
        environ: Variables of every job.
        reports: Writes the files with the service's address for drivers.
        python: Interpreter with autotune where jobs run.
        now: Monotonic clock of this machine, in seconds.
    """

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        place: Place,
        *,
        capacity: int,
        prepare: Callable[[Any], None],
        options: Mapping[str, str],
        environ: Mapping[str, str],
        reports: Reports | None = None,
        python: str = sys.executable,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._jobs, self._place = database, jobs, place
        self._capacity, self._prepare = capacity, prepare
        self._options, self._environ = options, environ
        self.reports = reports or Reports(database)
        self._now, self._python = now, python
        self._beats = dict[str, tuple[int, int, float]]()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._failed: Exception | None = None
        self.trouble = ""
        """Reason why the cluster is unavailable, in words; empty if it is available."""

    def run(self) -> None:
        """Reconcile until `stop`; an error costs one round."""
        while not self._stopping.is_set():
            try:
                self.tick()
                self.trouble = ""
            except Exception as error:
                self.trouble = trouble_of(error)
                log.warning("%s", self.trouble, exc_info=None if is_known(error) else error)
            self._wake.wait(TICK_S)
            self._wake.clear()

    def stop(self) -> None:
        """End after the current round; jobs continue."""
        self._stopping.set()
        self._wake.set()

    def poke(self) -> None:
        """Reconcile soon after a submission or a cancellation."""
        self._wake.set()

    def tick(self) -> None:
        """Do one round.

        Raises:
            BackendError: The cluster cannot be reached; searches are unchanged.
            Exception: First error of a search; the others were processed.
        """
        rows = self._database.searches(states=sorted(WITH_JOB), limit=10_000)
        self._failed = None
        for row in rows:
            self._alone(self._settle, row)
        self._beats = {row.id: self._beats[row.id] for row in rows if row.id in self._beats}
        self._start()
        if self._failed is not None:
            raise self._failed

    def _alone(self, act: Callable[[Any], None], row: Any) -> None:
        """Act on one search; its failure must not delay the others."""
        try:
            act(row)
        except (BackendError, SQLAlchemyError):
            raise
        except Exception as error:  # noqa: BLE001 (one search must not block the others; raised after all of them)
            self._failed = self._failed or error

    def _settle(self, row: Any) -> None:
        """Advance one search with a job by one step."""
        state, seen = SearchState(row.state), self._jobs.seen(job_id(row))
        match seen.state:
            case JobState.ENDED:
                self._ended(row, state, seen.exit_code or 0)
            case JobState.RUNNING:
                self._running(row, state)
            case JobState.PENDING:
                self._pending(row, state, seen.message)
            case JobState.LOST:
                self._lost(row, state)
            case JobState.UNKNOWN if state is SearchState.STARTING:
                # The service ended between the commit and the start.
                self._launch(row)
            case JobState.UNKNOWN:
                # Its supervisor may be about to start, and then ends at once.
                self._jobs.stop(job_id(row))
                self._lost(row, state)

    def _running(self, row: Any, state: SearchState) -> None:
        if state is SearchState.STARTING:
            self._database.move(row.id, state, SearchState.RUNNING, "running")
        elif state in (SearchState.CANCELLING, SearchState.PREEMPTING):
            self._jobs.stop(job_id(row))
        elif self._is_silent(row):
            reason = f"its driver sent nothing for {SILENT_S / 60:.0f} min; its job is being stopped"
            self._database.explain(row.id, reason, state=SearchState.RUNNING)
            self._jobs.stop(job_id(row))
        else:
            self.reports.ensure(row, self._place.report(row.id))

    def _pending(self, row: Any, state: SearchState, message: str) -> None:
        """Update a search whose job was accepted but not started by the cluster."""
        if state in (SearchState.CANCELLING, SearchState.PREEMPTING):
            self._jobs.stop(job_id(row))
        else:
            reason = f"waits for the cluster: {message or 'the job is pending'}"
            self._database.explain(row.id, reason, state=state)

    def _is_silent(self, row: Any) -> bool:
        """Return whether heartbeats have stopped, by the clock of this process."""
        epoch, beat, since_s = self._beats.get(row.id, (0, 0, 0.0))
        if (row.epoch, row.heartbeat) != (epoch, beat):
            self._beats[row.id] = (row.epoch, row.heartbeat, self._now())
            return False
        return beat > 0 and self._now() - since_s > SILENT_S

    def _ended(self, row: Any, state: SearchState, code: int) -> None:
        verifies = row.request.get("verify", "")
        found = (verified_of if verifies else result_of)(self._place.home(row.id))
        summary = None if found is None else found.summary
        self._read_unsent(row)
        if state is SearchState.PREEMPTING and code in _STOPPED:
            self._database.move(
                row.id,
                state,
                SearchState.QUEUED,
                "preempted; it resumes when there is room",
                answer=summary or row.answer,
            )
            return
        to, reason = (reverify.ENDINGS if verifies else ENDINGS).get(code) or ending(code)
        if state is SearchState.CANCELLING:
            to, reason = (
                (SearchState.CANCELLED, "cancelled, with the best so far")
                if code in _STOPPED
                else (to, reason)
            )
        elif code in _STOPPED:
            # Stopped from outside the service: by the end of the cluster, or an operator.
            self._lost(row, state)
            return
        if to is SearchState.FAILED and (
            message := _last_error(self._jobs.output(job_id(row), 0, MOST_READ))
        ):
            reason = f"{reason}: {message}"
        if found is not None and to is SearchState.SUCCEEDED:
            self._register(row, found, verifies)
        self._database.move(row.id, state, to, reason, exit_code=code, answer=summary or row.answer)
        self._database.revoke_reports(row.id)

    def _read_unsent(self, row: Any) -> None:
        """Store the trials that a driver which has ended did not report."""
        for seq, trial in unsent_trials(self._place.home(row.id)):
            data = {**(row.answer or {}), "trial": trial}
            self._database.report(
                row.id, epoch=row.epoch, facts=row.answer or {}, kind="trial", study_seq=seq, data=data
            )

    def _register(self, row: Any, found: Result, verifies: str) -> None:
        """Register a confirmed configuration, or record the result of its verification."""
        best = self._place.best(verifies or row.id)
        if verifies and found.summary["verdict"] != "failed":
            self._database.measured_again(verifies, is_stale=not found.is_faster, versions=found.versions)
        if found.is_faster and best.is_file():
            self._database.register(
                row,
                script_sha256=found.script_sha256,
                hardware=found.hardware,
                speedup=found.speedup,
                yaml=best.read_text(encoding="utf-8"),
                devices=found.devices,
                versions=found.versions,
            )
        if found.versions:
            reverify.queue_changed(self._database, row.project, found)

    def _lost(self, row: Any, state: SearchState) -> None:
        # The search may never run again, and a driver that resumes it reports each trial once.
        self._read_unsent(row)
        if state is SearchState.CANCELLING:
            self._database.move(row.id, state, SearchState.CANCELLED, "cancelled; its job was lost")
        elif state is SearchState.PREEMPTING:
            self._database.move(row.id, state, SearchState.QUEUED, "preempted; it resumes when there is room")
        elif row.losses + 1 > MOST_LOSSES:
            self._database.move(row.id, state, SearchState.FAILED, f"its job was lost {row.losses + 1} times")
        else:
            reason = f"its job was lost; it resumes from its journal ({row.losses + 1} of {MOST_LOSSES})"
            self._database.move(row.id, state, SearchState.QUEUED, reason, losses=row.losses + 1)

    def _start(self) -> None:
        queued = self._database.searches(states=[SearchState.QUEUED], limit=10_000)
        if not queued:
            return
        running = self._database.searches(states=sorted(WITH_JOB), limit=10_000)
        decision = decide(
            [_waiting(row) for row in queued],
            [_waiting(row) for row in running],
            self._database.used_s(),
            self._database.limits(),
            self._capacity,
        )
        rows = {row.id: row for row in [*queued, *running]}
        for search_id in decision.preempt:
            row = rows[search_id]
            if row.state == SearchState.RUNNING.value:
                self._database.move(
                    row.id,
                    SearchState.RUNNING,
                    SearchState.PREEMPTING,
                    "stopping for a search of higher priority",
                )
        for search_id in decision.start:
            if self._database.move(
                search_id, SearchState.QUEUED, SearchState.STARTING, "its job is being started"
            ):
                started = self._database.search(search_id)
                if started is not None:
                    self._alone(self._launch, started)
        for search_id, reason in decision.reasons.items():
            self._database.explain(search_id, f"position {decision.positions[search_id]}: {reason}")

    def _launch(self, row: Any) -> None:
        try:
            self._prepare(row)
            home = self._place.home(row.id)
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            if of := row.request.get("verify"):
                command = reverify.command_of(row, self._place.best(of), self._python)
            else:
                command = command_of(row, home, self._place.best(row.id), self._options, self._python)
        except AutotuneError as error:
            self._database.move(row.id, SearchState.STARTING, SearchState.FAILED, error.message)
            return
        except OSError as error:
            reason = f"its job cannot be started yet: {trouble_of(error)}"
            self._database.explain(row.id, reason, state=SearchState.STARTING)
            raise
        report = self._place.report(row.id)
        self.reports.ensure(row, report)
        env = {**self._environ, "AUTOTUNE_HOME": str(home), "AUTOTUNE_TRANSFER": "off"}
        if report.is_file():
            env["AUTOTUNE_SERVICE_REPORT"] = str(report)
        cwd = self._place.code(row.id)
        self._jobs.start(
            Job(
                id=job_id(row),
                command=command,
                cwd=str(cwd),
                env=env,
                gpus=row.gpus,
                image=row.request.get("image", ""),
            )
        )


def _last_error(output: bytes) -> str:
    """Return the last error line of a search's output; empty without one."""
    lines = output.decode(errors="replace").splitlines()
    found = [line for line in lines if line.startswith("error: ")]
    return found[-1].removeprefix("error: ")[:500] if found else ""


def is_known(error: Exception) -> bool:
    """Return whether an error has a cause outside the service, which its message names."""
    return isinstance(error, (BackendError, SQLAlchemyError, OSError))


def trouble_of(error: Exception) -> str:
    """Return why a round of the reconciler failed, in words for the page."""
    match error:
        case BackendError():
            return error.message
        case SQLAlchemyError():
            return "the service's database does not answer"
        case OSError():
            lacks = shortage(error)
            return f"the service's storage cannot be used: {lacks.message if lacks else error.strerror}"
        case _:
            return "internal error of the service; see its log"


def job_id(row: Any) -> str:
    """Return the id of the job of a search's current life."""
    return f"autotune-{row.id}-{row.epoch}"


def _waiting(row: Any) -> Waiting:
    return Waiting(
        id=row.id,
        project=row.project,
        user=row.user,
        priority=row.priority,
        created_s=row.created_s,
        gpus=row.gpus,
        is_preemptible=bool(row.is_preemptible),
    )
