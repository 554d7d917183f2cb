"""Construction of a search: from a specification to an answer. Concrete classes are chosen only here."""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

from autotune.answer.space_selection import likely
from autotune.clock import SystemClock
from autotune.driver.backends import ray_auth
from autotune.driver.backends.head_start import QUIET_S, HeadStart
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.backends.local_ray import refuse_small_address_space
from autotune.driver.cleanup.dead_drivers import clear_up, clear_up_all, missing_variables
from autotune.driver.cleanup.dead_trials import end_dead_trials
from autotune.driver.exit_status import answer_or_none, exit_code, search_again, why_nothing
from autotune.driver.host_memory import free_for, free_memory, trial_limit
from autotune.driver.loop.deadline_watchdog import HardWall
from autotune.driver.loop.planner import Planner, dead_ways
from autotune.driver.loop.recovery import cut_cycles, is_run_again, waits
from autotune.driver.loop.script_watch import ScriptWatch, changed_module, modules_of
from autotune.driver.loop.session import ENDING_S, Session
from autotune.driver.loop.signals import breakable, polite_ending
from autotune.driver.new_study import append_opened, create_study
from autotune.driver.sinks.report_writer import write_report
from autotune.driver.sinks.service_sink import ServiceSink, report_path
from autotune.driver.sinks.sync import OPENING_S, Syncer
from autotune.driver.spec import within_job
from autotune.driver.transfer import gather
from autotune.errors import (
    AutotuneError,
    BackendError,
    DiskFull,
    StoreError,
    StudyLocked,
    UsageError,
    add_note,
    notes_of,
)
from autotune.export.best_config import write_best
from autotune.inspection.host import host_facts
from autotune.inspection.interpreter import interpreter
from autotune.inspection.script import script_facts
from autotune.inspection.source_advice import advise
from autotune.knobs.declared import own_values
from autotune.knobs.registry import knobs_for
from autotune.launch.devices.load_check import LoadCheck
from autotune.launch.devices.machine_lock import MachineLock
from autotune.launch.process import LocalRunner
from autotune.launch.workspace import isolation
from autotune.model.facts import Facts
from autotune.model.study import VERIFY, Study
from autotune.model.trial import Failure, FailureKind
from autotune.model.wire import to_wire
from autotune.search.samplers.registry import strategy_for
from autotune.shortage import shortage
from autotune.space.build_space import build_space, not_here
from autotune.space.choose_delivery import choose
from autotune.space.training_environment import user_environment
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.outbox import SERVICE, rows_for
from autotune.store.paths import DRIVEN_FILE, default_tracking_uri, unwritable
from autotune.store.redact import with_secrets
from autotune.text.redact import learned, redact, secret_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.driver.backends.head_start import Driver
    from autotune.driver.backends.ray_tune import RayDriver
    from autotune.model.change import Change
    from autotune.model.config import Config
    from autotune.model.space import SearchSpace
    from autotune.model.study import SpaceRequest, StudySpec
    from autotune.model.trial import Trial
    from autotune.report.listener import Listener

log = logging.getLogger(__name__)

FLUSH_S = 15.0
"""Time for the sink after the end of the budget; the process ends within 20 s of it."""

LOST_S = 5.0
"""Time for a search to return from a dead Ray before its answer is written by force.

Ray itself ends this process a minute after the death, which is detected within 25 s.
"""

WARM_UP_SHARE = 0.1
"""Largest share of the budget, and up to `OPENING_S`, that a first trial under Ray waits for MLflow's store.

A local runner does not wait: it sets aside the steps during the opening.
"""

_Failed = TypeVar("_Failed", bound=Exception)


class _Now(TypedDict):
    """State of the machine at a resume; see `autotune.driver.loop.recovery`."""

    wall_s: float
    up_s: float
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnd:
    """End of a search.

    Args:
        study: The closed study.
        answer: None if the script never worked.
        exit_code: For the command line.
        unsent: Rows that MLflow has not received; `autotune sync` sends them.
        links: Name -> address or command, best first.
        study_dir: The study's directory.
    """

    study: Study
    answer: Answer | None
    exit_code: int
    unsent: int
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    study_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Plan of a search, found without running the script.

    Args:
        facts: Static facts.
        space: As far as known before the baseline has run.
        refusals: Knob -> sentence.
        ways: Knob -> delivery of its values.
        request: Space request; the likely one if the first run will decide.
        not_here: Requested values that are not available here, as far as known.
    """

    spec: StudySpec
    facts: Facts
    space: SearchSpace
    refusals: Mapping[str, str]
    ways: Mapping[str, str]
    request: SpaceRequest
    not_here: tuple[str, ...] = ()


LastWords = Callable[[SearchEnd | AutotuneError], None]
"""Receives the end of a search."""


def plan_search(spec: StudySpec) -> DryRun:
    """Return the plan of a search; nothing is run and nothing is written.

    Raises:
        UsageError: The space has no knob that applies to this script.
    """
    knobs = knobs_for(spec.space)
    facts = _static_facts(spec)
    request = likely(spec.space, facts)
    space, refusals = build_space(request, facts, knobs)
    ways: dict[str, str] = {}
    for knob, dimension in space.dimensions.items():
        other = next((v for v in dimension.values if v != dimension.own), None)
        if other is not None and (config := space.complete({knob: other})) and not isinstance(config, str):
            ways[knob] = ", ".join(sorted({c.spelling.text for c in choose(config, facts, knobs)[0]}))
    lost = not_here(request, facts, knobs, space)
    return DryRun(
        spec=spec, facts=facts, space=space, refusals=refusals, ways=ways, request=request, not_here=lost
    )


def run_search(
    spec: StudySpec,
    *,
    listeners: Sequence[Listener] = (),
    head_start_s: float = 0.0,
    owns_process: bool = True,
    last_words: LastWords | None = None,
) -> SearchEnd:
    """Run a new search.

    Args:
        spec: Specification of the search.
        listeners: Notified of its progress.
        head_start_s: Seconds of the budget already spent when this was called (start of Python).
        owns_process: False in a host program: the process is never ended, a second
            Ctrl-C raises KeyboardInterrupt, and only Ctrl-C is handled.
        last_words: Receives the end of a search that hangs, right before this process is ended by force.
            Called in a thread, within 1.5 s.

    Raises:
        UsageError: Nothing could be searched; nothing was run.
        ScriptError: The script fails unchanged.
        NothingFeasible: No configuration fits the limits.
        StoreError, BackendError: The store or the backend failed.
    """
    began_s = SystemClock().now_s() - head_start_s
    clear_up_all()
    environ = _environment(spec)
    if _has_own_ray(spec):
        refuse_small_address_space()
        # Importing Ray takes 1 to 2 s, about as long as inspecting the script.
        ray_auth.prepare("")
        threading.Thread(target=_import_ray, name="autotune-import-ray", daemon=True).start()
    plan = plan_search(spec)
    with learned(spec.args):
        secrets = secret_variables(environ)
        spec, home, journal = create_study(spec, wall_s=SystemClock().wall_s(), secrets=secrets)
        search = _Search(
            spec, home, journal, listeners, began_s, environ, owns_process=owns_process, last_words=last_words
        )
        return search.begin(plan.facts)


def resume_search(
    directory: Path,
    *,
    budget_s: float | None = None,
    wait_for_quiet_s: float | None = None,
    wait_s: float | None = None,
    share: bool = False,
    trials: int | None = None,
    listeners: Sequence[Listener] = (),
    owns_process: bool = True,
    last_words: LastWords | None = None,
) -> SearchEnd:
    """Continue a study at the end of its journal; finished trials are not repeated.

    Args:
        directory: The study's directory.
        budget_s: Further wall time from now, in seconds; None keeps the old budget.
        wait_for_quiet_s: Longest wait for a quiet machine; None keeps the search's setting.
        wait_s: Longest wait for another search on this machine; None likewise.
        share: Measure beside it after that wait; False keeps the search's setting.
        trials: Further trials of a search with a trial limit; None keeps the old limit.
        listeners: Notified of its progress.
        owns_process: As for `run_search`.
        last_words: As for `run_search`.
    """
    began_s = SystemClock().now_s()
    journal = Journal.open(directory / "journal.db")
    try:
        entries = list(journal.entries())
        folded = fold(entries)
        # Also if the study is not continued: leftovers may contain a secret that is missing now.
        clear_up(directory, entries, folded.spec)
        spec = _resumable(folded, budget_s, trials)
        if missing := missing_variables(entries, os.environ):
            names = ", ".join(missing)
            log.warning("set when the search began and not now: %s; trials run without", names)
        if wait_for_quiet_s is not None:
            spec = replace(spec, wait_for_quiet_s=wait_for_quiet_s)
        spec = replace(spec, wait_s=spec.wait_s if wait_s is None else wait_s, share=spec.share or share)
    except BaseException:
        journal.close()
        raise
    with learned(spec.args):
        environ = _environment(spec)
        search = _Search(
            spec,
            directory,
            journal,
            listeners,
            began_s,
            environ,
            owns_process=owns_process,
            last_words=last_words,
        )
        return search.go_on()


def _resumable(folded: Study, budget_s: float | None, trials: int | None = None) -> StudySpec:
    """Return the specification to continue, if possible."""
    if folded.spec.purpose:
        message = (
            f"study {folded.spec.label} is no search, but what `autotune {folded.spec.purpose}` measured"
        )
        again = (
            "verify again"
            if folded.spec.purpose == VERIFY
            else f"autotune scale --resume {folded.spec.label}"
        )
        raise UsageError(message, hint=f"name a search: autotune resume LABEL, or {again}")
    spec = with_secrets(folded.spec)
    if budget_s is not None:
        spec = replace(spec, budget=replace(spec.budget, seconds=folded.elapsed_s + budget_s))
    if trials is not None:
        spec = replace(spec, budget=replace(spec.budget, trials=len(folded.finished()) + trials))
    left_s = max(0.0, spec.budget.seconds - folded.elapsed_s)
    if left_s and (cut_s := within_job(left_s)) < left_s:
        spec = replace(spec, budget=replace(spec.budget, seconds=folded.elapsed_s + cut_s))
    if folded.facts is None:
        message = f"study {spec.label} ended before the script was measured"
        raise StoreError(message, hint=f"start it again: {search_again(folded)}")
    _refuse_another_script(folded, folded.facts, spec)
    if spec.python != sys.executable:
        # It may have been removed, and then every trial would fail for a reason other than its config.
        interpreter(spec.python, spec.options)
    return spec


class _Search:
    """One life of the driver of a study."""

    def __init__(
        self,
        spec: StudySpec,
        home: Path,
        journal: Journal,
        listeners: Sequence[Listener],
        began_s: float,
        environ: Mapping[str, str],
        *,
        owns_process: bool = True,
        last_words: LastWords | None = None,
    ) -> None:
        self._spec = spec
        self._home = home
        self._journal = journal
        self._listeners = listeners
        self._clock = SystemClock()
        self._began_s = began_s
        self._environ = environ
        self._owns_process = owns_process
        self._last_words = last_words
        self._doing = "the search"
        self._flushing = False
        self._reporting: Syncer | None = None
        self._wall: HardWall | None = None
        self._lost: AutotuneError | None = None
        self._writing = threading.Lock()
        self._written: tuple[Study, Answer] | None = None
        self._files: list[Path] = []
        self._knobs = knobs_for(spec.space)
        self._planner = Planner(knobs=self._knobs, environ=environ, memory_limit_bytes=0)

    def begin(self, facts: Facts) -> SearchEnd:
        self._append("inspected", "inspected/1", {"facts": facts})
        # Stored as data, once: a resume uses this life's records, whatever was searched meanwhile.
        try:
            transfer = gather(fold(self._journal.entries()))
            if transfer is not None:
                self._append("transferred", "transferred/1", {"transfer": transfer})
        except BaseException:
            # After Ctrl-C, for example: the traceback would keep the lock.
            self._journal.close()
            raise
        return self._run()

    def go_on(self) -> SearchEnd:
        secrets = secret_variables(self._environ)
        append_opened(self._journal, self._spec, wall_s=self._clock.wall_s(), secrets=secrets)
        entries = list(self._journal.entries())
        study = fold(entries)
        now = _Now(wall_s=self._clock.wall_s(), up_s=_up_s(), host=platform.node())
        for trial in study.open_trials:
            again = is_run_again(trial, study, entries, **now)
            if not again or not waits(trial, entries):
                self._give_up(trial, again=again)
        entries = list(self._journal.entries())
        for stage, group in sorted(cut_cycles(fold(entries), entries, **now), key=str):
            self._append("cut", f"cut/{stage.value}/{group}", {"stage": stage.value, "group": group})
        return self._run()

    def _give_up(self, trial: Trial, *, again: bool) -> None:
        """Request a trial left open by the last life again, or mark it as failed."""
        place = f"{trial.number}/{trial.attempt}"
        if not again:
            failure = Failure(kind=FailureKind.KILLED_USER, message="the search ended while it ran")
            data: dict[str, object] = {
                "number": trial.number,
                "attempt": trial.attempt,
                "outcome": failure,
                "seconds": 0.0,
                "elapsed_s": 0.0,
                "facts": None,
            }
            self._append("finished", f"finished/{place}", data)
        else:
            reason = "the search ended while it ran"
            lost: dict[str, object] = {"number": trial.number, "attempt": trial.attempt, "reason": reason}
            self._append("requeued", f"requeued/{place}", lost)

    def _run(self) -> SearchEnd:
        study = fold(self._journal.entries(), build=self._planner.space)
        if dead_ways(study) and study.facts is not None and study.facts.run is not None:
            space, refusals = self._planner.space(study.spec, study.facts, dead_ways(study))
            study = replace(study, space=space, refusals=refusals)
        study = replace(study, spec=replace(self._spec, space=study.spec.space), stopped="")
        spent_s = study.elapsed_s + self._clock.now_s() - self._began_s
        watch = ScriptWatch(self._spec.inspected, study.facts.script.sha256 if study.facts else "")
        # The nodes of a cluster are not visible from here; trials claim them.
        is_here = not self._spec.ray_address
        machine = MachineLock.of_machine(os.environ, self._spec) if is_here else None
        session = Session(
            journal=self._journal,
            study=study,
            strategy=strategy_for(self._spec.sampler),
            planner=self._planner,
            clock=self._clock,
            elapsed_s=spent_s,
            ending_s=ENDING_S,
            listeners=self._listeners,
            watch=watch,
            load=LoadCheck.of_machine(os.environ) if is_here else None,
            machine=machine,
        )
        watch.follow(lambda: modules_of(session.study))
        driven = self._home / DRIVEN_FILE
        with suppress(OSError):
            driven.touch(mode=0o600)
        uri = self._spec.tracking_uri or default_tracking_uri()
        syncer = Syncer(
            self._journal,
            session.settled_study,
            tracking_uri=uri,
            experiment=self._spec.experiment,
            home=self._home,
        )
        if path := report_path():
            self._reporting = Syncer(
                self._journal,
                session.settled_study,
                lambda: ServiceSink(path, session.settled_study),
                sends=SERVICE,
            )
        try:
            return self._search(session, syncer)
        finally:
            with suppress(OSError):
                driven.unlink()
            if machine is not None:
                machine.release()
            self._journal.close()

    def _search(self, session: Session, syncer: Syncer) -> SearchEnd:
        self._notify(lambda listener: listener.study_began(session.study))
        if any(listener.wants_stop for listener in self._listeners):
            session.stop("interrupted")
        for text in (*end_dead_trials(), _isolation_here(self._spec).note):
            if text:
                self._announce(session, text)
        wall = HardWall(
            remaining_s=lambda: self._spec.budget.seconds - session.elapsed_s,
            write=lambda: self._write(_as_ended(session)),
            code=lambda: self._forced(session.stopping).exit_code,
            say=lambda: self._report_forced_end(session.stopping),
            may_exit=self._owns_process,
        )
        self._wall = wall
        drivers: list[Driver] = []

        def interrupt() -> None:
            if self._flushing:
                syncer.hurry()
            for driver in drivers:
                driver.interrupt()

        polite = polite_ending(
            _stopper(session, interrupt, self._notify),
            owns_process=self._owns_process,
            breaks_off=lambda: any(driver.breaks_off() for driver in drivers),
        )
        try:
            # To the very end: a signal during the writing of the answer must not lose it.
            with polite as arm:
                with ExitStack() as closers:
                    failed = self._drive(session, syncer, closers, drivers, arm)
                    ended, failed = self._end(session, failed)
                    # Ray takes 1 to 2 s to end, and neither MLflow nor the report needs it.
                    self._flushing = True
                    with ThreadPoolExecutor(2, "autotune-ending") as beside:
                        flushed = beside.submit(syncer.flush, FLUSH_S)
                        if self._reporting is not None:
                            beside.submit(self._reporting.flush, FLUSH_S)
                        closers.close()
                self._clear_up_behind_ray(failed)
                unsent = flushed.result()
                self._flushing = False
                page = self._report(ended, failed)
        finally:
            wall.disarm()
        self._notify(lambda listener: listener.study_ended(ended))
        answer = self._written[1] if self._written is not None else None
        end = SearchEnd(
            study=ended,
            answer=answer,
            exit_code=0,
            unsent=unsent,
            links={**syncer.links(), **page},
            study_dir=self._home,
        )
        try:
            if failed is not None:
                raise failed
            if answer is None:
                raise why_nothing(ended)
            return replace(end, exit_code=exit_code(ended, answer))
        except AutotuneError as error:
            error.end = replace(end, exit_code=error.exit_code)
            raise

    def _drive(
        self,
        session: Session,
        syncer: Syncer,
        closers: ExitStack,
        drivers: list[Driver],
        arm: Callable[[], None],
    ) -> Exception | None:
        """Run to the end; a failure costs the running trials, not the answer."""
        try:
            with breakable():
                # Ray and MLflow would take CPU time from the other search; the deadline counts from here.
                session.await_machine()
                if session.stopping:
                    return None
                # Only now, as the other search used memory of this machine.
                free_bytes = free_for(self._spec)
                self._planner.limit_memory(trial_limit(self._spec, free_bytes), free_bytes)
                if self._wall is not None:
                    self._wall.start()
                syncer.start()
                if self._reporting is not None:
                    self._reporting.start()
                driver = self._driver(session, syncer)
                drivers.append(driver)
                closers.callback(driver.close)
                if self._spec.driver == "ray":
                    self._doing = f"Ray at {redact(self._spec.ray_address)}".removesuffix(" at ")
                self._connect(driver, session, syncer)
                self._doing = "the search"
                arm()
                driver.run(arm)
        except Exception as error:  # noqa: BLE001 (raised again when the answer is written)
            failed = self._as_shortage(error)
            session.stop(_why_broken(failed))
            return failed
        finally:
            # The main thread returned; the remaining work has time limits.
            self._lose(None)
        return None

    def _as_shortage(self, error: Exception) -> Exception:
        """Return the error; an error of autotune if this machine lacks something."""
        lacks = None if isinstance(error, AutotuneError) else shortage(error, places=(self._home,))
        if lacks is None:
            return error
        lacks.hint = f"{lacks.hint}; then: autotune resume {self._spec.label}"
        lacks.__cause__ = error
        return lacks

    def _lose(self, error: AutotuneError | None) -> None:
        """Handle a lost backend: a call into it may block the main thread indefinitely.

        Args:
            error: Error that ends the search; None once the main thread has returned.
        """
        self._lost = error
        if self._wall is not None:
            self._wall.bring_forward(math.inf if error is None else LOST_S)

    def _clear_up_behind_ray(self, failed: Exception | None) -> None:
        """Clean up after workers of a local Ray, which may have ended before their own cleanup."""
        if not _has_own_ray(self._spec) or isinstance(failed, StudyLocked):
            return
        try:
            clear_up(self._home, list(self._journal.entries()), self._spec)
        except Exception:
            log.exception("files of the last trials could not be removed; a resume removes them")

    def _connect(self, driver: Driver, session: Session, syncer: Syncer) -> None:
        """Start or connect to the backend; a wait for it is announced."""
        if isinstance(driver, (InlineDriver, HeadStart)):
            driver.connect()
            return
        what = "connecting to Ray" if self._spec.ray_address else "starting Ray"
        late = threading.Timer(QUIET_S, self._announce, (session, what))
        late.daemon = True
        late.start()
        try:
            driver.connect()
        finally:
            late.cancel()
        syncer.warm_up(min(OPENING_S, WARM_UP_SHARE * self._spec.budget.seconds))

    def _announce(self, session: Session, text: str) -> None:
        self._notify(lambda listener: listener.note(session.study, text))

    def _driver(self, session: Session, syncer: Syncer) -> Driver:
        def runner(starts: Callable[[], bool] = bool) -> LocalRunner:
            return LocalRunner(
                study_dir=self._home,
                isolation=_isolation(session.study),
                free_memory=free_memory,
                disturbs=lambda: starts() or syncer.is_opening,
            )

        if self._spec.driver != "ray":
            return InlineDriver(session, runner())
        facts = session.study.facts
        if _has_own_ray(self._spec):
            refuse_small_address_space()
        if not _has_own_ray(self._spec) or facts is None or facts.run is not None:
            return self._ray_driver(session)
        return HeadStart(
            session,
            runner,
            lambda: self._started_ray(session),
            devices=len(facts.host.devices),
            announce=lambda text: self._announce(session, text),
        )

    def _started_ray(self, session: Session) -> RayDriver:
        driver = self._ray_driver(session)
        # A script that fails at once ends its search while Ray is imported.
        if not session.stopping:
            driver.connect()
        return driver

    def _ray_driver(self, session: Session) -> RayDriver:
        return _ray_driver_class(self._spec.ray_address)(
            session,
            study_dir=self._home,
            isolation=_isolation(session.study),
            address=self._spec.ray_address,
            concurrency=self._spec.concurrency,
            lost=self._lose,
        )

    def _end(self, session: Session, failed: Exception | None) -> tuple[Study, Exception | None]:
        """Return the closed study, and the first error, which names the saved files."""
        if isinstance(failed, StudyLocked):
            # Another driver continues this study, and will write its answer.
            return session.study, failed
        study = _as_ended(session)
        try:
            self._write(study)
        except Exception as error:  # noqa: BLE001 (raised again when the study is closed)
            failed = failed or error
        try:
            study = session.close()
        except Exception as error:  # noqa: BLE001 (raised again after all listeners are notified)
            failed = failed or error
        return study, None if failed is None else self._with_answer(failed)

    def _with_answer(self, error: _Failed) -> _Failed:
        """Return the error with the saved files."""
        if self._written is not None and self._files:
            note = f"the best so far is in {self._files[-1]}: {self._written[1].sentence}"
            if note not in notes_of(error):
                add_note(error, note)
        return error

    def _write(self, study: Study) -> None:
        """Write the present answer next to the journal and to the user's path; only the first one counts.

        Raises:
            StoreError: One file could not be written; the others were, and the next call retries.
        """
        with self._writing:
            if self._written is None:
                found = answer_or_none(study)
                if found is None:
                    return
                self._written = (study, found)
            study, answer = self._written
            changes_of = self._changes_of(study)
            problem: AutotuneError | None = None
            for path in (self._home / "best.yaml", *([Path(self._spec.out)] if self._spec.out else [])):
                if path in self._files:
                    continue
                try:
                    write_best(path, study, answer, changes_of)
                except (OSError, ValueError, AutotuneError) as error:
                    problem = self._unwritten(path, error)
                else:
                    self._files.append(path)
            if problem is not None:
                raise problem

    def _report(self, study: Study, failed: Exception | None) -> dict[str, str]:
        """Write the report next to the journal; return name -> file, empty on failure."""
        if isinstance(failed, StudyLocked):
            return {}
        found = write_report(self._home, study, self._written[1] if self._written is not None else None)
        return {} if found is None else {"report": str(found)}

    def _unwritten(self, path: Path, error: Exception) -> AutotuneError:
        hint = f"the answer is in the study: autotune show {self._spec.label}"
        what = f"{path} could not be written"
        problem = unwritable(what, path, error, hint=hint)
        problem.hint = hint if problem.hint == hint else f"{problem.hint}; {hint}"
        problem.__cause__ = error
        return problem

    def _report_forced_end(self, stopped: str) -> None:
        if self._last_words is not None:
            self._last_words(self._forced(stopped))

    def _forced(self, stopped: str) -> SearchEnd | AutotuneError:
        """Return the end of a search that timed out; takes no lock, as that may be what hangs."""
        if self._lost is not None:
            return self._with_answer(self._lost)
        if self._written is None and stopped in ("interrupted", "signal"):
            return why_nothing(Study(spec=self._spec, stopped=stopped))
        if self._written is None:
            seconds = self._spec.budget.seconds
            return BackendError(
                f"{self._doing} did not finish within the budget of {seconds:.0f} s; there is no answer",
                hint="check the machine or the cluster; try --driver inline, or give more time: --budget",
            )
        study, answer = self._written
        study = replace(study, stopped=stopped or "finished")
        try:
            code = exit_code(study, answer)
        except AutotuneError as error:
            return error
        return SearchEnd(study=study, answer=answer, exit_code=code, unsent=0, study_dir=self._home)

    def _changes_of(self, study: Study) -> Callable[[Config], Sequence[Change]]:
        return lambda config: self._planner.changes_in(study, config)[0]

    def _append(self, kind: str, uid: str, data: Mapping[str, object]) -> None:
        wired: dict[str, object] = to_wire(data)
        self._journal.append(kind, uid, wired, outbox=rows_for(kind, wired))

    def _notify(self, call: Callable[[Listener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception:
                log.exception("a listener failed; the search continues")


def _refuse_another_script(study: Study, facts: Facts, spec: StudySpec) -> None:
    """Raise an error for an edited script, as trials of two versions are not comparable."""
    now = script_facts(spec.inspected)
    if now.sha256 != facts.script.sha256:
        message = f"{spec.inspected} has changed since study {spec.label} began"
        raise UsageError(message, hint=f"search again: {search_again(study)}")
    if module := changed_module(modules_of(study)):
        message = f"{module}, which the script imports, has changed since study {spec.label} began"
        raise UsageError(message, hint=f"search again: {search_again(study)}")


def _static_facts(spec: StudySpec) -> Facts:
    host = replace(host_facts(), isolation=_isolation_here(spec).mode)
    if spec.python != sys.executable:
        found = interpreter(spec.python, spec.options)
        host = replace(host, python=found.version, versions=found.versions)
    script = script_facts(spec.inspected, spec.args, cwd=spec.cwd, chosen=spec.constants)
    specs = [*spec.space.declared, *(d for each in spec.space.candidates for d in each.declared)]
    return Facts(
        host=host,
        script=script,
        effective_batch_rule=spec.effective_batch,
        declared=own_values(specs, script=script, args=spec.args, environ=os.environ),
        advice=advise(spec.inspected, host),
        launcher=spec.launcher,
    )


def _isolation_here(spec: StudySpec) -> isolation.Isolation:
    return isolation.found_for(str(Path(spec.cwd, spec.script)), spec.cwd, os.environ)


def _environment(spec: StudySpec) -> dict[str, str]:
    """Return the user's environment for trials, before Ray adds variables to this process."""
    environ = ray_auth.without_ours(os.environ)
    return user_environment(environ, keep_loggers=spec.keep_loggers, trial=True)


def _has_own_ray(spec: StudySpec) -> bool:
    """Return whether the search uses a local Ray."""
    return spec.driver == "ray" and not spec.ray_address


def _import_ray() -> None:
    # An error here occurs again when Ray is needed.
    with suppress(Exception):
        _ray_driver_class()


def _ray_driver_class(address: str = "") -> type[RayDriver]:
    """Import Ray, after setting up its authentication."""
    ray_auth.prepare(address)
    from autotune.driver.backends.ray_tune import RayDriver

    return RayDriver


def _isolation(study: Study) -> str:
    return study.facts.host.isolation if study.facts is not None else "auto"


def _as_ended(session: Session) -> Study:
    """Return the study as it will be closed."""
    return replace(session.study, stopped=session.stopping or "finished")


def _up_s() -> float:
    """Return the seconds since this machine was started, sleep included; infinite if unknown."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return float("inf") if clock is None else time.clock_gettime(clock)


def _why_broken(error: Exception) -> str:
    if isinstance(error, BackendError):
        return "backend"
    return "disk" if isinstance(error, DiskFull) else "error"


def _stopper(
    session: Session, interrupt: Callable[[], None], notify: Callable[[Callable[[Listener], None]], None]
) -> Callable[[str], None]:
    def stop(why: str) -> None:
        session.stop(why)
        notify(lambda listener: listener.stopping(why))
        interrupt()

    return stop
