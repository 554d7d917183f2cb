"""Inspection of a script: its source, and the facts of one short unchanged run.

The run is the first trial of a search, with a smaller window. It creates no study: nothing is journaled, and
its folder is removed at the end.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autotune.answer.space_selection import likely, settled
from autotune.config_files.presets import AUTO_SPACE, load_space
from autotune.driver.exit_status import StoppedBySignal, StoppedEarly, why_nothing
from autotune.driver.fixed_study import host_of, isolation_of, spec_of
from autotune.driver.host_memory import free_memory
from autotune.driver.loop.planner import Planner
from autotune.driver.loop.signals import polite_ending
from autotune.errors import AutotuneError, UsageError
from autotune.inspection import host as machine
from autotune.inspection.command_line import check_one_machine, verify
from autotune.inspection.script import script_facts
from autotune.knobs.registry import builtin
from autotune.launch.process import LocalRunner
from autotune.launch.workspace import isolation
from autotune.model.config import Config
from autotune.model.facts import Facts
from autotune.model.study import SpaceRequest, Study, StudySpec
from autotune.model.trial import Failure, FailureKind, Fidelity, Stage, Trial, TrialState
from autotune.space.training_environment import user_environment
from autotune.store.paths import make_study_dir
from autotune.store.study_lock import locked

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.inspection.command_line import Command
    from autotune.launch.runner import TrialResult
    from autotune.model.measurement import Measurement

log = logging.getLogger(__name__)

SHORTEST_S: Final = 5.0
"""Shortest limit: importing PyTorch alone takes seconds."""
_WINDOW_S: Final = (0.5, 3.0)
_STEPS: Final = 8
_WIDTH: Final = 0.1
_MORE_TIME: Final = "give it more time: --limit 10m; --static only reads it"
_ENOUGH: Final = (FailureKind.WARMUP_SHORT, FailureKind.TIMEOUT_TOTAL)
"""Failures of a run that has shown all facts, if it reached its first steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRun:
    """Facts about a script.

    Args:
        facts: Without a `run` if none was requested, or it did not reach a step.
        space: Space of ``--space auto``: final if the run was measured, else likely; None if one of
            the shipped files is malformed.
        measured: The short window; None without one.
        seconds: Duration of the run's process; 0 without one.
        notes: Messages of the run, whole sentences.
        problem: Why facts are missing.
    """

    facts: Facts
    space: SpaceRequest | None
    measured: Measurement | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    problem: AutotuneError | None = None


def look(command: Command, *, limit_s: float, run: bool = True) -> InspectRun:
    """Read a script, and run it briefly with its writes kept off the user's files.

    If the run does not reach its first steps, the cause is in `InspectRun.problem`, next to the other facts.

    Args:
        command: The user's command.
        limit_s: Time limit of the process.
        run: False to only read the source.

    Raises:
        UsageError: The script cannot be read, or the limit is shorter than any start.
    """
    if limit_s < SHORTEST_S:
        raise UsageError(
            f"a limit of {limit_s:g} s is shorter than any start: at least {SHORTEST_S:.0f}s",
            hint="--limit 60s, or --static to run nothing",
        )
    facts = Facts(
        host=machine.host_facts(),
        script=script_facts(command.inspected, command.args),
        launcher=command.launcher,
    )
    spec = spec_of(command, label="inspect", space="inspect", budget_s=limit_s)
    known = InspectRun(facts=facts, space=_space(Study(spec=spec, facts=facts)))
    if not run:
        return known
    try:
        check_one_machine(command, "inspect")
        verify(command)
        facts = replace(facts, host=host_of(spec))
        ended, stopped = _run(spec, facts, limit_s)
        if text := isolation_of(spec).note:
            ended = replace(ended, notes=(text, *ended.notes))
    except AutotuneError as error:
        return replace(known, problem=error)
    return _result(spec, replace(facts, run=ended.facts), ended, stopped)


def _result(spec: StudySpec, facts: Facts, ended: TrialResult, stopped: str) -> InspectRun:
    outcome = ended.outcome
    trial = replace(_baseline(spec.budget.seconds), state=TrialState.FINISHED, outcome=outcome)
    study = Study(spec=spec, facts=facts, trials=(trial,), stopped=stopped)
    notes, problem = ended.notes, None
    if isinstance(outcome, Failure):
        if facts.run is not None and outcome.kind in _ENOUGH:
            # All facts were observed; rates are measured by a search.
            notes = (*notes, f"no rate could be measured: {outcome.message}")
        else:
            problem = _problem(study, outcome)
    return InspectRun(
        facts=facts,
        space=_space(study),
        measured=trial.measurement,
        seconds=ended.seconds,
        notes=notes,
        problem=problem,
    )


def _space(study: Study) -> SpaceRequest | None:
    """Return the space of ``--space auto``, as far as this study shows."""
    assert study.facts is not None
    try:
        candidates = load_space(AUTO_SPACE, cwd=study.spec.cwd)
    except UsageError:
        return None
    if not any(trial.measurement for trial in study.baseline):
        return likely(candidates, study.facts)
    return settled(replace(study, spec=replace(study.spec, space=candidates))).space


def _problem(study: Study, failure: Failure) -> AutotuneError:
    """Return the error as for a search, with the words of this command."""
    # A signal to a whole job may have ended the run before this process handled it.
    if study.stopped or failure.kind is FailureKind.KILLED_USER:
        kind = StoppedBySignal if study.stopped == "signal" else StoppedEarly
        return kind(f"{study.spec.title} was stopped before its first step")
    error = why_nothing(study)
    if "--budget" in error.hint:
        error.hint = _MORE_TIME
    elif "autotune resume" in error.hint:
        error.hint = error.hint.replace(
            f"then: autotune resume {study.spec.label}", "or run nothing: --static"
        )
    return error


def _run(spec: StudySpec, facts: Facts, limit_s: float) -> tuple[TrialResult, str]:
    """Run once; return the result, and how the run was stopped, if it was.

    Raises:
        StoreError: Its folder cannot be made.
    """
    memory = free_memory()
    planner = Planner(
        knobs=builtin(),
        environ=user_environment(os.environ, keep_loggers=False, trial=True),
        memory_limit_bytes=memory,
    )
    assignment = planner.assign(Study(spec=spec, facts=facts), _baseline(limit_s))
    assert not isinstance(assignment, Failure), "a config without changes needs no delivery"
    home = make_study_dir(spec.study_id)
    stopped = ""
    with ExitStack() as closers:
        closers.callback(_remove, home)
        closers.enter_context(locked(home))
        runner = LocalRunner(study_dir=home, isolation=facts.host.isolation)
        closers.callback(runner.close)

        def stop(why: str) -> None:
            nonlocal stopped
            stopped = why
            runner.stop()

        with polite_ending(stop):
            (ended,) = runner.run(assignment)
    return ended, stopped


def _remove(home: Path) -> None:
    try:
        isolation.remove(home)
    except OSError:
        log.warning("%s could not be removed; autotune clean tries again", home)


def _baseline(limit_s: float) -> Trial:
    """Return a trial of the unchanged script, long enough to observe its facts."""
    low, high = _WINDOW_S
    fidelity = Fidelity(
        min_window_s=low,
        max_window_s=high,
        min_steps=_STEPS,
        target_width=_WIDTH,
        setup_s=limit_s,
        deadline_s=limit_s,
    )
    return Trial(number=0, config=Config(), stage=Stage.BASELINE, fidelity=fidelity)
