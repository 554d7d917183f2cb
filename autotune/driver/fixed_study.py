"""Studies without a search: `inspect`, `verify` and `scale` measure configurations that are given.

The session, the runner, the guard and the statistics are those of a search, so that figures are comparable.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.clock import SystemClock
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.exit_status import StoppedBySignal, StoppedEarly, why_nothing
from autotune.driver.host_memory import free_memory
from autotune.driver.loop.script_watch import ScriptWatch, modules_of
from autotune.driver.loop.session import ENDING_S, Session
from autotune.driver.loop.signals import breakable, polite_ending
from autotune.driver.spec import redirected_stdin, version
from autotune.errors import AutotuneError
from autotune.inspection import host
from autotune.inspection.interpreter import interpreter
from autotune.inspection.script import script_facts
from autotune.launch.devices.load_check import LoadCheck
from autotune.launch.devices.machine_lock import MachineLock
from autotune.launch.process import LocalRunner
from autotune.launch.workspace import isolation
from autotune.model.facts import Facts, HostFacts
from autotune.model.study import SCRIPT_CHANGED, Budget, SpaceRequest, StudySpec
from autotune.store.fold import fold
from autotune.store.paths import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.driver.loop.planner import Planner
    from autotune.inspection.command_line import Command
    from autotune.launch.runner import Runner
    from autotune.model.study import Study
    from autotune.model.trial import Assignment
    from autotune.report.listener import Listener
    from autotune.search.strategy import Strategy
    from autotune.store.journal import Journal

log = logging.getLogger(__name__)


def spec_of(command: Command, *, label: str, space: str, budget_s: float, **more: Any) -> StudySpec:
    """Return the spec of a study of this command, without Ray.

    Args:
        command: The user's command.
        label: Label of the study.
        space: Name of its space.
        budget_s: Wall time of the whole measurement.
        more: Other fields of the spec.
    """
    return StudySpec(
        study_id=new_id(),
        label=label,
        script=command.script,
        args=command.args,
        cwd=str(Path.cwd()),
        python=command.python,
        space=SpaceRequest(name=space),
        budget=Budget(seconds=budget_s),
        driver="inline",
        version=version(),
        module=command.module,
        options=command.options,
        launcher=command.launcher,
        source=command.source,
        stdin=redirected_stdin(),
        **more,
    )


def isolation_of(spec: StudySpec) -> isolation.Isolation:
    """Return the file isolation that trials of this script get."""
    return isolation.found_for(spec.script, spec.cwd, os.environ)


def host_of(spec: StudySpec) -> HostFacts:
    """Return the facts of this machine and of the interpreter that runs the script."""
    facts = replace(host.host_facts(), isolation=isolation_of(spec).mode)
    if spec.python == sys.executable:
        return facts
    found = interpreter(spec.python, spec.options)
    return replace(facts, python=found.version, versions=found.versions)


def facts_of(spec: StudySpec, command: Command) -> Facts:
    """Return the facts of machine, interpreter and script."""
    return Facts(
        host=host_of(spec),
        script=script_facts(command.inspected, command.args),
        effective_batch_rule="keep",
        launcher=command.launcher,
    )


def measure(
    journal: Journal,
    home: Path,
    spec: StudySpec,
    *,
    strategy: Strategy,
    planner: Planner,
    elapsed_s: float,
    again: str,
    listeners: Sequence[Listener] = (),
    runner: Runner | None = None,
    place: Callable[[Assignment], Assignment] = lambda assignment: assignment,
) -> Study:
    """Run the study of a journal to its end; errors are raised after the end was recorded.

    Args:
        journal: Journal with the spec and the facts of the study.
        home: Folder of the study.
        spec: Its spec with secrets, which the journal lacks.
        strategy: Proposes the runs.
        planner: Planner of the runs.
        elapsed_s: Seconds of the budget already spent.
        again: The command that continues, or starts again, for the hint of an error.
        listeners: Notified of the progress.
        runner: Runs one assignment; None for the default.
        place: Returns an assignment adapted to this machine.

    Raises:
        AutotuneError: The unchanged script was not measured.
    """
    study = fold(journal.entries(), build=planner.space)
    facts = study.facts
    assert facts is not None
    watch = ScriptWatch(spec.inspected, facts.script.sha256)
    machine = MachineLock.of_machine(os.environ, spec)
    session = Session(
        journal=journal,
        study=study,
        strategy=strategy,
        planner=planner,
        clock=SystemClock(),
        elapsed_s=elapsed_s,
        ending_s=ENDING_S,
        listeners=listeners,
        watch=watch,
        load=LoadCheck.of_machine(os.environ),
        machine=machine,
    )
    watch.follow(lambda: modules_of(session.study))
    _notify(listeners, lambda listener: listener.study_began(session.study))
    if text := isolation_of(spec).note:
        _notify(listeners, lambda listener: listener.note(session.study, text))
    runner = runner or LocalRunner(study_dir=home, isolation=facts.host.isolation, free_memory=free_memory)
    try:
        study = _run_to_end(session, InlineDriver(session, runner, place=place), planner, again)
    finally:
        machine.release()
    _notify(listeners, lambda listener: listener.study_ended(study))
    if not any(trial.measurement for trial in study.baseline):
        raise _why_nothing_measured(study, again)
    return study


def _run_to_end(session: Session, driver: InlineDriver, planner: Planner, again: str) -> Study:
    def stop(why: str) -> None:
        session.stop(why)
        driver.interrupt()

    try:
        with polite_ending(stop) as arm:
            with breakable():
                session.await_machine()
                planner.limit_memory(free_memory())
                driver.run(arm)
            return session.close()
    except BaseException as error:
        if isinstance(error, AutotuneError) and "autotune resume" in error.hint:
            error.hint = again
        session.stop("error")
        try:
            session.close()
        except Exception:  # the first error is the one to report
            log.debug("the end could not be recorded", exc_info=True)
        raise


def _why_nothing_measured(study: Study, again: str) -> AutotuneError:
    """Return the error as for a search, with the words of this command."""
    script = Path(study.spec.script).name
    if not study.finished() and study.stopped in ("interrupted", "signal"):
        kind = StoppedBySignal if study.stopped == "signal" else StoppedEarly
        return kind(f"measuring {script} was stopped before its first measurement", hint=again)
    error = why_nothing(study)
    if study.stopped == SCRIPT_CHANGED or "autotune resume" in error.hint:
        error.hint = again
    return error


def _notify(listeners: Sequence[Listener], call: Callable[[Listener], None]) -> None:
    """Notify every listener; an error of one does not end the measurement."""
    for listener in listeners:
        try:
            call(listener)
        except Exception:
            log.exception("a listener failed; the measurement continues")
