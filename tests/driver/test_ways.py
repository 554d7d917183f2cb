"""What was measured is what is written and applied: by the way that it was measured by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from session_fakes import RUN_FACTS, Listed, facts, measurement, spec

from autotune.clock import SimulatedClock
from autotune.driver.loop.planner import Planner, dead_ways
from autotune.driver.loop.session import Session
from autotune.driver.result import changes_of
from autotune.knobs.registry import builtin
from autotune.launch.runner import TrialResult
from autotune.loss.effective_batch_check import unlike_step
from autotune.model.change import Change, Constant, Flag
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import Facts, LoaderFacts, OptimizerFacts, ScriptFlag
from autotune.model.study import DeclaredSpec, Study
from autotune.model.trial import Assignment, Failure, FailureKind, Outcome
from autotune.model.wire import to_wire
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
            assignment.uid, TrialResult(trial=assignment.trial, outcome=outcome, seconds=1.0, facts=OURS)
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
    """Two at once: the one that fails is reported first, and the other one shows later the option acts."""
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


def test_two_options_found_dead_at_once_are_proposed_again_under_their_own_numbers(tmp_path: Path) -> None:
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


SGD = OptimizerFacts(name="SGD", rates=(0.1, 0.01), decays=(5e-4, 0.0))
HALF = Config({"batch_size": 16, "accumulation": 2})
DOUBLE = Config({"batch_size": 64, "effective_batch": 64})


class ByOption(Ways):
    """A script with the option ``--batch-size``, and perhaps one for accumulation."""

    def __init__(self, folder: Path, configs: Sequence[Config], *, accumulates: bool = False) -> None:
        super().__init__(folder, configs)
        names = ("--batch-size", "--accum-steps") if accumulates else ("--batch-size",)
        flags = tuple(
            ScriptFlag(names=(name,), dest=name[2:].replace("-", "_"), kind="int") for name in names
        )
        known = self.session._study.facts
        assert known is not None
        script = replace(known.script, flags=flags)
        self.session._study = replace(self.session._study, facts=replace(known, script=script))
        self.run = replace(
            OURS,
            optimizer=SGD,
            values={"batch_size": 32},
            zero_grad_seen=True,
            reduction="mean",
            loss_scale=1.0,
        )

    def reported(self, assignment: Assignment, **seen: object) -> None:
        requested = assignment.segments[0].config.get("effective_batch", self.run.effective_batch)
        run = replace(self.run, **{"effective_batch": requested, **seen})
        ended = TrialResult(trial=assignment.trial, outcome=measurement(), seconds=1.0, facts=run)
        self.session.tell(assignment.uid, ended)


@pytest.mark.parametrize(
    ("what", "moved"),
    [
        ("learning rate from 0.1 to 0.05", replace(SGD, rates=(0.05, 0.005))),
        ("weight decay from 0.0005 to 0.00025", replace(SGD, decays=(2.5e-4, 0.0))),
    ],
)
def test_an_option_that_moves_the_learning_rate_with_the_batch_gives_way_to_the_loader(
    tmp_path: Path, what: str, moved: OptimizerFacts
) -> None:
    made = ByOption(tmp_path, [Config(), DOUBLE, HALF])
    made.reported(made.ask())
    larger = made.ask()
    # Another effective batch is another training anyhow, and the script's own rule may stand.
    made.reported(larger, optimizer=replace(SGD, rates=(0.2, 0.02)))
    first = made.ask()
    assert way(first.launch.changes) == ["patch", "flag"]
    made.reported(first, optimizer=moved)
    again = made.ask()
    assert (again.segments[0].config, way(again.launch.changes)) == (HALF, ["patch", "keyword"])
    made.reported(again)
    kept = [t.measurement is not None for t in made.session.study.trials]
    assert kept == [True, True, False, True]
    failure = made.session.study.trials[2].failure
    assert failure is not None
    assert failure.kind is FailureKind.CONFIG_REJECTED
    assert what in failure.message
    for study in (made.session.study, made.folded()):
        assert dead_ways(study) == {("batch_size", "flag")}
        assert way(changes_of(study)(DOUBLE)) == ["flag"]
    made.journal.close()


def test_a_rate_that_follows_the_number_of_processes_is_another_training(tmp_path: Path) -> None:
    made = ByOption(tmp_path, [Config()])
    made.reported(made.ask())
    one = Config({"processes": 1, "batch_size": 64})
    trial = replace(made.session.study.trials[0], config=one, changes=())
    moved = replace(made.run, optimizer=replace(SGD, rates=(0.05, 0.005)))
    failure = unlike_step(made.session.study, trial, moved)
    assert failure is not None
    assert "processes=1 does not act alone: the script moves its learning rate" in failure.message
    divided = replace(made.run, effective_batch=made.run.effective_batch * 2)
    failure = unlike_step(made.session.study, trial, divided)
    assert failure is not None
    assert "a step is over 64 samples" in failure.message
    assert unlike_step(made.session.study, trial, made.run) is None
    made.journal.close()


def test_a_rate_that_stays_unchanged_up_to_rounding_leaves_the_option_its_way(tmp_path: Path) -> None:
    made = ByOption(tmp_path, [Config(), HALF])
    made.reported(made.ask())
    made.reported(made.ask(), optimizer=replace(SGD, rates=(0.1001, 0.01)))
    assert made.session.study.trials[1].measurement is not None
    made.journal.close()


def test_a_knob_of_the_users_own_may_be_the_rate(tmp_path: Path) -> None:
    own = DeclaredSpec(name="rate", effect=Effect.TRAINING, values=(0.1, 0.2), spelling=Flag(("--lr",)))
    made = ByOption(tmp_path, [Config(), HALF])
    given = made.session._study.spec
    made.reported(made.ask())
    requested = made.ask()
    trial = replace(made.session.study.trials[1], config=HALF.with_(rate=0.2))
    study = replace(made.session.study, spec=replace(given, space=replace(given.space, declared=(own,))))
    other = replace(made.run, optimizer=replace(SGD, rates=(0.2, 0.02)))
    assert unlike_step(study, trial, other) is None
    assert unlike_step(study, replace(trial, config=HALF), other) is not None
    made.reported(requested)
    made.journal.close()


@pytest.mark.parametrize(("scale", "hows"), [(1.0, ["patch", "flag"]), (0.5, ["flag", "flag"])])
def test_an_option_that_does_not_divide_the_loss_by_its_parts_gives_way(
    tmp_path: Path, scale: float, hows: list[str]
) -> None:
    made = ByOption(tmp_path, [Config(), HALF], accumulates=True)
    made.reported(made.ask())
    first = made.ask()
    assert way(first.launch.changes) == ["flag", "flag"]
    made.reported(first, loss_scale=scale)
    if scale == 1.0:
        failure = made.session.study.trials[1].failure
        assert failure is not None
        assert "2 times that of its own step" in failure.message
        again = made.ask()
        assert way(again.launch.changes) == hows
        made.reported(again)
    study = made.folded()
    assert study.trials[-1].measurement is not None
    assert way(changes_of(study)(HALF)) == hows
    made.journal.close()


@pytest.mark.parametrize(
    ("own", "seen", "hows"),
    [
        ({"shuffles": True}, {"persistent_workers": True}, ["flag", "keyword"]),
        ({"shuffles": True}, {}, ["flag"]),
        ({"shuffles": False}, {"persistent_workers": True}, ["flag"]),
        ({"shuffles": True, "persistent_workers": True}, {"persistent_workers": True}, ["flag"]),
    ],
)
def test_an_option_for_workers_that_deals_the_samples_anew_gives_way_to_the_loader(
    tmp_path: Path, own: dict[str, bool], seen: dict[str, bool], hows: list[str]
) -> None:
    made = Ways(tmp_path, [Config(), TWO])
    known = made.session._study.facts
    assert known is not None
    run = replace(OURS, loader=replace(LOADER, **own))
    made.session._study = replace(made.session._study, facts=replace(known, run=run))

    def reported(assignment: Assignment, **changed: bool) -> None:
        facts = replace(run, loader=replace(LOADER, **{**own, **changed}))
        made.session.tell(
            assignment.uid,
            TrialResult(trial=assignment.trial, outcome=measurement(), seconds=1.0, facts=facts),
        )

    reported(made.ask())
    first = made.ask()
    requested = way(first.launch.changes)
    reported(first, **seen)
    if len(hows) == 2:
        failure = made.session.study.trials[1].failure
        assert failure is not None
        assert "draw other random numbers" in failure.message
        again = made.ask()
        assert again.segments[0].config == TWO
        requested += way(again.launch.changes)
        reported(again)
    assert requested == hows
    assert made.folded().trials[-1].measurement is not None
    made.journal.close()


def test_a_constant_whose_script_derives_the_parts_of_a_step_gives_way(tmp_path: Path) -> None:
    made = ByOption(tmp_path, [Config(), HALF])
    made.reported(made.ask())
    first = made.ask()
    made.reported(first)
    study = made.session.study
    facts = study.facts
    assert facts is not None
    assert facts.run is not None
    study = replace(study, facts=replace(facts, run=replace(facts.run, effective_batch=32)))
    constant = Constant(("B",), file="train.py", line=1, was=32)
    changes = (Change(knob="batch_size", value=16, spelling=constant),)
    halved = Config({"batch_size": 16, "effective_batch": 16})
    trial = replace(study.trials[1], config=halved, changes=changes)
    failure = unlike_step(study, trial, replace(made.run, effective_batch=32))
    assert failure is not None
    assert "a step is over 32 samples with it instead of 16" in failure.message
    assert failure.evidence["how"] == "constant"
    assert unlike_step(study, trial, replace(made.run, effective_batch=16)) is None
    wider = replace(made.run, effective_batch=16, loader=replace(LOADER, dataset_length=500))
    failure = unlike_step(study, trial, wider)
    assert failure is not None
    assert "the dataset has 500 samples with it instead of 1,000" in failure.message
    rejected = replace(study, trials=(*study.trials[:1], replace(trial, outcome=failure)))
    assert ("batch_size", "constant") in dead_ways(rejected)
    made.journal.close()
