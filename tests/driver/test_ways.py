"""What was measured is what is written and applied: by the way that it was measured by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from session_fakes import RUN_FACTS, Listed, facts, measurement, spec

from autotune.clock import SimulatedClock
from autotune.core.config import Config
from autotune.core.facts import Facts, LoaderFacts, ScriptFlag
from autotune.core.study import Study
from autotune.core.trial import Assignment, Failure, FailureKind, Outcome
from autotune.core.wire import to_wire
from autotune.driver.planner import Planner, dead_ways
from autotune.driver.result import changes_of
from autotune.driver.session import Session
from autotune.knobs.registry import builtin
from autotune.launch.runner import Ended
from autotune.store.fold import fold
from autotune.store.journal import Journal

LOADER = LoaderFacts(
    site="train.py:3",
    batch_size=32,
    num_workers=0,
    prefetch_factor=None,
    pin_memory=False,
    persistent_workers=False,
    dataset_length=1000,
)
OURS = replace(RUN_FACTS, loader=LOADER, values={"num_workers": 0})
REJECTED = Failure(
    kind=FailureKind.CONFIG_REJECTED, message="it read 2", evidence={"knob": "num_workers", "how": "flag"}
)
TWO, FOUR, EIGHT = (Config({"num_workers": count}) for count in (2, 4, 8))


def with_option() -> Facts:
    known = facts()
    option = ScriptFlag(names=("--num-workers",), dest="num_workers", kind="int")
    return replace(known, script=replace(known.script, flags=(option,)))


class Ways:
    """A session over a script with the option ``--num-workers``."""

    def __init__(self, folder: Path, configs: Sequence[Config]) -> None:
        self.journal = Journal.create(folder / "journal.db", ballast_bytes=0)
        given = spec()
        opened = {"spec": given, "wall_s": 0.0, "host": "", "pid": 1, "version": "0"}
        self.journal.append("opened", "opened/1", to_wire(opened))
        self.journal.append("inspected", "inspected/1", to_wire({"facts": with_option()}))
        self.session = Session(
            journal=self.journal,
            study=Study(spec=given, facts=with_option()),
            strategy=Listed(configs),
            planner=Planner(knobs=builtin(), environ={}, memory_limit_bytes=0),
            clock=SimulatedClock(),
        )

    def ask(self) -> Assignment:
        assignment = self.session.ask()
        assert assignment is not None
        self.session.start(assignment)
        return assignment

    def tell(self, assignment: Assignment, outcome: Outcome) -> None:
        self.session.tell(
            assignment.uid, Ended(trial=assignment.trial, outcome=outcome, seconds=1.0, facts=OURS)
        )

    def folded(self) -> Study:
        return fold(self.journal.entries())


def way(changes: Sequence[object]) -> list[str]:
    return [change.spelling.how for change in changes]  # type: ignore[attr-defined]


@pytest.fixture
def ways(tmp_path: Path) -> Iterator[Ways]:
    made = Ways(tmp_path, [Config(), TWO, FOUR, FOUR, TWO])
    yield made
    made.journal.close()


def test_an_option_that_fails_for_one_value_stays_for_those_it_was_measured_with(ways: Ways) -> None:
    ways.tell(ways.ask(), measurement())
    first = ways.ask()
    assert way(first.launch.changes) == ["flag"]
    ways.tell(first, measurement())
    ways.tell(ways.ask(), REJECTED)
    again = ways.ask()
    assert (again.segments[0].config, way(again.launch.changes)) == (FOUR, ["keyword"])
    ways.tell(again, measurement())
    second = ways.ask()
    assert (second.segments[0].config, way(second.launch.changes)) == (TWO, ["flag"])
    for study in (ways.session.study, ways.folded()):
        assert dead_ways(study) == {("num_workers", "flag", 4)}
        assert way(changes_of(study)(TWO)) == ["flag"]
        assert way(changes_of(study)(FOUR)) == ["keyword"]


def test_an_option_that_never_acted_is_dead_for_every_value(ways: Ways) -> None:
    ways.tell(ways.ask(), measurement())
    ways.tell(ways.ask(), REJECTED)
    for config in (TWO, FOUR):
        assignment = ways.ask()
        assert (assignment.segments[0].config, way(assignment.launch.changes)) == (config, ["keyword"])
        ways.tell(assignment, measurement())
    assert dead_ways(ways.folded()) == {("num_workers", "flag")}


def test_what_was_measured_while_its_option_seemed_dead_is_written_as_it_was_measured(
    tmp_path: Path,
) -> None:
    """Two at once: the one that fails is told first, and the other one shows later that the option acts."""
    made = Ways(tmp_path, [Config(), TWO, FOUR, FOUR, EIGHT])
    made.tell(made.ask(), measurement())
    two, four = made.ask(), made.ask()
    made.tell(four, REJECTED)
    for config in (FOUR, EIGHT):
        meanwhile = made.ask()
        assert (meanwhile.segments[0].config, way(meanwhile.launch.changes)) == (config, ["keyword"])
        made.tell(meanwhile, measurement())
    made.tell(two, measurement())
    for study in (made.session.study, made.folded()):
        assert changes_of(study)(TWO) == two.launch.changes
        assert way(changes_of(study)(EIGHT)) == ["keyword"]
    made.journal.close()


def test_a_journal_without_ways_exports_what_its_failures_left(ways: Ways) -> None:
    ways.tell(ways.ask(), measurement())
    ways.tell(ways.ask(), measurement())
    ways.tell(ways.ask(), REJECTED)
    study = ways.folded()
    old = replace(study, trials=tuple(replace(trial, changes=None) for trial in study.trials))
    assert dead_ways(old) == {("num_workers", "flag")}
    assert way(changes_of(old)(TWO)) == ["keyword"]


def test_two_options_found_dead_at_once_are_asked_again_under_their_own_numbers(tmp_path: Path) -> None:
    batch = Config({"batch_size": 16})
    made = Ways(tmp_path, [Config(), TWO, batch])
    option = ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int")
    known = made.session._study.facts
    assert known is not None
    script = replace(known.script, flags=(*known.script.flags, option))
    made.session._study = replace(made.session._study, facts=replace(known, script=script))
    made.tell(made.ask(), measurement())
    two, smaller = made.ask(), made.ask()
    assert way(smaller.launch.changes) == ["flag"]
    made.tell(two, REJECTED)
    made.tell(smaller, replace(REJECTED, evidence={"knob": "batch_size", "how": "flag"}))
    again = [made.ask(), made.ask()]
    assert [(a.trial, a.segments[0].config) for a in again] == [(3, TWO), (4, batch)]
    for assignment in again:
        made.tell(assignment, measurement())
    kept = [(t.number, t.config, t.measurement is not None) for t in made.session.study.trials]
    assert kept == [(t.number, t.config, t.measurement is not None) for t in made.folded().trials]
    assert len(kept) == 5
    made.journal.close()
