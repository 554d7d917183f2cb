"""Does a best.yaml hold here and now? Its pick against the script as it is, in fresh interleaved pairs.

Nothing is searched. The session, the runner, the guard and the statistics are those of a search, so that a
figure means the same; the ways by which values reach the script are those of the file.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.apply.environment import user_environment
from autotune.clock import SystemClock
from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.facts import Facts
from autotune.core.pick import control
from autotune.core.space import Dimension, SearchSpace
from autotune.core.study import Budget, SpaceRequest, StudySpec
from autotune.core.wire import to_wire
from autotune.driver.ending import why_nothing
from autotune.driver.inline import InlineDriver
from autotune.driver.planner import Planner
from autotune.driver.session import ENDING_S, Session
from autotune.driver.signals import breakable, polite_ending
from autotune.errors import UsageError
from autotune.export.best_config import core_changes
from autotune.inspection.host import host_facts
from autotune.inspection.script import script_facts
from autotune.knobs.registry import builtin
from autotune.launch import enclosure
from autotune.launch.process import LocalRunner
from autotune.search.verification import Verification
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.outbox import rows_for
from autotune.store.paths import new_id, study_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.change import Change, Refusal
    from autotune.core.measurement import Estimate
    from autotune.core.pick import Comparison
    from autotune.core.study import Study
    from autotune.driver.planner import Dead
    from autotune.export.best_config import PickPart
    from autotune.inspection.command import Command
    from autotune.report.listener import Listener

_MEMORY_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a verification found.

    Args:
        verdict: ``faster``, ``no_difference``, ``slower``, ``worse`` (its loss is) or ``failed``.
        comparison: The pick against the script; None without a pair.
        identical: The script against itself; None with too few runs.
        study: Every run of it.
    """

    verdict: str
    comparison: Comparison | None
    identical: Estimate | None
    study: Study


class FixedPlanner(Planner):
    """Plans the script as it is and one config, whose changes were settled when it was found."""

    def __init__(
        self, changes: Sequence[Change], effect: Effect, *, environ: Mapping[str, str], memory: int
    ) -> None:
        super().__init__(knobs=builtin(), environ=environ, memory_limit_bytes=memory)
        self._changes = tuple(changes)
        self._effect = effect

    @property
    def config(self) -> Config:
        """What the changes amount to."""
        return Config({change.knob: change.value for change in self._changes})

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
        redeals = knob.redeals(facts) if knob is not None else self._effect is not Effect.EXACT
        return Dimension(knob=change.knob, values=(change.value,), own=None, effect=effect, redeals=redeals)


def verify(
    pick: PickPart,
    command: Command,
    *,
    label: str,
    budget_s: float,
    pairs: int = 10,
    at_least: float = 1.0,
    listeners: Sequence[Listener] = (),
) -> Verified:
    """Run pairs until the answer is settled, the pairs are used up, or the budget is.

    Args:
        pick: Of a best.yaml.
        command: How the user starts the script.
        label: Of the study that holds the runs.
        budget_s: Wall time for all of it.
        pairs: At most so many.
        at_least: The ratio that the lower bound has to clear to be called faster.
        listeners: Told as it goes.

    Raises:
        UsageError: The pick changes nothing.
        ScriptError: The script fails by itself.
    """
    if not pick.changes:
        raise UsageError("this pick is the script as it is: there is nothing to verify")
    clock = SystemClock()
    began_s = clock.now_s()
    spec = StudySpec(
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
        module=command.module,
        options=command.options,
        source=command.source,
    )
    must = enclosure.protected(spec.script, spec.cwd, os.environ)
    host = replace(host_facts(), isolation=enclosure.available(must=must))
    facts = Facts(host=host, script=script_facts(command.inspected), effective_batch_rule="keep")
    planner = FixedPlanner(
        core_changes(pick),
        Effect[pick.effect],
        environ=user_environment(os.environ, keep_loggers=False, trial=True),
        memory=int(_MEMORY_SHARE * host.memory_bytes),
    )
    strategy = Verification(planner.config, most_pairs=pairs, at_least=at_least)
    home = study_dir(spec.study_id)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as closers:
        journal = Journal.create(home / "journal.db")
        closers.callback(journal.close)
        _opened(journal, spec, clock.wall_s(), facts)
        session = Session(
            journal=journal,
            study=fold(journal.entries(), build=planner.space),
            strategy=strategy,
            planner=planner,
            clock=clock,
            elapsed_s=clock.now_s() - began_s,
            ending_s=ENDING_S,
            listeners=listeners,
        )
        for listener in listeners:
            listener.study_began(session.study)
        driver = InlineDriver(session, LocalRunner(study_dir=home, isolation=host.isolation))

        def stop(why: str) -> None:
            session.stop(why)
            driver.interrupt()

        with polite_ending(stop) as arm, breakable():
            driver.run(arm)
        study = session.close()
        for listener in listeners:
            listener.study_ended(study)
    if not any(trial.measurement for trial in study.baseline):
        raise why_nothing(study)
    return Verified(
        verdict=strategy.verdict(study),
        comparison=strategy.comparison(study),
        identical=control(study),
        study=study,
    )


def _opened(journal: Journal, spec: StudySpec, wall_s: float, facts: Facts) -> None:
    opened = {"spec": spec, "wall_s": wall_s, "host": "", "pid": os.getpid(), "version": ""}
    for kind, uid, data in (
        ("opened", f"opened/{journal.epoch}", opened),
        ("inspected", "inspected/1", {"facts": facts}),
    ):
        wired: dict[str, object] = to_wire(data)
        journal.append(kind, uid, wired, outbox=rows_for(kind, wired))
