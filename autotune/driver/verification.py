"""Verification of a best.yaml on this machine: its pick against the unchanged script, in fresh pairs.

Nothing is searched. The session, the runner, the guard and the statistics are those of a search, so that
figures are comparable; the deliveries of values are those of the file. The runs form a separate study, with
the question in an event ``verifying``, and are not sent to MLflow (docs/decisions/0020).
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.clock import SystemClock
from autotune.compare.control import control
from autotune.driver.fixed_study import facts_of, measure, spec_of
from autotune.driver.loop.planner import Planner
from autotune.driver.new_study import create_study
from autotune.errors import NotApplied, StoreError, UsageError
from autotune.knobs.registry import builtin
from autotune.model.change import Change
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import VERIFY, StudySpec
from autotune.model.trial import FailureKind
from autotune.model.wire import from_wire, to_wire
from autotune.report.view.summary import user_command
from autotune.search.confirmation.verification import Verification
from autotune.space.training_environment import user_environment
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import JOURNAL_FILE
from autotune.text.redact import learned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autotune.compare.comparison import Comparison
    from autotune.driver.loop.planner import Dead
    from autotune.export.best_config import PickPart
    from autotune.inspection.command_line import Command
    from autotune.model.change import Refusal
    from autotune.model.facts import Facts
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study
    from autotune.report.listener import Listener

log = logging.getLogger(__name__)

_AGAIN: Final = "verify again: autotune verify best.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRequest:
    """Question of a verification.

    Args:
        pick: Its name in the file.
        changes: Deliveries of its values.
        effect: Effect on the training.
        pairs: Largest number of pairs.
        at_least: Ratio that the lower bound must exceed for the verdict ``faster``.
    """

    pick: str
    changes: tuple[Change, ...]
    effect: Effect
    pairs: int = 10
    at_least: float = 1.0

    @property
    def config(self) -> Config:
        """Config of the changes."""
        return Config({change.knob: change.value for change in self.changes})

    @property
    def strategy(self) -> Verification:
        """Strategy that asks the question, and judges the measurements."""
        return Verification(self.config, most_pairs=self.pairs, at_least=self.at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of a verification.

    Args:
        request: The question.
        verdict: ``faster``, ``no_difference``, ``slower``, ``worse`` (its loss is) or ``failed``.
        because: Reason for ``no_difference``, from `Verification.because`; else empty.
        comparison: The pick against the script; None without a pair.
        identical: The script against itself; None with too few runs.
        study: All runs.
        study_dir: The study's directory.
    """

    request: VerificationRequest
    verdict: str
    because: str
    comparison: Comparison | None
    identical: Estimate | None
    study: Study
    study_dir: Path


class FixedPlanner(Planner):
    """Planner of the unchanged script and one config with fixed deliveries."""

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
        """Return the config's knobs only, each with its one value."""
        dimensions = {c.knob: self._dimension(c, facts) for c in self._changes}
        return SearchSpace(dimensions=dimensions), {}

    def changes(
        self,
        config: Config,
        facts: Facts,
        dead: Dead = frozenset(),
    ) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """Return the deliveries in the file."""
        return (self._changes if config else ()), ()

    def _dimension(self, change: Change, facts: Facts) -> Dimension:
        knob = self._knobs.get(change.knob)
        # For a user-declared knob only the effect of the whole pick is known.
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
    """Run pairs until the verdict is certain, or the pairs or the budget are used up.

    Args:
        pick: Pick of a best.yaml.
        command: The user's command.
        changes: Permitted deliveries of the pick (`autotune.space.accept_changes`).
        label: Label of the study for the runs.
        budget_s: Wall time of the whole verification.
        name: Name of the pick.
        pairs: Largest number of pairs.
        at_least: Ratio that the lower bound must exceed for the verdict ``faster``.
        head_start_s: Seconds of the budget already spent when this was called.
        wait_for_quiet_s: Longest wait for other processes to end, before the first run.
        wait_s: Longest wait for a search on the same CPUs or accelerators; None for twice the budget.
        share: Measure beside it after that wait.
        listeners: Notified of its progress.

    Raises:
        UsageError: The pick changes nothing; or the script was edited, or the budget ended, before its first
            measurement.
        ScriptError: The script fails unchanged.
        NotApplied: A knob of the pick does not take effect here.
        StoreError: The study cannot be written.
    """
    if not pick.changes:
        raise UsageError("this pick is the unchanged script: there is nothing to verify")
    clock = SystemClock()
    began_s = clock.now_s() - head_start_s
    request = VerificationRequest(
        pick=name, changes=tuple(changes), effect=Effect[pick.effect], pairs=pairs, at_least=at_least
    )
    spec = spec_of(
        command,
        label=label,
        space="verify",
        budget_s=budget_s,
        effective_batch="keep",
        purpose=VERIFY,
        wait_for_quiet_s=wait_for_quiet_s,
        wait_s=wait_s,
        share=share,
    )
    facts = facts_of(spec, command)
    planner = _planner(request)
    with ExitStack() as closers:
        closers.enter_context(learned(spec.args))
        spec, home, journal = create_study(spec, wall_s=clock.wall_s())
        closers.callback(journal.close)
        _append_question(journal, facts, request)
        study = measure(
            journal,
            home,
            spec,
            strategy=request.strategy,
            planner=planner,
            elapsed_s=clock.now_s() - began_s,
            again=_AGAIN,
            listeners=listeners,
        )
    found = _judged(request, study, home)
    if found.verdict == "failed" and (reason := _not_applied(study, request.config)):
        raise NotApplied(
            f"{name} does not take effect here: {reason}",
            hint=f"search on this machine: autotune search -- {user_command(study)}",
        )
    return found


def read_verified(directory: Path) -> Verified:
    """Return the result of a verification, from its journal alone.

    Raises:
        StoreError: The study cannot be read, or is not by `verify`.
    """
    with Journal.read(directory / JOURNAL_FILE) as journal:
        entries = list(journal.entries())
    data = next((entry.data for entry in entries if entry.kind == "verifying"), None)
    if data is None:
        raise StoreError(f"{directory} does not contain what was verified")
    request: VerificationRequest = VerificationRequest(
        pick=str(data["pick"]),
        changes=from_wire(tuple[Change, ...], data["changes"]),
        effect=Effect[str(data["effect"])],
        pairs=int(data["pairs"]),
        at_least=float(data["at_least"]),
    )
    planner = FixedPlanner(request.changes, request.effect, environ={})
    return _judged(request, fold(entries, build=planner.space), directory)


def _judged(request: VerificationRequest, study: Study, home: Path) -> Verified:
    strategy = request.strategy
    return Verified(
        request=request,
        verdict=strategy.verdict(study),
        because=strategy.because(study),
        comparison=strategy.comparison(study),
        identical=control(study),
        study=study,
        study_dir=home,
    )


def _planner(request: VerificationRequest) -> FixedPlanner:
    return FixedPlanner(
        request.changes,
        request.effect,
        environ=user_environment(os.environ, keep_loggers=False, trial=True),
    )


def _append_question(journal: Journal, facts: Facts, request: VerificationRequest) -> None:
    question = {
        "pick": request.pick,
        "changes": request.changes,
        "effect": request.effect,
        "pairs": request.pairs,
        "at_least": request.at_least,
    }
    rows: tuple[tuple[str, dict[str, Any]], ...] = (
        ("inspected", {"facts": facts}),
        ("verifying", question),
    )
    for kind, data in rows:
        journal.append(kind, f"{kind}/1", to_wire(data))


def _not_applied(study: Study, config: Config) -> str:
    """Return why a knob did not take effect, empty if all did."""
    failures = [t.failure for t in study.of(config) if t.failure is not None]
    return next((f.message for f in failures if f.kind is FailureKind.CONFIG_REJECTED), "")
