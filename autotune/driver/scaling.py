"""Scaling of a training: fresh interleaved runs with 1, 2, 4, ... processes of one command.

The session, the runner, the guard and the statistics are those of a search, so that figures are comparable
(docs/decisions/0137). The runs form a separate study, with the question in an event ``scaling``.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.clock import SystemClock
from autotune.compare.scaling import PROCESSES, Scaling, own_processes, processes_of, scaling
from autotune.driver.backends.head_start import on_first_devices
from autotune.driver.cleanup.dead_drivers import clear_up
from autotune.driver.fixed_study import facts_of, measure, spec_of
from autotune.driver.loop.planner import Planner
from autotune.driver.loop.script_watch import ScriptWatch
from autotune.driver.new_study import append_opened, create_study
from autotune.errors import StoreError, UsageError
from autotune.knobs.registry import builtin
from autotune.model.change import Change  # noqa: TC001 (`from_wire` resolves the annotations of `Question`)
from autotune.model.distributed_launch import with_ranks
from autotune.model.effect import Effect
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import SCALE, StudySpec
from autotune.model.wire import from_wire, to_wire
from autotune.report.view.summary import user_command
from autotune.search.confirmation.scaling_rounds import ScalingRounds
from autotune.space.training_environment import user_environment
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import JOURNAL_FILE
from autotune.store.redact import with_secrets
from autotune.text.redact import learned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autotune.driver.loop.planner import Dead
    from autotune.inspection.command_line import Command
    from autotune.launch.runner import Runner
    from autotune.model.change import Refusal
    from autotune.model.config import Config
    from autotune.model.facts import Facts
    from autotune.model.study import Study
    from autotune.model.trial import Assignment, Failure, Trial
    from autotune.report.listener import Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question of a scaling measurement.

    Args:
        counts: Numbers of processes, ascending.
        rounds: Largest number of fresh runs of each.
        price: Price of one process for an hour, in any unit; 0 for none.
        changes: Deliveries of a best.yaml's values; empty for the unchanged script.
        pick: The pick's name; empty without a file.
    """

    counts: tuple[int, ...]
    rounds: int = 5
    price: float = 0.0
    changes: tuple[Change, ...] = ()
    pick: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Result of a scaling measurement.

    Args:
        question: The question.
        scaling: The figures.
        study: Every run.
        study_dir: Directory of the study.
    """

    question: Question
    scaling: Scaling
    study: Study
    study_dir: Path


class ScalePlanner(Planner):
    """Plans one config under launchers that differ in the number of processes."""

    def __init__(self, question: Question, *, environ: Mapping[str, str]) -> None:
        super().__init__(knobs=builtin(), environ=environ, memory_limit_bytes=0)
        self._question = question

    def space(
        self, spec: StudySpec, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[SearchSpace, dict[str, str]]:
        """Return the number of processes as the only dimension; losses are not compared."""
        counts = self._question.counts
        dimension = Dimension(
            knob=PROCESSES, values=counts[1:], own=counts[0], effect=Effect.EXACT, changes_rng_streams=False
        )
        return SearchSpace(dimensions={PROCESSES: dimension} if len(counts) > 1 else {}), {}

    def changes(
        self, config: Config, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """Return the file's deliveries, whatever the number of processes."""
        return self._question.changes, ()

    def assign(self, study: Study, trial: Trial) -> Assignment | Failure:
        """Return the same command with the trial's number of processes."""
        count = processes_of(trial.config, self._question.counts[0])
        spec = replace(study.spec, launcher=with_ranks(study.spec.launcher, count))
        return super().assign(replace(study, spec=spec), trial)


def scale(
    question: Question,
    command: Command,
    *,
    label: str,
    budget_s: float,
    head_start_s: float = 0.0,
    wait_for_quiet_s: float = 0.0,
    wait_s: float | None = None,
    share: bool = False,
    listeners: Sequence[Listener] = (),
    runner: Runner | None = None,
) -> Scaled:
    """Measure until the rounds or the budget are used up.

    Args:
        question: Question to measure.
        command: The user's command, with its launcher.
        label: Label of the study for the runs.
        budget_s: Wall time of the whole measurement.
        head_start_s: Seconds of the budget already spent when this was called.
        wait_for_quiet_s: Longest wait for other processes to end, before the first run.
        wait_s: Longest wait for a search on the same machine; None for twice the budget.
        share: Measure beside it after that wait.
        listeners: Receive the study's progress.
        runner: Runs one assignment; None for the default.

    Raises:
        ScriptError: The script fails with the fewest processes.
        UsageError: The script starts its processes by itself.
        StoreError: The study cannot be written.
    """
    clock = SystemClock()
    began_s = clock.now_s() - head_start_s
    spec = spec_of(
        command,
        label=label,
        space=SCALE,
        budget_s=budget_s,
        effective_batch="keep",
        purpose=SCALE,
        wait_for_quiet_s=wait_for_quiet_s,
        wait_s=wait_s,
        share=share,
    )
    facts = facts_of(spec, command)
    with ExitStack() as closers:
        closers.enter_context(learned(spec.args))
        spec, home, journal = create_study(spec, wall_s=clock.wall_s())
        closers.callback(journal.close)
        for kind, data in (("inspected", {"facts": facts}), (SCALING, {"question": question})):
            journal.append(kind, f"{kind}/1", to_wire(data))
        study = _measure(
            question, journal, home, spec, len(facts.host.devices), clock.now_s() - began_s, listeners, runner
        )
    return _found(question, study, home)


def resume_scale(
    directory: Path,
    *,
    budget_s: float | None = None,
    rounds: int | None = None,
    listeners: Sequence[Listener] = (),
    runner: Runner | None = None,
) -> Scaled:
    """Continue at the end of the journal; finished runs are not repeated.

    Args:
        directory: Directory of a study by `scale`.
        budget_s: Further wall time from now; None for what is left.
        rounds: Total number of rounds; None keeps the old number.
        listeners: As for `scale`.
        runner: As for `scale`.

    Raises:
        UsageError: The script was edited since.
        StoreError: It is no study by `scale`.
    """
    journal = Journal.open(directory / JOURNAL_FILE)
    with ExitStack() as closers:
        closers.callback(journal.close)
        entries = list(journal.entries())
        question = _question(entries, directory)
        question = question if rounds is None else replace(question, rounds=rounds)
        study = fold(entries, build=_planner(question).space)
        clear_up(directory, entries, study.spec)
        spec = with_secrets(study.spec)
        if budget_s is not None:
            spec = replace(spec, budget=replace(spec.budget, seconds=study.elapsed_s + budget_s))
        if study.facts is None:
            raise StoreError(f"{directory} ended before anything was known about the script")
        if changed := ScriptWatch(spec.inspected, study.facts.script.sha256)():
            hint = f"measure again: autotune scale -- {user_command(study)}"
            raise UsageError(changed, hint=hint)
        closers.enter_context(learned(spec.args))
        append_opened(journal, spec, wall_s=SystemClock().wall_s())
        study = _measure(
            question,
            journal,
            directory,
            spec,
            len(study.facts.host.devices),
            study.elapsed_s,
            listeners,
            runner,
        )
    return _found(question, study, directory)


def read_scaled(directory: Path) -> Scaled:
    """Return the result of a study by `scale`, from its journal alone.

    Raises:
        StoreError: The study cannot be read, or is not by `scale`.
    """
    with Journal.read(directory / JOURNAL_FILE) as journal:
        entries = list(journal.entries())
    question = _question(entries, directory)
    return _found(question, fold(entries, build=_planner(question, {}).space), directory)


SCALING = "scaling"
"""Kind of the event that holds the question."""


def _question(entries: Sequence[Any], directory: Path) -> Question:
    data = next((entry.data for entry in entries if entry.kind == SCALING), None)
    if data is None:
        raise StoreError(f"{directory} does not record which numbers of processes were measured")
    return from_wire(Question, data["question"])


def _planner(question: Question, environ: Mapping[str, str] | None = None) -> ScalePlanner:
    if environ is None:
        environ = user_environment(os.environ, keep_loggers=False, trial=True)
    return ScalePlanner(question, environ=environ)


def _measure(
    question: Question,
    journal: Journal,
    home: Path,
    spec: StudySpec,
    devices: int,
    elapsed_s: float,
    listeners: Sequence[Listener],
    runner: Runner | None,
) -> Study:
    study = measure(
        journal,
        home,
        spec,
        strategy=ScalingRounds(question.counts, rounds=question.rounds),
        planner=_planner(question),
        elapsed_s=elapsed_s,
        again=f"autotune scale --resume {spec.label}",
        listeners=listeners,
        runner=runner,
        place=lambda assignment: on_first_devices(assignment, devices),
    )
    if own := own_processes(study, question.counts[0]):
        raise UsageError(
            f"{spec.title} starts {own} processes by itself, whatever the launcher's number is",
            hint="measure a script that torchrun starts: "
            "autotune scale -- torchrun --nproc-per-node 2 train.py",
        )
    return study


def _found(question: Question, study: Study, home: Path) -> Scaled:
    found = scaling(study, question.counts, question.price)
    return Scaled(question=question, scaling=found, study=study, study_dir=home)
