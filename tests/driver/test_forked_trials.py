"""What the state machine makes of trials that were forked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from driver_worlds import WORLDS
from session_fakes import RUN_FACTS, Listed, PlainPlanner, facts, measurement, spec

from autotune.clock import SimulatedClock
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.loop.session import Session
from autotune.launch.fake import FakeRunner
from autotune.launch.runner import TrialResult
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Assignment, Failure, FailureKind, StartMode, StartPolicy, Trial, TrialState
from autotune.model.wire import to_wire
from autotune.search.fork_eligibility import start_of
from autotune.store.fold import fold
from autotune.store.journal import Journal

RUN = replace(RUN_FACTS, versions={"python": "3.11", "torch": "2.13"}, environ_set=())


class Planner(PlainPlanner):
    """Plans as the real one does how a trial starts."""

    def assign(self, study: Study, trial: Trial) -> Assignment | Failure:
        planned = super().assign(study, trial)
        assert isinstance(planned, Assignment)
        return replace(planned, start=start_of(study, trial))


Make = Callable[..., Session]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    journals: list[Journal] = []

    def session(
        configs: Sequence[Config], *, run: object = RUN, policy: StartPolicy = StartPolicy.FORK
    ) -> Session:
        journals.append(Journal.create(tmp_path / "journal.db"))
        requested = replace(spec(), start=policy)
        journals[-1].append("opened", "opened/1", {"spec": to_wire(requested), "wall_s": 0.0})
        return Session(
            journal=journals[-1],
            study=Study(spec=requested, facts=replace(facts(), run=run)),  # type: ignore[arg-type]
            strategy=Listed(configs),
            planner=Planner(),  # type: ignore[arg-type]
            clock=SimulatedClock(),
        )

    yield session
    for journal in journals:
        journal.close()


def tell(session: Session, outcome: object, *, start: StartMode | None = None) -> tuple[int, int, StartMode]:
    """Let the next trial end so; its number, its attempt and how it was to be started."""
    planned = session.ask()
    assert planned is not None
    session.start(planned)
    started = planned.start if start is None else start
    ended = TrialResult(trial=planned.trial, outcome=outcome, seconds=1.0, start=started)  # type: ignore[arg-type]
    session.tell(planned.uid, ended)
    session._clock.sleep(1.0)
    return planned.trial, planned.attempt, planned.start


def message(session: Session) -> list[str]:
    return [entry.data["text"] for entry in session._journal.entries() if entry.kind == "noted"]


def failure(kind: FailureKind) -> Failure:
    return Failure(kind=kind, message="it broke")


CONFIGS = (Config(), Config({"workers": 1}), Config({"workers": 2}), Config({"workers": 3}))


def test_how_a_trial_was_started_is_journaled(make: Make) -> None:
    session = make(CONFIGS[:3])
    starts = [tell(session, measurement()), tell(session, measurement())]
    starts.append(tell(session, measurement(), start=StartMode.COLD))
    assert [start for _, _, start in starts] == [StartMode.COLD, StartMode.FORK, StartMode.FORK]
    kept = [StartMode.COLD, StartMode.FORK, StartMode.COLD]
    assert [t.start for t in session.study.trials] == kept
    assert [t.start for t in fold(session._journal.entries()).trials] == kept


OTHERS = [k for k in FailureKind if k.family.value not in ("oom", "cancelled")]


@pytest.mark.parametrize("kind", OTHERS)
def test_what_fails_when_it_is_forked_is_started_anew_before_it_counts(make: Make, kind: FailureKind) -> None:
    session = make(CONFIGS[:2])
    tell(session, measurement())
    assert tell(session, failure(kind)) == (1, 1, StartMode.FORK)
    assert session.study.trials[1].state is not TrialState.FINISHED
    assert tell(session, measurement()) == (1, 2, StartMode.COLD)
    assert session.study.trials[1].measurement is not None


def test_running_out_of_memory_is_believed(make: Make) -> None:
    session = make(CONFIGS[:3])
    tell(session, measurement())
    assert tell(session, failure(FailureKind.OOM_HOST)) == (1, 1, StartMode.FORK)
    assert tell(session, measurement()) == (2, 1, StartMode.FORK)


def test_a_failure_that_only_forks_have_ends_them(make: Make) -> None:
    session = make(CONFIGS)
    tell(session, measurement())
    tell(session, failure(FailureKind.CRASH_SIGNAL))
    tell(session, measurement())
    assert [tell(session, measurement())[2] for _ in range(2)] == [StartMode.COLD, StartMode.COLD]
    assert message(session) == [
        "every trial starts in a new interpreter: trial 1 failed when forked and ran in a new interpreter"
    ]


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        # The config's own doing, or that of whoever killed it.
        (FailureKind.NO_METRIC, failure(FailureKind.NO_METRIC)),
        (FailureKind.INFRA_LOST, measurement()),
    ],
)
def test_a_failure_that_is_not_of_being_forked_does_not_end_forks(
    make: Make, kind: FailureKind, again: object
) -> None:
    session = make(CONFIGS[:3])
    tell(session, measurement())
    tell(session, failure(kind))
    assert tell(session, again) == (1, 2, StartMode.COLD)
    assert tell(session, measurement()) == (2, 1, StartMode.FORK)
    assert message(session) == []


def test_who_wanted_forks_is_reported_once_why_there_are_none(make: Make) -> None:
    session = make(CONFIGS[:3], run=replace(RUN, environ_set=("OMP_NUM_THREADS",)))
    assert {tell(session, measurement())[2] for _ in range(3)} == {StartMode.COLD}
    (text,) = message(session)
    assert text.startswith("every trial starts in a new interpreter: the script sets OMP_NUM_THREADS before")


def test_without_a_request_for_forks_only_failed_ones_are_reported(make: Make) -> None:
    session = make(CONFIGS[:3], run=replace(RUN, environ_set=("A",)), policy=StartPolicy.AUTO)
    planned = session.ask()
    assert planned is not None
    session.start(planned)
    notes = (
        "every trial starts in a new interpreter: no overlay",
        "while a trial ran, files of yours changed: a",
    )
    session.tell(
        planned.uid,
        TrialResult(trial=0, outcome=measurement(), seconds=1.0, notes=notes),
    )
    assert {tell(session, measurement())[2] for _ in range(2)} == {StartMode.COLD}
    assert message(session) == [notes[1]]


def test_forks_that_went_wrong_are_always_reported(make: Make) -> None:
    session = make(CONFIGS, policy=StartPolicy.AUTO)
    tell(session, measurement())
    assert tell(session, failure(FailureKind.CRASH_SIGNAL))[2] is StartMode.FORK
    tell(session, measurement())
    tell(session, measurement())
    (text,) = message(session)
    assert "failed when forked" in text


def test_the_plain_loop_lets_its_runner_go(make: Make) -> None:
    closed: list[bool] = []

    class Closing(FakeRunner):
        def close(self) -> None:
            closed.append(True)

    driver = InlineDriver(make(CONFIGS[:1]), Closing(WORLDS["good"], SimulatedClock()))
    driver.close()
    assert closed == [True]
