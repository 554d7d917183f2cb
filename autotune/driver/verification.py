"""Does a best.yaml hold here and now? Its pick against the unchanged script, in fresh interleaved pairs.

Nothing is searched. The session, the runner, the guard and the statistics are those of a search, so that a
figure means the same; the ways by which values reach the script are those of the file. What is measured is
kept as a study of its own, with the question in an event ``verifying``, and stays out of MLflow
(docs/decisions/0020).
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.clock import SystemClock
from autotune.compare.control import control
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.exit_status import StoppedBySignal, StoppedEarly, why_nothing
from autotune.driver.host_memory import free_memory
from autotune.driver.new_study import create_study
from autotune.driver.planner import Planner
from autotune.driver.script_watch import ScriptWatch, modules_of
from autotune.driver.session import ENDING_S, Session
from autotune.driver.signals import breakable, polite_ending
from autotune.driver.spec import redirected_stdin, version
from autotune.errors import AutotuneError, NotApplied, StoreError, UsageError
from autotune.inspection.host import host_facts
from autotune.inspection.interpreter import interpreter
from autotune.inspection.script import script_facts
from autotune.knobs.registry import builtin
from autotune.launch.devices.load_check import LoadCheck
from autotune.launch.devices.machine_lock import MachineLock
from autotune.launch.process import LocalRunner
from autotune.launch.workspace import isolation
from autotune.model.change import Change
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import Facts
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import SCRIPT_CHANGED, VERIFY, Budget, SpaceRequest, StudySpec
from autotune.model.trial import FailureKind
from autotune.model.wire import from_wire, to_wire
from autotune.search.confirmation.verification import Verification
from autotune.space.training_environment import user_environment
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import JOURNAL_FILE, new_id
from autotune.text.redact import learned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.compare.comparison import Comparison
    from autotune.driver.planner import Dead
    from autotune.export.best_config import PickPart
    from autotune.inspection.command_line import Command
    from autotune.launch.runner import Runner
    from autotune.model.change import Refusal
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study
    from autotune.model.trial import Assignment
    from autotune.report.listener import Listener

log = logging.getLogger(__name__)

_AGAIN: Final = "verify again: autotune verify best.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRequest:
    """What is verified.

    Args:
        pick: Its name in the file.
        changes: How its values reach the script.
        effect: What they do to the training.
        pairs: At most so many.
        at_least: The ratio that the lower bound has to clear to be called faster.
    """

    pick: str
    changes: tuple[Change, ...]
    effect: Effect
    pairs: int = 10
    at_least: float = 1.0

    @property
    def config(self) -> Config:
        """What the changes amount to."""
        return Config({change.knob: change.value for change in self.changes})

    @property
    def strategy(self) -> Verification:
        """Asks the question, and judges what was measured."""
        return Verification(self.config, most_pairs=self.pairs, at_least=self.at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a verification found.

    Args:
        asked: The question.
        verdict: ``faster``, ``no_difference``, ``slower``, ``worse`` (its loss is) or ``failed``.
        because: What ``no_difference`` rests on, as `Verification.because` says it; else empty.
        comparison: The pick against the script; None without a pair.
        identical: The script against itself; None with too few runs.
        study: Every run of it.
        study_dir: Where everything lies.
    """

    asked: VerificationRequest
    verdict: str
    because: str
    comparison: Comparison | None
    identical: Estimate | None
    study: Study
    study_dir: Path


class FixedPlanner(Planner):
    """Plans the unchanged script and one config, whose changes were settled when it was found."""

    def __init__(self, changes: Sequence[Change], effect: Effect, *, environ: Mapping[str, str]) -> None:
        super().__init__(knobs=builtin(), environ=environ, memory_limit_bytes=0)
        self._changes = tuple(changes)
        self._effect = effect

    def space(
        self,
        spec: StudySpec,
        facts: Facts,
        dead: Dead = frozenset(),
    ) -> tuple[SearchSpace, dict[str, str]]:
        """The config's knobs alone, each with its one value."""
        dimensions = {c.knob: self._dimension(c, facts) for c in self._changes}
        return SearchSpace(dimensions=dimensions), {}

    def changes(
        self,
        config: Config,
        facts: Facts,
        dead: Dead = frozenset(),
    ) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """As the file says."""
        return (self._changes if config else ()), ()

    def _dimension(self, change: Change, facts: Facts) -> Dimension:
        knob = self._knobs.get(change.knob)
        # A knob that the user had declared is known by the effect of the whole pick alone.
        effect = knob.effect_for(facts) if knob is not None else self._effect
        changes_rng_streams = (
            knob.changes_rng_streams(facts) if knob is not None else self._effect is not Effect.EXACT
        )
        return Dimension(
            knob=change.knob,
            values=(change.value,),
            own=None,
            effect=effect,
            changes_rng_streams=changes_rng_streams,
        )


def verify(
    pick: PickPart,
    command: Command,
    *,
    changes: Sequence[Change],
    label: str,
    budget_s: float,
    name: str = "best",
    pairs: int = 10,
    at_least: float = 1.0,
    head_start_s: float = 0.0,
    wait_for_quiet_s: float = 0.0,
    wait_s: float | None = None,
    share: bool = False,
    listeners: Sequence[Listener] = (),
) -> Verified:
    """Run pairs until the answer is settled, the pairs are used up, or the budget is.

    Args:
        pick: Of a best.yaml.
        command: How the user starts the script.
        changes: Of the pick, those that may be carried out (`autotune.space.accept_changes`).
        label: Of the study that holds the runs.
        budget_s: Wall time for all of it.
        name: Of the pick.
        pairs: At most so many.
        at_least: The ratio that the lower bound has to clear to be called faster.
        head_start_s: Seconds of the budget already spent when this was called.
        wait_for_quiet_s: Longest wait for other processes to end, before the first run.
        wait_s: Longest wait for a search on the same CPUs or accelerators; None for twice the budget.
        share: Measure beside it after that wait.
        listeners: Told as it goes.

    Raises:
        UsageError: The pick changes nothing; or the script was edited, or the budget ended, before it was
            measured once.
        ScriptError: The script fails by itself.
        NotApplied: A knob of the pick does not take effect here.
        StoreError: The study cannot be written.
    """
    if not pick.changes:
        raise UsageError("this pick is the unchanged script: there is nothing to verify")
    clock = SystemClock()
    began_s = clock.now_s() - head_start_s
    asked = VerificationRequest(
        pick=name, changes=tuple(changes), effect=Effect[pick.effect], pairs=pairs, at_least=at_least
    )
    spec = _spec(command, label, budget_s)
    spec = replace(spec, wait_for_quiet_s=wait_for_quiet_s, wait_s=wait_s, share=share)
    facts = facts_of(spec, command)
    planner = _planner(asked)
    with ExitStack() as closers:
        closers.enter_context(learned(spec.args))
        spec, home, journal = create_study(spec, wall_s=clock.wall_s())
        closers.callback(journal.close)
        _append_question(journal, facts, asked)
        machine = MachineLock.of_machine(os.environ, spec)
        closers.callback(machine.release)
        watch = ScriptWatch(spec.inspected, facts.script.sha256)
        session = Session(
            journal=journal,
            study=fold(journal.entries(), build=planner.space),
            strategy=asked.strategy,
            planner=planner,
            clock=clock,
            elapsed_s=clock.now_s() - began_s,
            ending_s=ENDING_S,
            listeners=listeners,
            watch=watch,
            load=LoadCheck.of_machine(os.environ),
            machine=machine,
        )
        watch.follow(lambda: modules_of(session.study))
        tell(listeners, lambda listener: listener.study_began(session.study))
        if text := isolation_of(spec).note:
            tell(listeners, lambda listener: listener.note(session.study, text))
        runner = LocalRunner(study_dir=home, isolation=facts.host.isolation, free_memory=free_memory)
        study = run_to_end(session, runner, planner, again=_AGAIN)
        tell(listeners, lambda listener: listener.study_ended(study))
    if not any(trial.measurement for trial in study.baseline):
        raise why_nothing_measured(study, _AGAIN)
    found = _judged(asked, study, home)
    if found.verdict == "failed" and (reason := _not_applied(study, asked.config)):
        raise NotApplied(
            f"{name} does not take effect here: {reason}", hint="search on this machine: autotune search"
        )
    return found


def read_verified(directory: Path) -> Verified:
    """What a verification found, from its journal alone.

    Raises:
        StoreError: The study cannot be read, or is none of `verify`.
    """
    with Journal.read(directory / JOURNAL_FILE) as journal:
        entries = list(journal.entries())
    data = next((entry.data for entry in entries if entry.kind == "verifying"), None)
    if data is None:
        raise StoreError(f"{directory} does not contain what was verified")
    asked: VerificationRequest = VerificationRequest(
        pick=str(data["pick"]),
        changes=from_wire(tuple[Change, ...], data["changes"]),
        effect=Effect[str(data["effect"])],
        pairs=int(data["pairs"]),
        at_least=float(data["at_least"]),
    )
    planner = FixedPlanner(asked.changes, asked.effect, environ={})
    return _judged(asked, fold(entries, build=planner.space), directory)


def _judged(asked: VerificationRequest, study: Study, home: Path) -> Verified:
    strategy = asked.strategy
    return Verified(
        asked=asked,
        verdict=strategy.verdict(study),
        because=strategy.because(study),
        comparison=strategy.comparison(study),
        identical=control(study),
        study=study,
        study_dir=home,
    )


def run_to_end(
    session: Session,
    runner: Runner,
    planner: Planner,
    *,
    again: str,
    place: Callable[[Assignment], Assignment] = lambda assignment: assignment,
) -> Study:
    """Run to the end; whatever breaks on the way is raised once it is written down how it ended.

    Args:
        session: What to run.
        runner: Runs one assignment.
        planner: Of the session.
        again: The command that continues, for the hint of an error.
        place: Returns an assignment as it is to run on this machine.
    """
    driver = InlineDriver(session, runner, place=place)

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
        except Exception:  # the first error is the one to tell
            log.debug("the end could not be recorded", exc_info=True)
        raise


def _spec(command: Command, label: str, budget_s: float) -> StudySpec:
    return StudySpec(
        study_id=new_id(),
        label=label,
        script=command.script,
        args=command.args,
        cwd=str(Path.cwd()),
        python=command.python,
        space=SpaceRequest(name="verify"),
        budget=Budget(seconds=budget_s),
        effective_batch="keep",
        driver="inline",
        version=version(),
        module=command.module,
        options=command.options,
        launcher=command.launcher,
        source=command.source,
        stdin=redirected_stdin(),
        purpose=VERIFY,
    )


def isolation_of(spec: StudySpec) -> isolation.Isolation:
    """Return the file isolation that trials of this script get."""
    return isolation.found_for(spec.script, spec.cwd, os.environ)


def facts_of(spec: StudySpec, command: Command) -> Facts:
    """Return the facts of this machine and of the interpreter that runs the script."""
    host = replace(host_facts(), isolation=isolation_of(spec).mode)
    if spec.python != sys.executable:
        found = interpreter(spec.python, spec.options)
        host = replace(host, python=found.version, versions=found.versions)
    return Facts(host=host, script=script_facts(command.inspected, command.args), effective_batch_rule="keep")


def _planner(asked: VerificationRequest) -> FixedPlanner:
    return FixedPlanner(
        asked.changes,
        asked.effect,
        environ=user_environment(os.environ, keep_loggers=False, trial=True),
    )


def _append_question(journal: Journal, facts: Facts, asked: VerificationRequest) -> None:
    question = {
        "pick": asked.pick,
        "changes": asked.changes,
        "effect": asked.effect,
        "pairs": asked.pairs,
        "at_least": asked.at_least,
    }
    rows: tuple[tuple[str, dict[str, Any]], ...] = (
        ("inspected", {"facts": facts}),
        ("verifying", question),
    )
    for kind, data in rows:
        journal.append(kind, f"{kind}/1", to_wire(data))


def _not_applied(study: Study, config: Config) -> str:
    """Why a knob did not take effect, empty where all did."""
    failures = [t.failure for t in study.of(config) if t.failure is not None]
    return next((f.message for f in failures if f.kind is FailureKind.CONFIG_REJECTED), "")


def why_nothing_measured(study: Study, again: str) -> AutotuneError:
    """As for a search, in the words of this verb.

    Args:
        study: Without a measured baseline.
        again: The command that continues, or begins anew.
    """
    script = Path(study.spec.script).name
    if not study.told() and study.stopped in ("interrupted", "signal"):
        kind = StoppedBySignal if study.stopped == "signal" else StoppedEarly
        return kind(f"measuring {script} was stopped before its first measurement", hint=again)
    error = why_nothing(study)
    if study.stopped == SCRIPT_CHANGED or "autotune resume" in error.hint:
        error.hint = again
    return error


def tell(listeners: Sequence[Listener], call: Callable[[Listener], None]) -> None:
    """Notify every listener; an error of one does not end the measurement."""
    for listener in listeners:
        try:
            call(listener)
        except Exception:
            log.exception("a listener failed; the verification continues")
