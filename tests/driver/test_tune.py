"""The wiring of a search, over a world without processes: how it ends when something goes wrong."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import SimulatedClock
from autotune.driver import tune
from autotune.driver.exit_status import StoppedEarly
from autotune.driver.sinks.sync import OPENING_S
from autotune.driver.tune import SearchEnd
from autotune.errors import BackendError, DiskFull, NothingFeasible, StoreError, UsageError, notes_of
from autotune.export.best_config import read_best
from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.machine_lock import MachineLock
from autotune.launch.fake import COMPUTE_BOUND, FakeRunner, World
from autotune.launch.runner import NOT_BEGUN, TrialResult
from autotune.model.change import Flag
from autotune.model.effect import Effect
from autotune.model.study import Budget, DeclaredSpec, SpaceRequest, Study, StudySpec
from autotune.model.trial import Failure, FailureKind, Proposal, Stage
from autotune.report.listener import Listener
from autotune.search.stages import Staged
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import DRIVEN_FILE, study_dir

SCRIPT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--fused', type=int, default=0)\n"
FUSED = DeclaredSpec(name="fused", effect=Effect.NUMERIC, values=(0, 1), spelling=Flag(("--fused",)))
FAST = replace(COMPUTE_BOUND, gains={"fused": {1: 0.5}})
GIB = 2**30
LATE = 6
"""A run in the middle of confirmation; every search here comes so far."""


class NoSync:
    """In place of the thread that sends to MLflow."""

    def __init__(self, *args: object, **more: object) -> None:
        pass

    def start(self) -> None:
        pass

    def warm_up(self, timeout_s: float) -> bool:
        return True

    def flush(self, deadline_s: float) -> int:
        return 0

    def links(self) -> dict[str, str]:
        return {}


class NoWall:
    def __init__(self, **more: object) -> None:
        pass

    def start(self) -> None:
        pass

    def disarm(self) -> None:
        pass

    def bring_forward(self, seconds: float) -> None:
        pass


class Ends(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended: list[Study] = []

    def note(self, study: Study, text: str) -> None:
        self.notes.append(text)

    def study_ended(self, study: Study) -> None:
        self.ended.append(study)


class Made:
    """A search whose runs do what `before` says: it is called with the number of each run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.out = folder / "out" / "best.yaml"
        self.out.parent.mkdir()
        self.heard = Ends()
        self.study_id = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
        self.clock = SimulatedClock()
        self.runner: dict[str, Any] = {}
        """What the last runner was made with."""

    def search(
        self, before: Callable[[int], None] = lambda n: None, *, world: World = FAST, **more: Any
    ) -> SearchEnd:
        clock, runs, runner = self.clock, [0], self.runner

        class Running(FakeRunner):
            def __init__(self, **kwargs: Any) -> None:
                super().__init__(world, clock)
                runner.update(kwargs)

            def run(self, assignment: Any) -> Iterator[Any]:
                runs[0] += 1
                before(runs[0])
                yield from super().run(assignment)

        for name, stand_in in (
            ("Syncer", NoSync),
            ("HardWall", NoWall),
            ("LocalRunner", Running),
            ("SystemClock", lambda: clock),
        ):  # fmt: skip
            self.monkeypatch.setattr(tune, name, stand_in)
        spec = StudySpec(
            study_id=self.study_id,
            label="train",
            script=str(self.script),
            args=(),
            cwd=str(self.folder),
            python=sys.executable,
            space=SpaceRequest(name="mine", knobs={"fused": ()}, declared=(FUSED,)),
            budget=Budget(seconds=300.0),
            driver="inline",
            out=str(self.out),
        )
        return tune.run_search(replace(spec, **more), listeners=[self.heard])

    def study(self) -> Study:
        with Journal.read(study_dir(self.study_id)) as journal:
            return fold(journal.entries())

    @property
    def kept(self) -> Path:
        return study_dir(self.study_id) / "best.yaml"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(tmp_path, monkeypatch)


def failing(at: int, error: Exception) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number == at:
            raise error

    return before


def test_a_search_that_ends_well_writes_both_files(made: Made) -> None:
    end = made.search()
    assert (end.exit_code, end.study.stopped) == (0, "finished")
    assert read_best(made.out) == read_best(made.kept)
    assert read_best(made.out).picks["best"].knobs["fused"] == 1


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (RuntimeError("something of ours broke"), "error"),
        (DiskFull("the disk is full"), "disk"),
        (BackendError("Ray is gone"), "backend"),
    ],
)
def test_a_search_that_breaks_keeps_what_it_had_and_says_where(
    made: Made, error: Exception, stopped: str
) -> None:
    with pytest.raises(type(error)) as raised:
        made.search(failing(LATE, error))
    assert raised.value is error
    best = read_best(made.out)
    assert best.provenance.trials == LATE - 1
    assert best == read_best(made.kept)
    (note,) = notes_of(error)
    assert note.startswith(f"the best so far is in {made.out}: ")
    assert made.study().stopped == stopped
    assert [study.stopped for study in made.heard.ended] == [stopped]


def test_a_ctrl_c_while_the_answer_is_written_does_not_cost_it(made: Made) -> None:
    """The loop is over by then; as with a scheduler that sends its signal twice."""
    write, pressed = tune.write_best, []

    def press_and_write(*what: Any, **more: Any) -> None:
        if not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        write(*what, **more)

    made.monkeypatch.setattr(tune, "write_best", press_and_write)
    end = made.search()
    assert (end.exit_code, end.answer is not None and end.answer.is_better) == (130, True)
    assert read_best(made.out) == read_best(made.kept)
    assert made.study().stopped == "interrupted"


def test_a_disk_without_room_ends_the_search_and_leaves_its_trial_open(made: Made) -> None:
    """Not one trial after the other is refused and counted as failed."""
    refused = Failure(kind=FailureKind.DISK, message="0.01 GiB are free", evidence={NOT_BEGUN: 1})
    real = FakeRunner.run

    def run(runner: FakeRunner, assignment: Any) -> Iterator[Any]:
        if assignment.trial == LATE - 1:
            yield TrialResult(trial=assignment.trial, outcome=refused, seconds=0.0)
        else:
            yield from real(runner, assignment)

    made.monkeypatch.setattr(FakeRunner, "run", run)
    with pytest.raises(DiskFull, match=r"0\.01 GiB are free") as raised:
        made.search()
    assert "autotune resume" in raised.value.hint
    assert str(made.out) in notes_of(raised.value)[0]
    assert read_best(made.out).provenance.trials == LATE - 1
    study = made.study()
    assert study.stopped == "disk"
    assert [t.number for t in study.open_trials] == [LATE - 1]
    made.monkeypatch.setattr(FakeRunner, "run", real)
    after = resumed(made, ahead_s=1.0)
    assert after.trials[LATE - 1].measurement is not None


def test_the_first_trial_does_not_wait_for_the_tracker(made: Made) -> None:
    """Its runner learns instead when the store is being opened, and sets those steps aside."""
    made.monkeypatch.setattr(NoSync, "warm_up", lambda *_: pytest.fail("waited for the store"))
    made.monkeypatch.setattr(NoSync, "is_opening", True, raising=False)
    made.search()
    assert made.runner["disturbs"]() is True
    made.monkeypatch.setattr(NoSync, "is_opening", False)
    assert made.runner["disturbs"]() is False


def another_search() -> MachineLock:
    """One that measures on this machine now."""
    request = ClaimRequest(study_id="theirs", label="train-1")
    lock = MachineLock(request, Resources.of_machine(os.environ))
    assert lock.ahead() is None
    lock.begin()
    return lock


def test_nothing_is_started_beside_a_search_that_is_waited_for(made: Made) -> None:
    """MLflow and Ray take CPU time from it, and the wall would end the wait."""
    started: list[str] = []
    made.monkeypatch.setattr(NoSync, "start", lambda _: started.append("tracker"))
    made.monkeypatch.setattr(NoWall, "start", lambda _: started.append("wall"))
    other = another_search()
    with pytest.raises(BackendError, match=r"study train-1 of .* has used the same CPUs since"):
        made.search(lambda _: started.append("trial"))
    other.release()
    assert started == []
    assert made.study().stopped == "backend"
    assert made.clock.now_s() >= 600.0, "twice the budget"
    assert resumed(made, ahead_s=1.0).finished()
    assert started[:2] == ["wall", "tracker"]


def test_memory_is_shared_out_after_the_other_search_has_ended(made: Made) -> None:
    other = another_search()
    limits: list[int] = []

    class Leaving(SimulatedClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            other.release()

    made.clock = Leaving()
    made.monkeypatch.setattr(tune, "free_for", lambda _: GIB if other.descriptors else 7 * GIB)
    real = FakeRunner.run
    made.monkeypatch.setattr(
        FakeRunner, "run", lambda self, a: (limits.append(a.memory_limit_bytes), real(self, a))[1]
    )
    made.search()
    assert set(limits) == {7 * GIB}


def test_a_search_that_has_ended_holds_up_nobody(made: Made) -> None:
    made.search()
    another_search().release()


def test_a_search_beside_another_one_names_it_in_its_answer(made: Made) -> None:
    other = another_search()
    try:
        end = made.search(share=True)
    finally:
        other.release()
    assert end.answer is not None
    (caveat,) = [text for text in end.answer.caveats if "measured on the same CPUs" in text]
    assert caveat.startswith("The machine was busy: study train-1 of ")
    assert end.study.waited_s == 0.0


def test_a_search_on_a_cluster_leaves_this_machine_to_others(made: Made) -> None:
    other = another_search()
    made.monkeypatch.setattr(tune, "_ray_driver_class", lambda _: Cluster)
    with pytest.raises(StoppedEarly):
        made.search(driver="ray", ray_address="10.0.0.1:6379")
    other.release()
    assert made.heard.notes == ["connected"]


class Cluster:
    """In place of `RayDriver`: connects, and ends with nothing done."""

    def __init__(self, session: Any, **more: Any) -> None:
        self.session = session

    def connect(self) -> None:
        self.session.note("connected")

    def run(self, arm: Callable[[], None]) -> None:
        self.session.stop("signal")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("budget_s", "waited_s"), [(36_000.0, OPENING_S), (60.0, 6.0)])
def test_a_first_trial_on_a_cluster_waits_for_the_tracker_for_a_bounded_time(
    made: Made, budget_s: float, waited_s: float
) -> None:
    waited: list[float] = []
    made.monkeypatch.setattr(NoSync, "warm_up", lambda _, timeout_s: waited.append(timeout_s))
    made.monkeypatch.setattr(tune, "_ray_driver_class", lambda _: Cluster)
    with pytest.raises(StoppedEarly):
        made.search(budget=Budget(seconds=budget_s), driver="ray", ray_address="10.0.0.1:6379")
    assert waited == [waited_s]
    assert made.heard.notes == ["connected"], "what takes no second is not announced"


def test_a_search_that_breaks_before_the_baseline_names_no_file(made: Made) -> None:
    with pytest.raises(RuntimeError) as raised:
        made.search(failing(1, RuntimeError("at once")))
    assert notes_of(raised.value) == ()
    assert not made.out.exists()
    assert made.study().stopped == "error"


def test_a_journal_that_takes_no_more_costs_neither_file(made: Made) -> None:
    """As on a full disk: nothing more can be written down, not even that it ended."""
    real = Journal.append

    def full(number: int) -> None:
        if number == LATE:
            made.monkeypatch.setattr(Journal, "append", refuse)

    def refuse(self: Journal, *args: object, **more: object) -> int:
        raise DiskFull("the disk is full", hint="Make room.")

    with pytest.raises(DiskFull) as raised:
        made.search(full)
    made.monkeypatch.setattr(Journal, "append", real)
    assert read_best(made.out).provenance.trials == LATE - 1
    assert str(made.out) in notes_of(raised.value)[0]


@pytest.mark.parametrize("broken", ["out", "kept"])
def test_a_place_that_cannot_be_written_does_not_cost_the_other_one(made: Made, broken: str) -> None:
    lost, written = (made.out, made.kept) if broken == "out" else (made.kept, made.out)

    def block(number: int) -> None:
        lost.mkdir(exist_ok=True)

    with pytest.raises(StoreError, match="could not be written") as raised:
        made.search(block)
    assert str(lost) in raised.value.message
    assert read_best(written).is_better
    assert str(written) in notes_of(raised.value)[0]
    assert made.study().stopped == "finished"


def test_a_script_edited_meanwhile_ends_the_search_with_the_answer_for_what_it_was(made: Made) -> None:
    def edit(number: int) -> None:
        if number == LATE:
            made.script.write_text(SCRIPT + "# another one\n")

    end = made.search(edit)
    assert (end.exit_code, end.study.stopped) == (UsageError.exit_code, "script")
    assert end.answer is not None
    was = "train.py was changed during the search: this holds for the script before the change."
    assert end.answer.caveats[0] == was
    changed = "train.py was changed during the search"
    assert made.heard.notes[-2:] == [changed, f"trial {LATE - 1} does not count: {changed}"]
    # The run during which it was edited may have read either version: it is not reported.
    assert [t.state.value for t in end.study.trials][LATE - 1 :] == ["waiting"]
    assert made.study().stopped == "script"
    assert read_best(made.out).environment.script_sha256 == end.study.facts.script.sha256  # type: ignore[union-attr]


def test_a_script_edited_before_its_baseline_was_measured_is_a_usage_error(made: Made) -> None:
    with pytest.raises(UsageError, match=r"train\.py was changed before it was measured"):
        made.search(lambda number: made.script.write_text("import this\n"))
    assert not made.out.exists()


def test_a_script_that_was_merely_touched_is_the_same(made: Made) -> None:
    assert made.search(lambda number: made.script.write_text(SCRIPT)).exit_code == 0


SMALLER = SpaceRequest(name="mine", knobs={"batch_size": (8, 16, 32)})


def test_a_bound_that_something_fits_into_is_no_failure_and_names_it(made: Made) -> None:
    """The script needs 1.75 GiB; smaller batches need less and are not faster."""
    end = made.search(world=COMPUTE_BOUND, max_memory_bytes=int(1.66 * GIB), space=SMALLER)
    assert end.exit_code == 1
    assert end.answer is not None
    (reported,) = [c for c in end.answer.caveats if "GiB" in c]
    assert reported.startswith(
        "Your unchanged script needs 1.75 GiB, more than the 1.66 GiB allowed; the fastest"
    )
    assert "fits is batch_size=" in reported


def test_a_bound_that_nothing_fits_into_is_one(made: Made) -> None:
    with pytest.raises(NothingFeasible, match=r"not even the unchanged train\.py"):
        made.search(world=COMPUTE_BOUND, max_memory_bytes=int(1.1 * GIB), space=SMALLER)
    assert made.out.exists()


def test_a_search_leaves_its_report_beside_the_journal(made: Made) -> None:
    end = made.search()
    path = Path(end.links["report"])
    assert path == end.study_dir / "report.html"
    text = path.read_text()
    assert end.answer is not None
    assert f"{end.answer.best.speedup.value:.2f}x" in text
    assert "autotune apply" in text


def test_a_report_that_cannot_be_made_costs_no_answer(made: Made) -> None:
    def broken(*_args: object, **_more: object) -> str:
        raise ValueError("no page today")

    made.monkeypatch.setattr("autotune.report.html.page.report_html", broken)
    end = made.search()
    assert end.answer is not None
    assert "report" not in end.links


OTHER = DeclaredSpec(name="other", effect=Effect.EXACT, values=(0, 1), spelling=Flag(("--other",)))
BOTH = replace(COMPUTE_BOUND, gains={"fused": {1: 0.5}, "other": {1: 0.8}})
A_DAY_S = 86_400.0


class Short(Staged):
    """Has no more to ask after so many trials, as where a budget ends."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        return super().ask(study, remaining_s) if len(study.trials) < self._most else None


def resumed(made: Made, *, ahead_s: float, budget_s: float | None = None, fails: bool = False) -> Study:
    """Gone on with so long after its last event; where it fails, at once."""
    clock = SimulatedClock(wall_s=time.time() + ahead_s)

    class Runner(FakeRunner):
        def __init__(self, **kwargs: object) -> None:
            super().__init__(BOTH, clock)

        def run(self, assignment: Any) -> Iterator[Any]:
            if fails:
                raise RuntimeError("killed")
            yield from super().run(assignment)

    for name, stand_in in (
        ("SystemClock", lambda: clock),
        ("LocalRunner", Runner),
        ("strategy_for", lambda _: Staged()),
    ):
        made.monkeypatch.setattr(tune, name, stand_in)
    if not fails:
        return tune.resume_search(study_dir(made.study_id), budget_s=budget_s).study
    with pytest.raises(RuntimeError, match="killed"):
        tune.resume_search(study_dir(made.study_id), budget_s=budget_s)
    return made.study()


def test_what_a_dead_driver_has_left_goes_when_its_study_is_gone_on_with(made: Made) -> None:
    """Also what it broke off, and also where the study is not gone on with in the end."""
    with pytest.raises(RuntimeError):
        made.search(failing(LATE, RuntimeError("killed")))
    home = study_dir(made.study_id)
    with Journal.read(home) as journal:
        uid = [e.data["uid"] for e in journal.entries() if e.kind == "started"][-1]
    for name in (f"trials/{uid}/upper", "forks/1-1", "tune/tune"):
        (home / name).mkdir(parents=True)
    (home / "trials" / uid / "plan.json").write_text('{"argv": ["--hf-token", "CANARY-option"]}')
    made.script.write_text("another = 1\n")
    with pytest.raises(UsageError):
        tune.resume_search(home)
    assert [p.name for p in (home / "trials" / uid).iterdir()] == ["plan.json"]
    assert "CANARY" not in (home / "trials" / uid / "plan.json").read_text()
    assert not [name for name in ("forks", "tune") if (home / name).exists()]


def test_a_study_says_while_it_is_driven_that_it_is(made: Made) -> None:
    """What a killed driver has left is found by it."""
    driven = study_dir(made.study_id) / DRIVEN_FILE
    seen: list[bool] = []
    made.search(lambda _: seen.append(driven.is_file()))
    assert set(seen) == {True}
    assert not driven.exists()


def test_a_resume_names_the_secret_variables_that_are_missing(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    made.monkeypatch.setenv("MY_API_TOKEN", "CANARY-variable")
    with pytest.raises(RuntimeError):
        made.search(failing(LATE, RuntimeError("killed")))
    resumed(made, ahead_s=1.0, fails=True)
    assert "MY_API_TOKEN" not in caplog.text
    made.monkeypatch.delenv("MY_API_TOKEN")
    resumed(made, ahead_s=2.0)
    assert "set when the search began and not now: MY_API_TOKEN" in caplog.text
    kept = b"".join(p.read_bytes() for p in study_dir(made.study_id).rglob("*") if p.is_file())
    assert b"MY_API_TOKEN" in kept
    assert b"CANARY" not in kept


def cycles(study: Study) -> dict[int, list[str]]:
    """Group -> what was run in it, in order; a run that was given up ends with a question mark."""
    found: dict[int, list[str]] = {}
    for trial in study.trials:
        if trial.stage is Stage.CONFIRM:
            name = "+".join(trial.config) or "script"
            found.setdefault(trial.group, []).append(name + ("?" if trial.failure is not None else ""))
    return found


@pytest.mark.parametrize(("ahead_s", "second"), [(60.0, ["fused", "script"]), (A_DAY_S, ["fused"])])
def test_a_cycle_that_the_budget_cut_is_gone_on_with_on_the_same_day_only(
    made: Made, ahead_s: float, second: list[str]
) -> None:
    made.monkeypatch.setattr(tune, "strategy_for", lambda _: Short(6))
    assert cycles(made.search().study) == {1: ["script", "fused"], 2: ["fused"]}
    after = cycles(resumed(made, ahead_s=ahead_s, budget_s=300.0))
    assert after[2] == second
    assert after[3] == ["script", "fused"]


@pytest.mark.parametrize("ahead_s", [60.0, A_DAY_S])
def test_a_killed_cycle_is_gone_on_with_on_the_same_day_only(made: Made, ahead_s: float) -> None:
    space = SpaceRequest(name="mine", knobs={"fused": (), "other": ()}, declared=(FUSED, OTHER))
    made.script.write_text(SCRIPT + "p.add_argument('--other', type=int, default=0)\n")
    more: dict[str, Any] = {"world": BOTH, "space": space}
    whole = made.search(**more).study
    begins = next(t.number for t in whole.trials if t.stage is Stage.CONFIRM)
    first = cycles(whole)[1]
    assert (first[0], len(first) > 2) == ("script", True)
    made.study_id = made.study_id[:-1] + "0"
    with pytest.raises(RuntimeError):
        # The second run of the first cycle: its script is measured, its finalists are not.
        made.search(failing(begins + 2, RuntimeError("killed")), **more)
    after = cycles(resumed(made, ahead_s=ahead_s))
    assert after[1] == (first if ahead_s < A_DAY_S else ["script", first[1] + "?"])
    # Whose run was given up has its place in all the cycles that follow.
    assert set(after[2]) == set(first)


def test_a_run_that_was_set_down_to_be_repeated_costs_no_life_by_waiting(made: Made) -> None:
    with pytest.raises(RuntimeError):
        made.search(failing(LATE, RuntimeError("killed")))
    assert made.study().trials[LATE - 1].attempt == 2
    assert resumed(made, ahead_s=1.0, fails=True).trials[LATE - 1].attempt == 3
    assert resumed(made, ahead_s=2.0, fails=False).trials[LATE - 1].attempt == 3
