"""A whole search on a recorded table, on a virtual clock: the real strategy, session, journal and picks.

Only what starts processes is another (`autotune.testing.replay_runner`). The space is the recorded
configurations and nothing else, for every strategy alike.
"""

from __future__ import annotations

import functools
import heapq
import os
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.answer.space_selection import CANDIDATES
from autotune.clock import SimulatedClock
from autotune.compare.transfer import fingerprint
from autotune.config_files.presets import AUTO_SPACE, built_in, load_space
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.loop.planner import Planner
from autotune.driver.loop.session import Session
from autotune.knobs.registry import knobs_for
from autotune.launch.guard.guard import SHARED_MEMORY
from autotune.model.config import Config
from autotune.model.history_record import Transfer
from autotune.model.space import SearchSpace
from autotune.model.study import Budget, Study, StudySpec
from autotune.model.trial import FailureKind, Family, StartPolicy
from autotune.model.wire import to_wire
from autotune.report.listener import Listener
from autotune.search.samplers.registry import PLANNER, strategy_for
from autotune.search.strategy import Strategy
from autotune.store.journal import Journal
from autotune.testing.replay_runner import ReplayRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autotune.launch.runner import TrialResult
    from autotune.model.facts import Facts
    from autotune.model.history_record import Earlier
    from autotune.model.study import SpaceRequest
    from autotune.model.trial import Assignment, Proposal, Trial
    from autotune.space.choose_delivery import Dead
    from autotune.testing.table import Table

_NOT_RECORDED = "It was not recorded."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpace(SearchSpace):
    """A space of listed configurations: what a table holds.

    Args:
        recorded: All there is to choose from.
    """

    recorded: tuple[Config, ...] = ()

    def size_bound(self) -> int:
        return len(self.recorded)

    def enumerate(self) -> Iterator[Config]:
        yield from (c for c in self.recorded if self.contains(c))


class RecordedPlanner(Planner):
    """Builds the space that a table's script had, with nothing in it that was not recorded.

    Args:
        table: Whose configurations are the candidates, those that have a run to be drawn: a table that grows
            names configurations before it holds them.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(
            knobs=knobs_for(table.header.request), environ={"PATH": "/usr/bin:/bin"}, memory_limit_bytes=0
        )
        drawable = {Config()} | _drawable(table)
        configs = dict.fromkeys((Config(), *table.header.configs))
        self._recorded = tuple(c for c in configs if c in drawable)

    def space(
        self, spec: StudySpec, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[SearchSpace, dict[str, str]]:
        built, refusals = super().space(spec, facts, dead)
        rule = functools.partial(_only, frozenset(self._recorded))
        narrowed = RecordedSpace(
            dimensions=built.dimensions,
            rules=(*built.rules, rule),
            starts=tuple(c for c in built.starts if c in self._recorded),
            fixed=built.fixed,
            recorded=self._recorded,
        )
        return narrowed, refusals


def _drawable(table: Table) -> frozenset[Config]:
    """Configs with a run that a replay draws: what was lost for reasons of the machine is none."""
    lost = (Family.LOST, Family.CANCELLED)
    return frozenset(
        row.config
        for row in table.settled().values()
        if (len(row.blocks) if row.is_ok else FailureKind.named(row.kind).family not in lost)
    )


def _only(recorded: frozenset[Config], config: Config) -> Config | str:
    return config if config in recorded else _NOT_RECORDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Result of a replayed search.

    Args:
        study: The ended study.
        trial_s: Seconds of all processes, summed over workers.
        planning_s: Real seconds of the strategy, which the virtual clock does not count.
    """

    study: Study
    trial_s: float
    planning_s: float


@dataclass(slots=True)
class _Timed(Strategy):
    """A strategy with a stopwatch."""

    inner: Strategy
    seconds: float = field(default=0.0)

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        begun_s = time.perf_counter()
        try:
            return self.inner.ask(study, remaining_s)
        finally:
            self.seconds += time.perf_counter() - begun_s

    def is_finished(self, study: Study, remaining_s: float) -> bool:
        return self.inner.is_finished(study, remaining_s)

    def ending(self, study: Study, remaining_s: float) -> str:
        return self.inner.ending(study, remaining_s)


class _Each(Listener):
    def __init__(self, call: Callable[[Study, Trial], None]) -> None:
        self._call = call

    def trial_ended(self, study: Study, trial: Trial) -> None:
        self._call(study, trial)


def replay(
    table: Table,
    *,
    budget_s: float,
    sampler: str = PLANNER,
    strategy: Strategy | None = None,
    seed: int = 0,
    workers: int = 1,
    limit_bytes: int = 0,
    runner: Callable[..., ReplayRunner] = ReplayRunner,
    folder: Path | None = None,
    each: Callable[[Study, Trial], None] | None = None,
    earlier: Sequence[Earlier] = (),
    start: StartPolicy = StartPolicy.COLD,
) -> Replayed:
    """Search a recorded table.

    Args:
        table: Recorded table; its own request, facts and script make the space.
        budget_s: Virtual seconds.
        sampler: A name of `autotune.search.samplers.registry`.
        strategy: Strategy in place of the sampler's.
        seed: Seed of the search and of draws from the table.
        workers: Concurrent processes; each costs as much as alone.
        limit_bytes: Memory of a smaller machine, see `ReplayRunner`.
        runner: Creates the `ReplayRunner`, or one with other rules.
        folder: Folder of the journal, which is written as in any search. None: a temporary one, in memory if
            the system supports that.
        each: Called after every finished trial, with the study so far.
        earlier: Records of earlier studies at its start, newest first.
        start: How screening trials may be started, as under ``autotune search --start``.

    Raises:
        NotRecorded: A strategy requested a config outside the space.
        UsageError: There is no such sampler.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="autotune-replay-", dir=_memory()) as made:
            return replay(
                table,
                budget_s=budget_s,
                sampler=sampler,
                strategy=strategy,
                seed=seed,
                workers=workers,
                limit_bytes=limit_bytes,
                runner=runner,
                folder=Path(made),
                each=each,
                earlier=earlier,
                start=start,
            )
    clock = SimulatedClock()
    timed = _Timed(strategy or strategy_for(sampler))
    study = _study(table, budget_s=budget_s, sampler=sampler, seed=seed, start=start)
    if earlier:
        transfer = Transfer(present=fingerprint(study), earlier=tuple(earlier))
        study = replace(study, transfer=transfer)
    played = runner(table, seed=seed, clock=clock, limit_bytes=limit_bytes)
    journal = Journal.create(folder / "journal.db", clock=clock, environ={}, ballast_bytes=0)
    try:
        opened = {"spec": study.spec, "wall_s": clock.wall_s(), "host": "", "pid": 0, "version": ""}
        journal.append("opened", f"opened/{journal.epoch}", to_wire(opened))
        journal.append("inspected", "inspected/1", to_wire({"facts": study.facts}))
        if study.transfer is not None:
            journal.append("transferred", "transferred/1", to_wire({"transfer": study.transfer}))
        session = Session(
            journal=journal,
            study=study,
            strategy=timed,
            planner=RecordedPlanner(table),
            clock=clock,
            listeners=() if each is None else (_Each(each),),
        )
        if workers == 1:
            InlineDriver(session, played).run()
        else:
            _side_by_side(session, played, clock, workers)
        ended = session.close()
    finally:
        journal.close()
    return Replayed(study=ended, trial_s=sum(t.seconds for t in ended.trials), planning_s=timed.seconds)


def _memory() -> str | None:
    """Return a file system in memory; None if there is none."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def _study(table: Table, *, budget_s: float, sampler: str, seed: int, start: StartPolicy) -> Study:
    header = table.header
    name = header.workload.name
    spec = StudySpec(
        study_id="replay",
        label=name,
        script=f"/replay/{name}.py",
        args=header.workload.args,
        cwd="/replay",
        python="/usr/bin/python3",
        space=as_searched(header.request),
        budget=Budget(seconds=budget_s),
        effective_batch="keep",
        seed=seed,
        sampler=sampler,
        start=start,
        driver="inline",
    )
    return Study(spec=spec, facts=replace(header.facts, run=None))


def as_searched(request: SpaceRequest) -> SpaceRequest:
    """Return a recorded request in the form of ``autotune search``: the first run chooses starts and order.

    Knobs and values are the recorded ones, in the order of the preset, with other knobs after them. Start
    points are those of the search, as far as they were recorded.
    """
    candidates: list[SpaceRequest] = []
    for name in CANDIDATES:
        preset = load_space(str(built_in(name)), cwd="/")
        order = dict.fromkeys((*preset.knobs, *request.knobs))
        knobs = {knob: request.knobs[knob] for knob in order if knob in request.knobs}
        candidates.append(replace(request, name=name, knobs=knobs, starts=preset.starts))
    return replace(request, name=AUTO_SPACE, candidates=tuple(candidates))


def _side_by_side(session: Session, runner: ReplayRunner, clock: SimulatedClock, workers: int) -> None:
    """Simulate discrete events: idle workers request trials, and results are reported at their time."""
    running: list[tuple[float, int, Assignment, list[TrialResult]]] = []
    begun = 0
    while True:
        while len(running) < workers and (assignment := session.ask()) is not None:
            session.start(assignment)
            ends = list(runner.play(assignment))
            begun += 1
            heapq.heappush(running, (clock.now_s() + ends[-1].seconds, begun, assignment, ends))
        if not running:
            return
        until_s, _, assignment, ends = heapq.heappop(running)
        clock.sleep(until_s - clock.now_s())
        for ended in ends:
            session.tell(assignment.uid, ended)
