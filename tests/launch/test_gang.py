"""One training on several machines: its parts, its end with the first of them, and the cause it names."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from autotune.launch import gang
from autotune.launch.gang import GangRunner, NodeReport, Witness, part_of
from autotune.launch.process import LocalRunner
from autotune.launch.result.host_samples import HostSamples
from autotune.launch.result.process_reports import ProcessReports
from autotune.launch.runner import Runner, TrialResult
from autotune.model.config import Config
from autotune.model.distributed_launch import several
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Failure, FailureKind, Segment
from autotune.protocol.rank_log import file_name
from autotune.space.launch_command import build_launch
from tests.launch.test_ranks import SHORT, TRAIN

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.model.trial import Outcome

STOPPED = Failure(kind=FailureKind.KILLED_USER, message="ended by request")
LOST = Failure(kind=FailureKind.CRASH_EXIT, message="RuntimeError: Connection closed by peer")
OWN = Failure(kind=FailureKind.OOM_HOST, message="MemoryError (rank 1 of 2)")
DONE = Failure(kind=FailureKind.NO_METRIC, message="no training step")


def assignment(script: str = "/w/train.py", *args: str, nodes: int = 2, count: int = 1) -> Assignment:
    launch = build_launch(
        script=script,
        args=args,
        python="python",
        cwd=script.rpartition("/")[0],
        env={"PATH": "/usr/bin:/bin"},
        changes=(),
        launcher=several(count, nodes),
    )
    segment = Segment(trial=0, config=Config(), fidelity=SHORT)
    return Assignment(uid="t0000-a1-fffffe", study_id="s", attempt=1, launch=launch, segments=(segment,))


def test_each_machine_has_its_own_ranks_and_one_place_to_meet() -> None:
    whole = assignment(nodes=3, count=2)
    parts = [part_of(whole, node, "10.0.0.5", 4711) for node in range(3)]
    envs = [part.launch.env for part in parts]
    assert [(env["RANK"], env["GROUP_RANK"], env["LOCAL_RANK"]) for env in envs] == [
        ("0", "0", "0"),
        ("2", "1", "0"),
        ("4", "2", "0"),
    ]
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs} == {("10.0.0.5", "4711")}
    assert {(env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_WORLD_SIZE"]) for env in envs} == {
        ("6", "2", "3")
    }
    assert parts[0].launch.world == 6


def test_two_nodes_on_one_machine_have_folders_and_marks_of_their_own() -> None:
    uids = [part_of(assignment(nodes=3), node, "h", 1).uid for node in range(3)]
    assert uids == ["t0000-a1-fffffe", "t0000-a1-ffffff", "t0000-a1-000000"]


def test_only_the_first_machine_has_a_limit_on_the_time_between_steps() -> None:
    first, second = (part_of(assignment(), node, "h", 1).segments[0].fidelity for node in (0, 1))
    assert first == SHORT
    assert second.setup_s == SHORT.deadline_s


@dataclass
class FakeLocal(Runner):
    """Ends with what it is given once it may, or by request."""

    witness: Witness
    outcome: Outcome
    waits: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        if self.waits:
            assert self.stopped.wait(30.0)
        self.witness(assignment, ProcessReports(), HostSamples(start_ns=0))
        yield TrialResult(trial=0, outcome=STOPPED if self.waits else self.outcome, seconds=1.0)

    def stop(self) -> None:
        self.stopped.set()


@dataclass
class FakeMember:
    """Reports at once, or when it is stopped."""

    report: NodeReport | None
    parts: list[Assignment] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self, part: Assignment) -> None:
        self.parts.append(part)

    def wait(self, seconds: float) -> NodeReport | None:
        if self.report is not None:
            return self.report
        return NodeReport(failure=STOPPED) if self.stopped.wait(seconds) else None

    def stop(self) -> None:
        self.stopped.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "LAST_WORDS_S", 0.0)
    monkeypatch.setattr(gang, "DONE_S", 0.0)


def judged(folder: Path, local: Outcome, *reports: NodeReport | None, waits: bool = False) -> Failure:
    members = [FakeMember(report) for report in reports]
    runner = GangRunner(
        lambda witness: FakeLocal(witness, local, waits), members, address="h", study_dir=folder
    )
    (ended,) = runner.run(assignment(nodes=1 + len(members)))
    assert all(member.stopped.is_set() for member in members)
    assert [len(member.parts) for member in members] == [1] * len(members)
    assert isinstance(ended.outcome, Failure)
    return ended.outcome


@pytest.mark.usefixtures("quick")
def test_the_failure_of_another_machine_ends_the_first_one_and_is_the_outcome(tmp_path: Path) -> None:
    found = judged(tmp_path, LOST, NodeReport(failure=OWN), waits=True)
    assert (found.kind, found.message) == (
        FailureKind.OOM_HOST,
        "machine 2 of 2: MemoryError (rank 1 of 2)",
    )


@pytest.mark.usefixtures("quick")
def test_the_first_cause_counts_before_those_that_lost_it(tmp_path: Path) -> None:
    found = judged(tmp_path, LOST, NodeReport(failure=LOST), NodeReport(failure=OWN), waits=True)
    assert found.message == "machine 3 of 3: MemoryError (rank 1 of 2)"
    own = replace(OWN, message="ValueError: no")
    assert judged(tmp_path, own, NodeReport(failure=LOST)) == own


@pytest.mark.usefixtures("quick")
def test_ranks_that_end_before_rank_0_have_failed_the_trial(tmp_path: Path) -> None:
    found = judged(tmp_path, LOST, NodeReport(failure=DONE), waits=True)
    assert (found.kind, found.message) == (
        FailureKind.CRASH_EXIT,
        "machine 2 of 2: its ranks had ended before rank 0",
    )


@pytest.mark.usefixtures("quick")
def test_a_machine_that_is_lost_makes_the_trial_one_that_is_repeated(tmp_path: Path) -> None:
    lost = Failure(kind=FailureKind.INFRA_LOST, message="the node died")
    assert judged(tmp_path, LOST, NodeReport(failure=lost), waits=True).kind is FailureKind.INFRA_LOST


def test_a_failure_of_the_first_machine_ends_the_others(tmp_path: Path) -> None:
    assert judged(tmp_path, OWN, None) == OWN


def test_a_cause_on_another_machine_counts_if_its_report_comes_after_the_first_machine_has_ended(
    tmp_path: Path,
) -> None:
    @dataclass
    class Late(FakeMember):
        def wait(self, seconds: float) -> NodeReport | None:
            return self.report if self.stopped.wait(seconds) else None

    def found(report: NodeReport) -> Outcome:
        runner = GangRunner(
            lambda witness: FakeLocal(witness, LOST), [Late(report)], address="h", study_dir=tmp_path
        )
        (ended,) = runner.run(assignment())
        return ended.outcome

    cause = found(NodeReport(failure=OWN))
    assert isinstance(cause, Failure)
    assert (cause.kind, cause.message) == (OWN.kind, f"machine 2 of 2: {OWN.message}")
    assert found(NodeReport(failure=STOPPED)) == LOST
    assert found(NodeReport(failure=DONE)) == LOST, "its ranks may have ended because of this one"


def test_a_request_to_stop_is_no_failure_of_another_machine(tmp_path: Path) -> None:
    runner = GangRunner(
        lambda witness: FakeLocal(witness, LOST, waits=True),
        [FakeMember(None)],
        address="h",
        study_dir=tmp_path,
    )
    runner.stop()
    (ended,) = runner.run(assignment())
    assert ended.outcome == STOPPED


def test_logs_of_the_other_machines_join_those_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "trials" / "t0000-a1-fffffe").mkdir(parents=True)
    seen: list[ProcessReports] = []

    @dataclass
    class Local(FakeLocal):
        def run(self, assignment: Assignment) -> Iterator[TrialResult]:
            seen.append(ProcessReports())
            self.witness(assignment, seen[0], HostSamples(start_ns=0))
            yield TrialResult(trial=0, outcome=self.outcome, seconds=1.0)

    report = NodeReport(failure=STOPPED, logs={file_name(1): b"\x01\xff".hex()}, applied=(1,))
    runner = GangRunner(
        lambda witness: Local(witness, OWN), [FakeMember(report)], address="h", study_dir=tmp_path
    )
    list(runner.run(assignment()))
    assert (tmp_path / "trials" / "t0000-a1-fffffe" / file_name(1)).read_bytes() == b"\x01\xff"
    assert seen[0].applied == {1}


# Real processes: two guards on this machine, which meet as two machines do --------------------


class Beside:
    """A second machine: another runner, in a thread of its own."""

    def __init__(self, study_dir: Path) -> None:
        self.reported = ProcessReports()
        self.study_dir = study_dir
        self.runner = LocalRunner(study_dir=study_dir, space_floor_bytes=1, witness=self._note)

    def _note(self, part: Assignment, reported: ProcessReports, seen: HostSamples) -> None:
        self.reported = reported

    def start(self, part: Assignment) -> None:
        self.report: NodeReport | None = None
        self.thread = threading.Thread(target=self._run, args=(part,))
        self.thread.start()

    def _run(self, part: Assignment) -> None:
        (ended,) = self.runner.run(part)
        assert isinstance(ended.outcome, Failure)
        self.report = gang.collected(self.study_dir, part, self.reported, ended.outcome)

    def wait(self, seconds: float) -> NodeReport | None:
        self.thread.join(seconds)
        return self.report

    def stop(self) -> None:
        self.runner.stop()


def outcome(tmp_path: Path, *args: str, count: int = 1) -> Outcome:
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.write_text(TRAIN.replace("steps == 30 and rank == 1", "steps == 8 and rank == 1"))
    whole = assignment(str(script), *args, count=count)
    # A guard ends every process with the name of its trial, also one of a test beside this one.
    whole = replace(whole, uid=f"t0000-a1-{os.urandom(3).hex()}")
    env = {**whole.launch.env, **{k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}}
    whole = replace(whole, launch=replace(whole.launch, python=sys.executable, env=env))
    other = Beside(tmp_path / "other")
    runner = GangRunner(
        lambda witness: LocalRunner(
            study_dir=tmp_path / "study", progress_floor_s=8.0, space_floor_bytes=1, witness=witness
        ),
        [other],
        address="127.0.0.1",
        study_dir=tmp_path / "study",
    )
    (ended,) = runner.run(whole)
    return ended.outcome


@pytest.mark.torch
@pytest.mark.thorough
@pytest.mark.timeout(200)
class TestProcesses:
    def test_samples_are_those_of_the_ranks_of_both_machines(self, tmp_path: Path) -> None:
        found = outcome(tmp_path)
        assert isinstance(found, Measurement), found
        assert found.effective_batch == 32
        assert [figures.rank for figures in found.ranks] == [0, 1]
        assert {figures.samples_per_step for figures in found.ranks} == {16.0}

    @pytest.mark.slow
    def test_ranks_are_counted_over_the_machines(self, tmp_path: Path) -> None:
        found = outcome(tmp_path, count=2)
        assert isinstance(found, Measurement), found
        assert [figures.rank for figures in found.ranks] == [0, 1, 2, 3]
        assert found.effective_batch == 64

    @pytest.mark.parametrize(
        ("code", "kind", "message"),
        [
            ("raise ValueError('no such thing')", FailureKind.CRASH_EXIT, "no such thing (rank 1 of 2)"),
            ("os.kill(os.getpid(), 9)", FailureKind.OOM_HOST, "rank 1 of 2 was ended by SIGKILL"),
            ("time.sleep(600)", FailureKind.TIMEOUT_PROGRESS, "no step for"),
            ("os._exit(0)", FailureKind.CRASH_EXIT, "had ended before"),
        ],
    )
    def test_the_cause_on_the_other_machine_is_named(
        self, tmp_path: Path, code: str, kind: FailureKind, message: str
    ) -> None:
        found = outcome(tmp_path, "--at-thirty", code)
        assert isinstance(found, Failure), found
        assert (found.kind, message in found.message) == (kind, True), found.message
