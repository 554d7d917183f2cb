"""Which earlier studies are read, which are left out and why, and that a search keeps to what it received."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import recorded_world
from inline_search import inline

from autotune.cli.main import run
from autotune.driver import transfer
from autotune.driver.loop.session import ENDING_S, KILL_S
from autotune.driver.transfer import MOST_OWN, MOST_READ, gather
from autotune.launch.fake import COMPUTE_BOUND
from autotune.launch.runner import TrialResult
from autotune.model.facts import DeviceFacts
from autotune.model.history_record import OFF, Transfer
from autotune.model.study import VERIFY, Study
from autotune.model.trial import Assignment, Stage
from autotune.model.wire import dumps, to_wire
from autotune.search.samplers.registry import strategy_for
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import newest_study_dirs
from autotune.testing.replay import RecordedPlanner, replay
from autotune.testing.table import Table

BUDGET_S = 300.0


def seen_table() -> Table:
    """A table whose process reported its Python, as every recorder of today does."""
    table = recorded_world.table()
    facts = table.header.facts
    assert facts.run is not None
    facts = replace(facts, run=replace(facts.run, versions={"python": "3.11", "torch": "2.13"}))
    return replace(table, header=replace(table.header, facts=facts))


TABLE = seen_table()


def name_of(number: int) -> str:
    return f"01{'A' * 22}{number:02d}"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that ended."""
    folder = tmp_path_factory.mktemp("ended") / name_of(1)
    folder.mkdir()
    replay(TABLE, budget_s=BUDGET_S, folder=folder)
    return folder


def folded(folder: Path) -> Study:
    with Journal.read(folder) as journal:
        return fold(journal.entries())


@pytest.fixture
def present(ended: Path) -> Study:
    """The same script before its first trial."""
    study = folded(ended)
    assert study.facts is not None
    spec = replace(study.spec, study_id=name_of(99), label="now")
    return replace(study, spec=spec, trials=(), stopped="", facts=replace(study.facts, run=None))


def copies(ended: Path, root: Path, count: int) -> list[Path]:
    made = [root / name_of(n) for n in range(count, 0, -1)]
    for path in made:
        shutil.copytree(ended, path)
    return made


def bare(root: Path, study: Study, *, stops: bool = True) -> Path:
    """A journal that holds no run."""
    folder = root / name_of(50)
    with Journal.create(folder, ballast_bytes=0) as journal:
        opened = {"spec": study.spec, "wall_s": 0.0, "host": "", "pid": 0, "version": ""}
        journal.append("opened", "opened/1", to_wire(opened))
        journal.append("inspected", "inspected/1", to_wire({"facts": study.facts}))
        if stops:
            journal.append("stopped", "stopped/1", {"why": "finished", "elapsed_s": 1.0})
    return folder


def left_out(found: Transfer | None) -> str:
    assert found is not None
    assert not found.earlier
    (why,) = found.left_out
    return why


# What is read ------------------------------------------------------------------------------------


def test_an_ended_study_of_the_script_is_taken_over_and_nothing_private_with_it(
    ended: Path, present: Study
) -> None:
    found = gather(present, folders=[ended])
    assert found is not None
    (reported,) = found.earlier
    assert reported.label == "test"
    assert reported.starts
    assert reported.seen
    assert reported.fingerprint.device == found.present.device
    assert reported.fingerprint.data
    assert not found.present.data, "that is for the first run to show"
    text = dumps(found)
    assert "/replay" not in text
    assert "train.py" not in text


def test_the_newest_are_read_and_no_more_than_are_of_use(
    ended: Path, present: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = copies(ended, tmp_path / "studies", MOST_OWN + 1)
    assert newest_study_dirs(tmp_path) == made
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    found = gather(present)
    assert found is not None
    assert len(found.earlier) == MOST_OWN
    assert not found.left_out
    # The search itself is there as well, and is none of the earlier ones.
    again = gather(replace(present, spec=replace(present.spec, study_id=made[0].name)), folders=made[:1])
    assert again is None
    monkeypatch.setattr(transfer, "MOST_READ", 2)
    few = gather(present)
    assert few is not None
    assert len(few.earlier) == 2 < MOST_READ


def test_reading_ends_when_its_time_is_over(ended: Path, present: Study, tmp_path: Path) -> None:
    ticks: Iterator[float] = iter([0.0, 0.0, 99.0])
    found = gather(present, folders=copies(ended, tmp_path, 3), now_s=lambda: next(ticks))
    assert found is not None
    assert len(found.earlier) == 1
    assert found.left_out == (f"what is older than {name_of(2)}: reading takes too long.",)


def test_no_home_at_all_is_no_reason_to_fail(
    present: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "nowhere"))
    assert gather(present) is None


@pytest.mark.parametrize("change", [{"transfer": OFF}, {"sampler": "tpe"}])
def test_nothing_is_read_where_it_is_not_wanted(ended: Path, present: Study, change: dict[str, str]) -> None:
    spec = replace(present.spec, **change)  # type: ignore[arg-type]
    assert gather(replace(present, spec=spec), folders=[ended]) is None


def test_another_script_is_not_read_and_a_setting_of_older_versions_changes_nothing(
    ended: Path, present: Study
) -> None:
    other = replace(present, spec=replace(present.spec, script="/replay/other.py", transfer="all"))
    assert gather(other, folders=[ended]) is None
    assert gather(replace(present, spec=replace(present.spec, transfer="all")), folders=[ended])


# What is left out ----------------------------------------------------------------------------------


def test_a_study_of_another_machine_is_left_out(ended: Path, present: Study) -> None:
    assert present.facts is not None
    host = replace(present.facts.host, cpu_model="another")
    moved = replace(present, facts=replace(present.facts, host=host))
    assert left_out(gather(moved, folders=[ended])) == "test: another machine."


def test_a_study_under_another_power_limit_is_left_out(present: Study, tmp_path: Path) -> None:
    def at(watts: float) -> Study:
        assert present.facts is not None
        gpu = DeviceFacts(name="GPU", uuid="u", memory_bytes=2**36, power_limit_w=watts)
        host = replace(present.facts.host, devices=(gpu,))
        return replace(present, facts=replace(present.facts, host=host))

    folder = bare(tmp_path, at(350.0))
    assert left_out(gather(at(700.0), folders=[folder])) == "now: another power limit."
    assert "not measured" in left_out(gather(at(350.0), folders=[folder]))


def test_a_study_that_has_not_ended_is_left_out(ended: Path, present: Study, tmp_path: Path) -> None:
    folder = bare(tmp_path, present, stops=False)
    assert left_out(gather(present, folders=[folder])) == "now: it has not ended."
    (other,) = copies(ended, tmp_path, 1)
    with Journal.open(other, ballast_bytes=0):
        assert left_out(gather(present, folders=[other])) == f"{other.name}: it has not ended."


def test_a_damaged_journal_is_left_out(ended: Path, present: Study, tmp_path: Path) -> None:
    (folder,) = copies(ended, tmp_path, 1)
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute(
        "UPDATE events SET json = replace(json, 'samples/s', 'samples/x') WHERE kind = 'finished'"
    )
    connection.commit()
    connection.close()
    assert left_out(gather(present, folders=[folder])) == f"{name_of(1)}: it cannot be read (JournalDamaged)."
    (folder / "journal.db").write_bytes(b"no journal at all")
    assert "it cannot be read" in left_out(gather(present, folders=[folder]))


def test_a_journal_of_a_later_format_and_one_that_kept_too_little_are_left_out(
    ended: Path, present: Study, tmp_path: Path
) -> None:
    (folder,) = copies(ended, tmp_path, 1)
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    connection.commit()
    connection.close()
    assert "it cannot be read" in left_out(gather(present, folders=[folder]))
    old = tmp_path / name_of(3)
    old.mkdir()
    replay(recorded_world.table(), budget_s=100.0, folder=old)
    assert "kept by a version that wrote down too little" in left_out(gather(present, folders=[old]))


def test_a_study_for_another_objective_is_left_out_and_a_verification_is_none(
    ended: Path, present: Study, tmp_path: Path
) -> None:
    spare = replace(present, spec=replace(present.spec, objective="energy"))
    assert left_out(gather(spare, folders=[ended])) == "test: another objective."
    folder = bare(tmp_path, replace(present, spec=replace(present.spec, purpose=VERIFY)))
    assert gather(present, folders=[folder]) is None


def test_a_journal_that_is_too_large_is_not_read(
    ended: Path, present: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MOST_BYTES", 100)
    assert "too large" in left_out(gather(present, folders=[ended]))


# A search with records ----------------------------------------------------------------------------


def test_a_journal_alone_holds_what_the_search_requested_and_would_request(
    ended: Path, present: Study, tmp_path: Path
) -> None:
    """Cut off before any of its trials and resumed, it asks for that trial."""
    found = gather(present, folders=[ended])
    assert found is not None
    study = replay(TABLE, budget_s=BUDGET_S, seed=3, folder=tmp_path, earlier=found.earlier).study
    assert study.transfer is not None
    with Journal.read(tmp_path) as journal:
        entries = list(journal.entries())
    planner, strategy = RecordedPlanner(TABLE), strategy_for("staged")
    checked = 0
    for place, entry in enumerate(entries):
        if entry.kind != "proposed" or entry.data["trial"]["attempt"] > 1:
            continue
        before = fold(entries[:place], build=planner.space)
        assert before.transfer == study.transfer
        left_s = BUDGET_S - float(entry.data["elapsed_s"]) - ENDING_S - KILL_S
        proposal = strategy.ask(before, left_s)
        assert proposal is not None
        requested = study.trials[int(entry.data["trial"]["number"])]
        assert (proposal.stage, proposal.config, proposal.reason) == (
            requested.stage,
            requested.config,
            requested.reason,
        )
        checked += 1
    assert checked > 8
    assert study.trials[1].stage is Stage.INITIAL
    assert "earlier study of this script, test" in study.trials[1].reason


def with_python(ended: TrialResult, assignment: Assignment) -> TrialResult:
    if ended.facts is None:
        return ended
    return replace(ended, facts=replace(ended.facts, versions={"python": "3.11", "torch": "2.13"}))


@pytest.mark.thorough
def test_a_second_search_names_its_start_points_and_can_be_kept_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    inline(monkeypatch, COMPUTE_BOUND, change=with_python)

    def search(label: str, *words: str) -> str:
        code = run(
            ["search", "--script", "train.py", "--budget", "6m", "--driver", "inline", "--label", label,
             "--knob", "precision", "--set", "precision=fp32,bf16",
             "--knob", "channels_last", "--set", "channels_last=false,true", *words]
        )  # fmt: skip
        assert code == 0
        reported = capsys.readouterr()
        return reported.out + reported.err

    line = "start points from 1 earlier study of this script (first), none taken over unmeasured"
    assert "earlier" not in search("first")
    assert line in search("second"), "as it goes"
    run(["show", "second"])
    assert f"earlier   {line}" in capsys.readouterr().out
    assert "earlier" not in search("third", "--transfer", "off")
    found = newest_study_dirs()
    kinds = [[e.kind for e in entries(path)] for path in found]
    assert [k.count("transferred") for k in kinds] == [0, 1, 0]
    journaled = next(e for e in entries(found[1]) if e.kind == "transferred")
    assert str(tmp_path) not in json.dumps(dict(journaled.data))


def entries(folder: Path) -> list:
    with Journal.read(folder) as journal:
        return list(journal.entries())
