"""The state machine: what is proposed, journaled, reported, repeated and never repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_fakes import FIDELITY, RUN_FACTS, Listed, PlainPlanner, facts, measurement, spec

from autotune.clock import SimulatedClock
from autotune.compare.disturbances import busy_notes
from autotune.driver.loop import session as session_module
from autotune.driver.loop.session import Session
from autotune.driver.spec import MIN_BUDGET_S
from autotune.errors import BackendError, DiskFull
from autotune.launch.devices.claims import Claim
from autotune.launch.runner import NOT_BEGUN, TrialResult
from autotune.model.config import Config
from autotune.model.facts import DeviceFacts
from autotune.model.machine_load import Culprit, MachineLoad
from autotune.model.measurement import Contamination, Measurement
from autotune.model.roofline import Remainder
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Proposal, Stage, Trial, TrialState
from autotune.model.wire import to_wire
from autotune.report.listener import Listener
from autotune.search.costs import Costs
from autotune.store.fold import fold
from autotune.store.journal import Journal

MakeSession = Callable[..., Session]


@pytest.fixture
def make_session(tmp_path: Path) -> Iterator[MakeSession]:
    journals: list[Journal] = []

    def make(
        configs: Sequence[Config], *, budget_s: float = 300.0, planner: PlainPlanner | None = None
    ) -> Session:
        journals.append(Journal.create(tmp_path / "journal.db"))
        return Session(
            journal=journals[-1],
            study=Study(spec=spec(budget_s), facts=facts()),
            strategy=Listed(configs),
            planner=planner or PlainPlanner(),
            clock=SimulatedClock(),
        )

    yield make
    for journal in journals:
        journal.close()


class Heard(Listener):
    """Keeps the messages to users."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, study: Study, text: str) -> None:
        self.notes.append(text)


def failure(kind: FailureKind, **evidence: str | int) -> Failure:
    return Failure(kind=kind, message="it broke", evidence=evidence)


def tell_next(session: Session, outcome: object, seconds: float = 1.0) -> int:
    assignment = session.ask()
    assert assignment is not None
    session.start(assignment)
    ended = TrialResult(trial=assignment.trial, outcome=outcome, seconds=seconds, facts=RUN_FACTS)  # type: ignore[arg-type]
    session.tell(assignment.uid, ended)
    return assignment.trial


def kinds(session: Session) -> list[str]:
    return [entry.kind for entry in session._journal.entries()]


def test_a_trial_is_journaled_before_anyone_can_run_it(make_session: MakeSession) -> None:
    session = make_session([Config()])
    assignment = session.ask()
    assert assignment is not None
    assert kinds(session) == ["proposed"]


def test_the_space_is_built_when_the_first_baseline_was_measured(make_session: MakeSession) -> None:
    planner = PlainPlanner()
    session = make_session([Config(), Config(), Config({"workers": 1})], planner=planner)
    assert session.study.space is None
    tell_next(session, measurement())
    assert session.study.space is not None
    tell_next(session, measurement())
    assert len(planner.spaces_built) == 1
    assert session.study.refusals == {"precision": "There is no bf16 here."}


def test_a_failing_baseline_ends_the_search(make_session: MakeSession) -> None:
    session = make_session([Config(), Config()])
    tell_next(session, failure(FailureKind.CRASH_EXIT))
    assert session.ask() is None
    assert session.is_over
    assert session.close().stopped == "no_baseline"


def test_half_of_a_pair_is_left_open_where_its_time_does_not_suffice(tmp_path: Path) -> None:
    """Cut short it would be a timeout, and that a failure of its config."""

    def begun(budget_s: float) -> Session:
        reported = [
            Trial(
                number=n,
                config=Config(),
                stage=Stage.BASELINE,
                fidelity=FIDELITY,
                reason="",
                state=TrialState.FINISHED,
                outcome=measurement(100.0),
                seconds=25.0,
            )
            for n in (0, 1)
        ]
        half = replace(
            reported[0], number=2, stage=Stage.CONFIRM, group=1, state=TrialState.WAITING, outcome=None
        )
        return Session(
            journal=journal,
            study=Study(spec=spec(budget_s), facts=facts(), trials=(*reported, half)),
            strategy=Listed([]),
            planner=PlainPlanner(),
            clock=SimulatedClock(),
        )

    with Journal.create(tmp_path / "journal.db") as journal:
        enough = begun(60.0).ask()
        assert enough is not None
        assert enough.trial == 2
        short = begun(30.0)
        assert short.ask() is None
        assert short.is_over
        assert [t.number for t in short.close().open_trials] == [2]


def test_what_was_lost_is_proposed_again_and_at_most_three_times(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    numbers = []
    while (assignment := session.ask()) is not None:
        numbers.append((assignment.trial, assignment.attempt))
        session.start(assignment)
        session.tell(
            assignment.uid,
            TrialResult(trial=assignment.trial, outcome=failure(FailureKind.INFRA_LOST), seconds=1.0),
        )
    assert numbers == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert session.study.trials[1].state is TrialState.FINISHED


def test_a_trial_that_had_no_room_to_begin_is_left_open_and_ends_the_search(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1}), Config({"workers": 2})])
    tell_next(session, measurement())
    # What the script itself met may be its config's doing: workers fill a small /dev/shm.
    assert tell_next(session, failure(FailureKind.DISK, log_tail="No space left on device")) == 1
    with pytest.raises(DiskFull, match="it broke"):
        tell_next(session, failure(FailureKind.DISK, **{NOT_BEGUN: "1"}))
    assert session.ask() is None
    assert kinds(session)[-1] == "requeued"
    study = session.close()
    assert study.stopped == "disk"
    assert [t.state for t in study.trials] == [TrialState.FINISHED, TrialState.FINISHED, TrialState.WAITING]


def test_where_no_process_can_be_started_any_more_not_every_trial_is_spent_on_it(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1}), Config({"workers": 2})])
    tell_next(session, measurement())
    for _ in range(FailureKind.INFRA_LOST.repeats):
        assert tell_next(session, failure(FailureKind.INFRA_LOST, **{NOT_BEGUN: "1"})) == 1
    with pytest.raises(BackendError, match="it broke"):
        tell_next(session, failure(FailureKind.INFRA_LOST, **{NOT_BEGUN: "1"}))
    study = session.close()
    assert study.stopped == "backend"
    assert [t.state for t in study.trials] == [TrialState.FINISHED, TrialState.WAITING]


@pytest.mark.parametrize(("devices", "ends"), [(1, True), (2, False)])
def test_a_device_that_computes_no_more_ends_the_search_where_it_is_the_only_one(
    tmp_path: Path, *, devices: int, ends: bool
) -> None:
    """Every trial that follows would wait for it, fail, and be reported as failed."""
    gone = {NOT_BEGUN: "1", "device": "GPU-0"}
    device = DeviceFacts(name="x", uuid="GPU-0", memory_bytes=1)
    known = facts()
    known = replace(known, host=replace(known.host, devices=(device,) * devices))
    with Journal.create(tmp_path / "journal.db") as journal:
        session = Session(
            journal=journal,
            study=Study(spec=replace(spec(), driver="ray"), facts=known),
            strategy=Listed([Config(), Config({"workers": 1}), Config({"workers": 2})]),
            planner=PlainPlanner(),
            clock=SimulatedClock(),
        )
        tell_next(session, measurement())
        for _ in range(FailureKind.INFRA_LOST.repeats):
            tell_next(session, failure(FailureKind.INFRA_LOST, **gone))
        if ends:
            with pytest.raises(BackendError, match="it broke"):
                tell_next(session, failure(FailureKind.INFRA_LOST, **gone))
            assert session.study.trials[1].state is TrialState.WAITING
        else:
            tell_next(session, failure(FailureKind.INFRA_LOST, **gone))
            assert session.ask() is not None


def test_on_a_cluster_one_node_without_room_does_not_end_the_search(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db") as journal:
        session = Session(
            journal=journal,
            study=Study(spec=replace(spec(), driver="ray", ray_address="ray://head:10001"), facts=facts()),
            strategy=Listed([Config(), Config({"workers": 1}), Config({"workers": 2})]),
            planner=PlainPlanner(),
            clock=SimulatedClock(),
        )
        tell_next(session, measurement())
        tell_next(session, failure(FailureKind.DISK, **{NOT_BEGUN: "1"}))
        assert session.ask() is not None
        assert session.study.trials[1].state is TrialState.FINISHED


def test_a_run_that_only_explains_and_finds_no_room_leaves_the_answer_unchanged(tmp_path: Path) -> None:
    @dataclass
    class Explained(Listed):
        def ask(self, study: Study, remaining_s: float) -> Proposal | None:
            requested = super().ask(study, remaining_s)
            return (
                requested
                if requested is None or not study.trials
                else replace(requested, stage=Stage.DIAGNOSE)
            )

    with Journal.create(tmp_path / "journal.db") as journal:
        session = Session(
            journal=journal,
            study=Study(spec=spec(), facts=facts()),
            strategy=Explained([Config(), Config(), Config()]),
            planner=PlainPlanner(),
            clock=SimulatedClock(),
        )
        tell_next(session, measurement())
        tell_next(session, failure(FailureKind.DISK, **{NOT_BEGUN: "1"}))
        assert session.study.trials[1].state is TrialState.FINISHED
        assert session.close().stopped == "finished"


def test_a_script_that_never_started_has_failed(make_session: MakeSession) -> None:
    session = make_session([Config(), Config()])
    for _ in range(FailureKind.INFRA_LOST.repeats + 1):
        tell_next(session, failure(FailureKind.INFRA_LOST, **{NOT_BEGUN: "1"}))
    assert session.close().stopped == "no_baseline"


def test_what_trials_tell_for_people_is_reported_once(make_session: MakeSession) -> None:
    session = make_session([Config(), Config(), Config({"workers": 1})])
    for n in range(3):
        assignment = session.ask()
        assert assignment is not None
        session.start(assignment)
        notes = (f"it writes (file {n})", *(("another thing: x",) if n else ()))
        ended = TrialResult(
            trial=assignment.trial, outcome=measurement(), seconds=1.0, facts=RUN_FACTS, notes=notes
        )
        session.tell(assignment.uid, ended)
        session._clock.sleep(1.0)
    message = [entry.data["text"] for entry in session._journal.entries() if entry.kind == "noted"]
    assert message == ["it writes (file 0)", "another thing: x"]


TOLD_TO_END: list[Failure] = [
    failure(FailureKind.KILLED_USER),
    failure(FailureKind.INFRA_LOST),
    failure(FailureKind.CRASH_SIGNAL, signal=15),
    failure(FailureKind.CRASH_SIGNAL, signal=10),
    failure(FailureKind.CRASH_EXIT, code=143),
    failure(FailureKind.CRASH_EXIT, error="KeyboardInterrupt"),
    failure(FailureKind.WARMUP_SHORT),
]
"""How a trial ends that a signal to the whole job has ended, before the driver could."""


@pytest.mark.parametrize("outcome", TOLD_TO_END, ids=lambda f: f"{f.kind.label} {dict(f.evidence)}")
def test_what_ends_with_the_search_stays_open_for_a_resume(
    make_session: MakeSession, outcome: Failure
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    assignment = session.ask()
    assert assignment is not None
    session.start(assignment)
    session.stop("signal")
    session.tell(assignment.uid, TrialResult(trial=assignment.trial, outcome=outcome, seconds=1.0))
    assert kinds(session)[-1] == "requeued"
    assert [trial.number for trial in session.study.open_trials] == [assignment.trial]


def test_what_fails_by_itself_while_a_search_stops_is_reported(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    assignment = session.ask()
    assert assignment is not None
    session.stop("signal")
    outcome = failure(FailureKind.OOM_HOST)
    session.tell(assignment.uid, TrialResult(trial=assignment.trial, outcome=outcome, seconds=1.0))
    assert kinds(session)[-1] == "finished"


@pytest.mark.parametrize("comes", [True, False])
def test_a_signal_that_reaches_the_trial_first_is_waited_for(make_session: MakeSession, comes: bool) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    assignment = session.ask()
    assert assignment is not None
    late = threading.Timer(0.2, session.stop, ["signal"])
    if comes:
        late.start()
    outcome = failure(FailureKind.CRASH_SIGNAL, signal=15)
    session.tell(assignment.uid, TrialResult(trial=assignment.trial, outcome=outcome, seconds=1e6))
    assert kinds(session)[-1] == ("requeued" if comes else "finished")


def test_the_study_is_there_for_who_writes_the_answer_whatever_holds_the_session_up(
    make_session: MakeSession,
) -> None:
    """As at the end of the budget, when a listener or a disk does not come back."""
    session = make_session([Config()])
    tell_next(session, measurement())
    seen: list[Study] = []
    with session._lock:
        looking = threading.Thread(target=lambda: seen.append(session.study), daemon=True)
        looking.start()
        looking.join(5.0)
    assert [len(study.trials) for study in seen] == [1]


def test_names_that_are_no_text_are_spelled_out_and_cost_nothing(make_session: MakeSession) -> None:
    """As Python has them of a file that another program named in another encoding."""
    heard = Heard()
    session = make_session([Config(), Config({"workers": 1})])
    session._listeners = (heard,)
    assignment = session.ask()
    assert assignment is not None
    session.start(assignment)
    notes = ("the script writes into its project (caf\udce9.jpg)",)
    session.tell(
        assignment.uid,
        TrialResult(trial=assignment.trial, outcome=measurement(), seconds=1.0, facts=RUN_FACTS, notes=notes),
    )
    broken = Failure(
        kind=FailureKind.NO_METRIC, message="no file caf\udce9.jpg", evidence={"log_tail": "a \ud83d \\"}
    )
    tell_next(session, broken)
    failed = session.study.trials[1].failure
    assert failed is not None
    assert failed.message == r"no file caf\udce9.jpg"
    assert failed.evidence["log_tail"] == "a \\ud83d \\"
    reported = [entry.data["outcome"] for entry in session._journal.entries() if entry.kind == "finished"]
    assert reported[1]["message"] == failed.message
    assert r"the script writes into its project (caf\udce9.jpg)" in heard.notes


def test_an_out_of_memory_is_never_repeated(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1}), Config({"workers": 2})])
    tell_next(session, measurement())
    assert tell_next(session, failure(FailureKind.OOM_HOST)) == 1
    assert tell_next(session, measurement()) == 2


def test_an_option_of_the_script_that_does_not_act_is_replaced_by_another_way(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    tell_next(session, failure(FailureKind.CONFIG_REJECTED, knob="workers", how="flag"))
    again = session.ask()
    assert again is not None
    assert again.segments[0].config == Config({"workers": 1})
    assert again.trial == 2


def test_without_another_way_the_rejection_stands(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})], planner=PlainPlanner(other_way=False))
    tell_next(session, measurement())
    tell_next(session, failure(FailureKind.CONFIG_REJECTED, knob="workers", how="flag"))
    assert session.ask() is None
    assert session.is_over


def test_a_knob_without_any_way_is_reported_without_a_process(make_session: MakeSession) -> None:
    planner = PlainPlanner(dead_knobs=frozenset({"odd"}))
    session = make_session([Config(), Config({"odd": 1}), Config({"workers": 1})], planner=planner)
    tell_next(session, measurement())
    assert tell_next(session, measurement()) == 2
    assert session.study.trials[1].failure is not None


@pytest.mark.parametrize(
    ("stages", "reasons", "written"),
    [
        ([Stage.BASELINE, Stage.INITIAL, Stage.CONFIRM, Stage.CONFIRM], ["", "", "2", "2"], ["2", "2"]),
        (
            [Stage.BASELINE, Stage.INITIAL, Stage.CONFIRM, Stage.REFINE, Stage.DIAGNOSE],
            ["", "", "2", "", ""],
            ["2", "", "5"],
        ),
    ],
)
def test_why_nothing_new_is_tried_is_written_down_and_taken_back_where_something_is(
    tmp_path: Path, stages: list[Stage], reasons: list[str], written: list[str]
) -> None:
    @dataclass
    class InStages(Listed):
        def ask(self, study: Study, remaining_s: float) -> Proposal | None:
            requested = super().ask(study, remaining_s)
            return None if requested is None else replace(requested, stage=stages[len(study.trials)], group=1)

        def ending(self, study: Study, remaining_s: float) -> str:
            return str(len(study.trials))

    configs = [Config({"workers": n % 2}) if n % 2 else Config() for n in range(len(stages))]
    with Journal.create(tmp_path / "journal.db") as journal:
        began = {"spec": spec(), "wall_s": 1.0, "host": "h", "pid": 1, "version": "1"}
        journal.append("opened", "opened/1", began)
        session = Session(
            journal=journal,
            study=Study(spec=spec(), facts=facts()),
            strategy=InStages(configs),
            planner=PlainPlanner(),
            clock=SimulatedClock(),
        )
        for reason in reasons:
            tell_next(session, measurement())
            assert session.study.because == reason
        assert session.ask() is None
        session.close()
        assert [e.data["because"] for e in journal.entries() if "because" in e.data] == written
        assert fold(journal.entries()).because == written[-1]


def test_a_late_answer_changes_nothing(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    before = session.study.trials
    session.tell("t0-a1", TrialResult(trial=0, outcome=failure(FailureKind.CRASH_EXIT), seconds=1.0))
    assert session.study.trials == before
    assert kinds(session)[-1] == "late"


def test_nothing_is_requested_when_the_budget_is_too_short_for_a_process(make_session: MakeSession) -> None:
    shortest_s = session_module.ENDING_S + session_module.KILL_S + session_module.SHORTEST_TRIAL_S
    assert make_session([Config()], budget_s=shortest_s - 1.0).ask() is None


def test_deadlines_end_inside_the_budget(make_session: MakeSession) -> None:
    session = make_session([Config()], budget_s=25.0)
    assignment = session.ask()
    assert assignment is not None
    assert (
        assignment.segments[0].fidelity.deadline_s <= 25.0 - session_module.ENDING_S - session_module.KILL_S
    )


def test_after_a_stop_nothing_more_is_requested_and_open_trials_stay_open(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    assignment = session.ask()
    assert assignment is not None
    session.stop("interrupted")
    assert session.ask() is None
    study = session.close()
    assert study.stopped == "interrupted"
    assert [t.state for t in study.trials] == [TrialState.FINISHED, TrialState.WAITING]


OUTCOMES = st.lists(
    st.sampled_from(["ok", "oom_host", "crash_exit", "infra_lost", "config_rejected", "killed_user"]),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outcomes=OUTCOMES, cut=st.integers(0, 60))
def test_any_prefix_of_the_journal_folds_to_a_study_that_can_go_on(
    tmp_path_factory: pytest.TempPathFactory, outcomes: list[str], cut: int
) -> None:
    folder: Path = tmp_path_factory.mktemp("prefix")
    journal = Journal.create(folder / "journal.db")
    opened = {"spec": spec(), "wall_s": 0.0, "host": "", "pid": 1, "version": "0"}
    journal.append("opened", f"opened/{journal.epoch}", to_wire(opened))
    journal.append("inspected", "inspected/1", to_wire({"facts": facts()}))
    configs = [Config(), *(Config({"workers": n}) for n in range(1, len(outcomes) + 1))]
    planner = PlainPlanner()
    session = Session(
        journal=journal,
        study=Study(spec=spec(), facts=facts()),
        strategy=Listed(configs),
        planner=planner,  # type: ignore[arg-type]
        clock=SimulatedClock(),
    )
    tell_next(session, measurement())
    for word in outcomes:
        if (assignment := session.ask()) is None:
            break
        session.start(assignment)
        outcome = (
            measurement() if word == "ok" else failure(FailureKind.named(word), knob="workers", how="flag")
        )
        session.tell(assignment.uid, TrialResult(trial=assignment.trial, outcome=outcome, seconds=1.0))
    entries = list(journal.entries())
    full = fold(entries, build=planner.space)
    assert [replace(t, finished_s=0.0) for t in full.trials] == [
        replace(t, finished_s=0.0) for t in session.study.trials
    ]
    part = fold(entries[: max(2, min(cut, len(entries)))], build=planner.space)
    reported = [t for t in part.trials if t.state is TrialState.FINISHED]
    assert all(t.outcome is not None for t in reported)
    assert {t.number for t in reported} <= {t.number for t in full.trials}
    journal.close()


def crowded(rate: float, cores: float) -> Measurement:
    return replace(measurement(rate), contamination=Contamination(foreign_cpu_frac=cores))


def flags(session: Session, number: int) -> tuple[str, ...]:
    measured = session.study.trials[number].measurement
    assert measured is not None
    return measured.contamination.flags


def test_a_run_that_a_neighbour_disturbed_is_repeated_twice_at_most_and_marked_then(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, crowded(100, 0.05))
    for _ in range(2):
        assert tell_next(session, crowded(30, 1.0)) == 1
        assert session.study.trials[1].state is TrialState.WAITING
    assert tell_next(session, crowded(30, 1.0)) == 1
    assert session.study.trials[1].state is TrialState.FINISHED
    assert flags(session, 1) == ("neighbour",)
    reported = [entry.data for entry in session._journal.entries() if entry.kind == "finished"]
    assert reported[1]["outcome"]["contamination"]["flags"] == ["neighbour"], "written down as well"


def test_runs_that_were_set_aside_for_a_neighbour_use_up_no_repeats_of_failures(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, crowded(100, 0.05))
    for _ in range(2):
        tell_next(session, crowded(30, 1.0))
    taken = Failure(kind=FailureKind.CONTENDED, message="another search has been using it")
    for _ in range(2):
        assert tell_next(session, taken) == 1
        assert session.study.trials[1].state is TrialState.WAITING
    tell_next(session, taken)
    assert session.study.trials[1].state is TrialState.FINISHED


def test_who_asks_for_all_that_is_journalled_waits_for_whoever_reports(make_session: MakeSession) -> None:
    """What is sent elsewhere is read off the journal, which is ahead of the study for a moment."""
    session = make_session([Config()])
    seen: list[Study] = []
    with session._lock:
        asks = threading.Thread(target=lambda: seen.append(session.settled_study()), daemon=True)
        asks.start()
        assert session.study.trials == ()
        asks.join(0.2)
        assert not seen
    asks.join(10.0)
    assert seen


def test_a_repeat_beside_nobody_carries_no_mark(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, crowded(100, 0.05))
    tell_next(session, crowded(30, 1.0))
    assert tell_next(session, crowded(60, 0.1)) == 1
    assert (flags(session, 0), flags(session, 1)) == ((), ())


def test_a_disturbed_run_that_is_too_long_to_repeat_is_marked_at_once(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, crowded(100, 0.05))
    assert tell_next(session, crowded(30, 1.0), seconds=200.0) == 1
    assert session.study.trials[1].state is TrialState.FINISHED
    assert flags(session, 1) == ("neighbour",)


def test_a_neighbour_that_stays_is_lived_with(make_session: MakeSession) -> None:
    session = make_session([Config(), Config(), Config({"workers": 1})])
    assert tell_next(session, crowded(100, 1.0)) == 0, "repeated: it may have been leaving"
    assert tell_next(session, crowded(100, 1.0)) == 0
    assert session.study.trials[0].state is TrialState.FINISHED
    tell_next(session, crowded(98, 1.0))
    assert tell_next(session, crowded(150, 1.0)) == 2
    assert session.study.trials[2].state is TrialState.FINISHED
    assert flags(session, 2) == ("neighbour",)


def test_a_disturbed_first_run_of_the_script_is_repeated_before_it_prices_anything(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    assert tell_next(session, crowded(8.5, 1.0), seconds=40.0) == 0
    assert session.study.trials[0].state is TrialState.WAITING
    assert tell_next(session, crowded(300.0, 0.1), seconds=10.0) == 0
    measured = session.study.trials[0].measurement
    assert measured is not None
    assert measured.throughput.value == 300.0
    assert flags(session, 0) == ()


def test_a_run_that_somebody_on_the_accelerator_disturbed_is_repeated_too(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    beside = replace(measurement(30.0), contamination=Contamination(flags=("foreign_gpu",)))
    assert tell_next(session, beside) == 1
    assert session.study.trials[1].state is TrialState.WAITING


def test_trials_that_run_at_once_are_no_disturbance_of_each_other(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    at_once = replace(session._study.spec, concurrency=4)
    session._study = replace(session._study, spec=at_once)
    tell_next(session, crowded(100, 3.0))
    assert session.study.trials[0].state is TrialState.FINISHED
    assert flags(session, 0) == ()


BUSY = MachineLoad(foreign_cores=1.0, cpus=2, culprits=(Culprit(name="ffmpeg", pid=4711, cores=1.0),))
QUIET = MachineLoad(foreign_cores=0.05, cpus=2)


class Loads:
    """Load checks with known results; the last one repeats."""

    def __init__(self, *found: MachineLoad) -> None:
        self._found = list(found)

    def now(self) -> MachineLoad:
        return self._found.pop(0) if len(self._found) > 1 else self._found[0]

    def since_last(self) -> MachineLoad:
        return self.now()


def beside(session: Session, *found: MachineLoad, wait_s: float = 0.0) -> Heard:
    """Let the session find these loads; what people are shown."""
    session._load = Loads(*found)  # type: ignore[assignment]
    session._study = replace(session._study, spec=replace(session._study.spec, wait_for_quiet_s=wait_s))
    session._listeners = (heard := Heard(),)
    return heard


def test_a_busy_machine_is_named_once_before_the_first_run_and_journaled(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    heard = beside(session, BUSY)
    tell_next(session, measurement())
    tell_next(session, measurement())
    assert [note for note in heard.notes if note.startswith("busy")] == [
        (
            'busy: "ffmpeg" (pid 4711) uses 1.0 of 2 cores; readings will scatter. '
            "Wait for it with --wait-for-quiet 10m."
        )
    ]
    assert kinds(session)[:2] == ["busy", "proposed"]
    assert kinds(session).count("busy") == 1
    assert session.study.busy == (BUSY,)
    opened = {"spec": spec(), "wall_s": 0.0, "host": "", "pid": 1, "version": "0"}
    session._journal.append("opened", "opened/1", to_wire(opened))
    entries = sorted(session._journal.entries(), key=lambda entry: entry.kind != "opened")
    assert fold(entries).busy == (BUSY,)


def test_what_begins_during_a_search_is_named_before_the_next_run(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    heard = beside(session, QUIET, QUIET, BUSY)
    tell_next(session, measurement())
    assert [note.split()[0] for note in heard.notes] == ["One", "ceilings:"]
    tell_next(session, measurement())
    assert len(heard.notes) == 3


@pytest.mark.parametrize(("after", "state"), [(BUSY, TrialState.FINISHED), (QUIET, TrialState.WAITING)])
def test_a_disturbed_run_is_repeated_at_once_only_if_the_load_has_gone(
    make_session: MakeSession, after: MachineLoad, state: TrialState
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    beside(session, BUSY, BUSY, after)
    tell_next(session, crowded(8.5, 1.0))
    assert session.study.trials[0].state is state


def test_after_the_first_run_a_note_has_its_ceilings_those_of_counted_steps_as_well(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    heard = beside(session, QUIET)
    bound = Remainder(ops_s=0.06, reduced_s=0.01, outside_s=0.05, kernels_s=0.02)
    tell_next(session, replace(measurement(), extra=bound.figures()))
    assert heard.notes[-1] == (
        "ceilings: loading: at most 1.00x; computing: at most 10.00x; launch overhead: at most 2.00x"
    )
    tell_next(session, measurement())
    assert sum(note.startswith("ceilings:") for note in heard.notes) == 1


def test_a_quiet_machine_is_waited_for_and_the_first_wait_costs_no_budget(make_session: MakeSession) -> None:
    session = make_session([Config()])
    heard = beside(session, BUSY, BUSY, BUSY, QUIET, wait_s=600.0)
    assert session.ask() is not None
    assert session._clock.now_s() == pytest.approx(6.0)
    assert session.elapsed_s == pytest.approx(0.0)
    assert session.study.waited_s == pytest.approx(6.0)
    assert heard.notes[-1] == "the machine is quiet after 6 s"
    assert "--wait-for-quiet" not in heard.notes[0], "it was given"


def test_a_machine_that_stays_busy_is_waited_for_no_longer_than_requested(make_session: MakeSession) -> None:
    session = make_session([Config()])
    heard = beside(session, BUSY, wait_s=9.0)
    assert session.ask() is not None
    assert session._clock.now_s() == pytest.approx(9.0)
    assert heard.notes[-1] == "still busy, the search continues after 9 s"


class Machine:
    """A machine that other searches use; what is ahead is taken from a list, whose last entry repeats."""

    def __init__(self, *ahead: Claim | None, beside: tuple[Culprit, ...] = ()) -> None:
        self._ahead = list(ahead)
        self._beside = beside
        self.has_begun = False

    def ahead(self) -> Claim | None:
        return self._ahead.pop(0) if len(self._ahead) > 1 else self._ahead[0]

    def begin(self) -> None:
        self.has_begun = True

    def beside(self) -> tuple[Culprit, ...]:
        return self._beside


ANNS = Claim(
    study_id="x",
    label="train-1",
    pid=4711,
    user="ann",
    since="2026-11-27 14:02",
    measures=True,
    shared="CPUs",
)
BOBS = replace(ANNS, study_id="y", label="train-2", user="bob", pid=4712, measures=False)


def on_machine(session: Session, machine: Machine, **requested: object) -> Heard:
    session._machine = machine  # type: ignore[assignment]
    session._study = replace(session._study, spec=replace(session._study.spec, **requested))  # type: ignore[arg-type]
    session._listeners = (heard := Heard(),)
    return heard


def test_another_search_is_waited_for_named_once_and_costs_no_budget(make_session: MakeSession) -> None:
    session = make_session([Config()])
    machine = Machine(BOBS, BOBS, ANNS, ANNS, None)
    heard = on_machine(session, machine)
    assert session.ask() is not None
    assert heard.notes[:3] == [
        (
            "waiting up to 600 s: study train-2 of bob (pid 4712) has waited for the same CPUs since "
            "2026-11-27 14:02; --share measures beside it"
        ),
        (
            "waiting up to 600 s: study train-1 of ann (pid 4711) has used the same CPUs since "
            "2026-11-27 14:02; --share measures beside it"
        ),
        "the other search has ended after 8 s",
    ]
    assert (session._clock.now_s(), session.elapsed_s) == (pytest.approx(8.0), pytest.approx(0.0))
    assert session.study.waited_s == pytest.approx(8.0)
    assert "waited" in kinds(session)
    assert machine.has_begun


def test_the_wait_for_another_search_has_an_end_and_an_error_that_names_the_ways_on(
    make_session: MakeSession,
) -> None:
    session = make_session([Config()])
    machine = Machine(ANNS)
    on_machine(session, machine, wait_s=30.0)
    with pytest.raises(BackendError, match=r"study train-1 of ann .* after a wait of 30 s") as raised:
        session.ask()
    assert session._clock.now_s() == pytest.approx(30.0)
    assert "--wait" in raised.value.hint
    assert "--share" in raised.value.hint
    assert not machine.has_begun


@pytest.mark.parametrize(("requested", "waited_s"), [({}, 0.0), ({"wait_s": 30.0}, 30.0)])
def test_a_shared_machine_is_measured_on_after_the_wait_that_was_requested(
    make_session: MakeSession, requested: dict[str, float], waited_s: float
) -> None:
    session = make_session([Config()])
    machine = Machine(ANNS, beside=(Culprit(name="", pid=4711, study="study train-1 of ann"),))
    heard = on_machine(session, machine, share=True, **requested)
    session._load = Loads(QUIET)  # type: ignore[assignment]
    assert session.ask() is not None
    assert session._clock.now_s() == pytest.approx(waited_s)
    assert machine.has_begun
    assert heard.notes[-1] == (
        "busy: study train-1 of ann (pid 4711) measures on the same CPUs; readings will scatter."
    )
    assert busy_notes(session.study) == [
        "The machine was busy: study train-1 of ann (pid 4711) measured on the same CPUs."
    ]


def test_a_search_that_comes_to_share_is_named_by_the_one_that_measures(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    machine = Machine(None)
    heard = on_machine(session, machine)
    session._load = Loads(QUIET)  # type: ignore[assignment]
    tell_next(session, measurement())
    machine._beside = (Culprit(name="", pid=4712, study="study train-2 of bob"),)
    tell_next(session, measurement())
    assert [note for note in heard.notes if note.startswith("busy")] == [
        (
            "busy: study train-2 of bob (pid 4712) measures on the same CPUs; readings will scatter. "
            "Wait for it with --wait-for-quiet 10m."
        )
    ]


def test_in_a_job_the_wait_for_another_search_counts_and_leaves_the_least_budget(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700001000")
    session = make_session([Config()])
    left_s = session.remaining_s
    on_machine(session, Machine(ANNS))
    with pytest.raises(BackendError):
        session.ask()
    assert session.elapsed_s == pytest.approx(left_s - MIN_BUDGET_S)


def test_a_stop_ends_the_wait_for_another_search_without_an_error(make_session: MakeSession) -> None:
    session = make_session([Config()])
    on_machine(session, Machine(ANNS))
    session.stop("interrupted")
    assert session.ask() is None
    assert session._clock.now_s() == 0.0


def test_in_a_job_that_a_scheduler_ends_the_first_wait_comes_out_of_the_budget(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700001000")
    session = make_session([Config()])
    beside(session, BUSY, BUSY, QUIET, wait_s=600.0)
    session.ask()
    assert session.elapsed_s == pytest.approx(4.0)


def test_a_stop_ends_the_wait(make_session: MakeSession) -> None:
    session = make_session([Config()])
    beside(session, BUSY, wait_s=600.0)
    session.stop("interrupted")
    assert session.ask() is None
    assert session._clock.now_s() == 0.0


def test_before_a_confirmation_the_wait_counts_and_leaves_time_for_the_pairs(tmp_path: Path) -> None:
    class Confirms(Listed):
        def ask(self, study: Study, remaining_s: float) -> Proposal | None:
            requested = super().ask(study, remaining_s)
            return (
                requested
                if requested is None or not study.trials
                else replace(requested, stage=Stage.CONFIRM, group=1)
            )

    with Journal.create(tmp_path / "journal.db") as journal:
        session = Session(
            journal=journal,
            study=Study(spec=spec(300.0), facts=facts()),
            strategy=Confirms([Config(), Config(), Config({"workers": 1})]),
            planner=PlainPlanner(),
            clock=SimulatedClock(),
        )
        beside(session, QUIET, QUIET, BUSY, wait_s=1000.0)
        tell_next(session, measurement(), seconds=10.0)
        assert session.ask() is not None
        assert 0.0 < session.study.waited_s < 300.0
        assert session.elapsed_s == pytest.approx(session.study.waited_s)
        reserve_s = Costs.of(session.study).reserve([Config()], 300.0)
        assert reserve_s > 0.0
        assert session.remaining_s == pytest.approx(reserve_s)


def test_a_stopped_trial_may_be_given_back_no_more_than_the_budget_has(make_session: MakeSession) -> None:
    session = make_session([Config()])
    assignment = session.ask()
    assert assignment is not None
    deadline_s = assignment.segments[0].fidelity.deadline_s
    assert assignment.patience_s == pytest.approx(session.remaining_s - session_module.KILL_S - deadline_s)
    assert assignment.patience_s > 0


def test_what_waits_when_the_budget_is_spent_does_not_keep_a_loop_alive(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement())
    assignment = session.ask()
    assert assignment is not None
    session._clock.sleep(300.0)
    lost = TrialResult(trial=assignment.trial, outcome=failure(FailureKind.INFRA_LOST), seconds=1.0)
    session.tell(assignment.uid, lost)
    assert session.ask() is None
    assert session.is_over


def test_a_listener_stops_the_search_once_the_running_trial_is_over(make_session: MakeSession) -> None:
    class Enough(Listener):
        def trial_ended(self, study: Study, trial: Trial) -> None:
            if trial.number == 1:
                self.stop()

    session = make_session([Config(), Config(), Config({"workers": 1})])
    session._listeners = (Enough(),)
    tell_next(session, measurement())
    assert not session.stopping
    tell_next(session, measurement())
    assert session.stopping == "interrupted"
    assert session.ask() is None
    assert session.close().stopped == "interrupted"


def test_a_further_machine_runs_the_unchanged_script_and_no_figure_depends_on_it(
    make_session: MakeSession,
) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    assert session.ask_reference("10.0.0.2") is None, "the script has no measurement yet"
    tell_next(session, measurement())
    reference = session.ask_reference("10.0.0.2")
    assert reference is not None
    session.start(reference, node="10.0.0.2")
    session.tell(reference.uid, TrialResult(trial=reference.trial, outcome=measurement(), seconds=1.0))
    started = [entry.data for entry in session._journal.entries() if entry.kind == "started"]
    assert [data.get("node", "") for data in started] == ["", "10.0.0.2"]
    study = session.study
    (trial,) = study.finished(Stage.REFERENCE)
    assert (trial.node, trial.config.is_baseline) == ("10.0.0.2", True)
    assert trial not in study.finished()
    assert "10.0.0.2" in trial.reason


def test_a_machine_gets_no_reference_run_that_the_budget_does_not_hold(make_session: MakeSession) -> None:
    session = make_session([Config(), Config({"workers": 1})])
    tell_next(session, measurement(), seconds=20.0)
    session._clock.sleep(session.remaining_s - 10.0)
    assert session.ask_reference("10.0.0.2") is None
