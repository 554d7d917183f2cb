"""A local store is created whole or not at all, is private, and is replaced once it is broken."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from second_account import Account, open_folder, second_account

from autotune.errors import TrackerUnavailable
from autotune.report.mlflow import local_store as local
from autotune.report.mlflow.store import sqlite_path

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
import made_studies as made

__all__ = ["open_folder", "second_account"]

real = pytest.mark.mlflow
ODD_NAMES = ("o'neil", 'say "so"', "100%41", "a#b", "what?", "ünï 名", "two  words", "x=1&y;z", "a%3Fb's")


def create(path: Path) -> None:
    """A database as far as `fault` looks at it, in as many commits as MLflow would make in principle."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE experiments (name TEXT)")
        connection.execute("CREATE TABLE _alembic_tmp_runs (name TEXT)")
        connection.execute("DROP TABLE _alembic_tmp_runs")
        connection.execute("INSERT INTO experiments VALUES ('Default')")


def modes(root: Path) -> dict[str, int]:
    return {p.relative_to(root).as_posix(): stat.S_IMODE(p.lstat().st_mode) for p in root.rglob("*")}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "home" / "mlflow.db"


# -- whole or not at all --------------------------------------------------------------------------

STOPPED = """
import os, sqlite3, sys
from pathlib import Path
from autotune.report.mlflow import local_store as local

stop = int(sys.argv[2])
steps = 0
def step(*_):
    global steps
    steps += 1
    if steps == stop:
        os.kill(os.getpid(), 9)

sys.addaudithook(lambda name, _: step() if name in {audited!r} else None)
def create(path):
    connection = sqlite3.connect(path, isolation_level=None)
    for text in {statements!r}:
        step()
        connection.execute(text)
    connection.close()
local.prepare(Path(sys.argv[1]), create, own=True)
print(steps)
"""
AUDITED = {"os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "os.chmod", "sqlite3.connect"}
STATEMENTS = (
    "CREATE TABLE experiments (name TEXT)",
    "CREATE TABLE _alembic_tmp_runs (name TEXT)",
    "DROP TABLE _alembic_tmp_runs",
    "INSERT INTO experiments VALUES ('Default')",
)


def stopped(database: Path, step: int) -> subprocess.CompletedProcess[str]:
    """A process that prepares a store and is killed at a step of it; 0 for none."""
    code = STOPPED.format(audited=AUDITED, statements=STATEMENTS)
    command = [sys.executable, "-c", code, str(database), str(step)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.thorough
@pytest.mark.parametrize("is_broken", [False, True], ids=["missing", "broken"])
def test_a_kill_at_any_step_leaves_a_store_that_the_next_start_completes(
    tmp_path: Path, is_broken: bool
) -> None:
    def begin(number: int) -> Path:
        place = tmp_path / str(number) / "mlflow.db"
        place.parent.mkdir()
        if is_broken:
            create(place)
            with contextlib.closing(sqlite3.connect(place)) as connection:
                connection.execute("CREATE TABLE _alembic_tmp_tags (name TEXT)")
        return place

    steps = int(stopped(begin(0), 0).stdout)
    assert steps > 10
    for number in range(1, steps + 1):
        place = begin(number)
        assert stopped(place, number).returncode == -signal.SIGKILL, number
        assert not place.exists() or local.fault(place) == "" or is_broken, number
        local.prepare(place, create, own=True)
        assert local.fault(place) == "", number
        assert [p.name for p in place.parent.iterdir() if ".part-" in p.name] == [], number
        kept = [p for p in place.parent.iterdir() if ".broken-" in p.name]
        assert (len(kept), local.needs_refill(place)) == (is_broken, is_broken), number


def test_processes_that_need_a_store_at_once_create_it_once(database: Path) -> None:
    created: list[Path] = []
    all_there = threading.Barrier(4)

    def slow(path: Path) -> None:
        created.append(path)
        create(path)

    def need() -> None:
        all_there.wait(10)
        local.prepare(database, slow, own=True)

    threads = [threading.Thread(target=need) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(created) == 1
    assert local.fault(database) == ""


def test_without_a_lock_the_first_store_stays_and_what_others_create_is_dropped(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def without(_folder: Path) -> Any:
        yield False

    monkeypatch.setattr(local, "_locked", without)

    def late(path: Path) -> None:
        create(path)
        create(database)
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE of_the_first (name TEXT)")

    local.prepare(database, late, own=True)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT * FROM of_the_first").fetchall() == []
    assert {p.name for p in database.parent.iterdir()} == {"mlflow.db", "mlartifacts"}


def test_a_file_system_without_hard_links_gets_a_store_too(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    local.prepare(database, create, own=True)
    assert local.fault(database) == ""


def test_a_creation_that_fails_leaves_nothing_behind(database: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        local.prepare(database, fail, own=True)
    assert list(database.parent.iterdir()) == []


def test_a_journal_that_is_left_of_a_store_that_is_gone_is_not_applied_to_the_next(database: Path) -> None:
    database.parent.mkdir()
    for suffix in ("-journal", "-wal", "-shm"):
        Path(f"{database}{suffix}").write_bytes(b"of another time")
    local.prepare(database, create, own=True)
    assert {p.name for p in database.parent.iterdir()} == {"mlflow.db", "mlartifacts"}


# -- broken ---------------------------------------------------------------------------------------


def interrupted(path: Path) -> None:
    create(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE _alembic_tmp_runs (name TEXT)")


def unfinished(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE experiments (name TEXT)")


def damaged(path: Path) -> None:
    create(path)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


BROKEN = {
    "interrupted": interrupted,
    "unfinished": unfinished,
    "damaged": damaged,
    "empty": lambda path: path.write_bytes(b""),
    "no database": lambda path: path.write_bytes(b"text, and plenty of it" * 100),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_store_is_moved_aside_and_kept_once(
    database: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    database.parent.mkdir()
    for number in (1, 2):
        database.unlink(missing_ok=True)
        BROKEN[how](database)
        before = database.read_bytes()
        assert local.fault(database)
        assert local.needs_refill(database)
        local.prepare(database, create, own=True)
        aside = database.with_name(f"mlflow.db.broken-{number}")
        assert aside.read_bytes() == before
        assert local.fault(database) == ""
        assert local.needs_refill(database), "it does not have the studies yet"
        local.refilled(database)
        assert not local.needs_refill(database)
    assert caplog.text.count("fill a new one from the journals") == 2
    local.prepare(database, create, own=True)
    assert not database.with_name("mlflow.db.broken-3").exists()


@pytest.mark.parametrize("how", BROKEN)
def test_a_store_that_the_user_named_is_neither_moved_nor_closed(database: Path, how: str) -> None:
    database.parent.mkdir()
    BROKEN[how](database)
    database.chmod(0o644)
    before = database.read_bytes()
    local.prepare(database, create, own=False)
    assert {p.name for p in database.parent.iterdir()} == {"mlflow.db"}
    assert (database.read_bytes(), stat.S_IMODE(database.stat().st_mode)) == (before, 0o644)


def test_a_store_that_is_locked_or_in_use_is_not_called_broken(database: Path) -> None:
    database.parent.mkdir()
    create(database)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert local.fault(database) == ""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        assert local.fault(database) == ""
    assert local.fault(database.with_name("missing.db")) == ""


# -- private --------------------------------------------------------------------------------------


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Any:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_new_store_is_private_whatever_the_umask(database: Path) -> None:
    local.prepare(database, create, own=True)
    assert modes(database.parent) == {"mlflow.db": 0o600, "mlartifacts": 0o700}
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE more (name TEXT)")
        beside = modes(database.parent)
        assert (beside["mlflow.db-wal"], beside["mlflow.db-shm"]) == (0o600, 0o600)


def test_what_an_earlier_version_left_open_is_closed_on_the_next_start(database: Path) -> None:
    artifacts = database.parent / "mlartifacts"
    (artifacts / "train" / "run" / "artifacts").mkdir(parents=True)
    outside = database.parent / "outside.txt"
    for file in (artifacts / "train" / "run" / "artifacts" / "best.yaml", outside):
        file.write_text("x")
    (artifacts / "train" / "link").symlink_to(outside)
    create(database)
    Path(f"{database}-journal").touch()
    for path in (database, *database.parent.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)
    local.prepare(database, create, own=True)
    found = modes(database.parent)
    assert found.pop("outside.txt") == 0o666
    del found["mlartifacts/train/link"]
    assert {name: mode for name, mode in found.items() if mode & 0o077} == {}
    assert found["mlartifacts"] == 0o700
    assert found["mlartifacts/train/run/artifacts/best.yaml"] == 0o600


def test_a_store_that_lies_elsewhere_behind_a_link_is_closed_there(database: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk"
    (elsewhere / "artifacts").mkdir(parents=True)
    create(elsewhere / "big.db")
    for path in elsewhere.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    database.parent.mkdir()
    database.symlink_to(elsewhere / "big.db")
    (database.parent / "mlartifacts").symlink_to(elsewhere / "artifacts")
    local.prepare(database, create, own=True)
    assert modes(elsewhere) == {"big.db": 0o600, "artifacts": 0o700}


@pytest.mark.usefixtures("umask")
def test_another_account_reads_nothing_of_a_store(open_folder: Path, second_account: Account) -> None:
    database = open_folder / "mlflow.db"
    local.prepare(database, create, own=True)
    (open_folder / "mlartifacts" / "note.txt").write_text("x")
    control = open_folder / "control.txt"
    control.touch()
    control.chmod(0o644)
    assert second_account.readable(open_folder) == [str(open_folder), str(control)]


def test_a_store_of_another_account_is_refused_with_what_to_do(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **_more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    database.parent.mkdir()
    create(database)
    database.chmod(0o666)
    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(TrackerUnavailable, match="belongs to another account") as caught:
        local.prepare(database, create, own=True)
    assert "AUTOTUNE_HOME" in caught.value.hint


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_address_of_any_folder_leads_to_its_database(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "home"
    folder.mkdir(parents=True)
    address = local.plain_uri(folder / "mlflow.db")
    path = address.removeprefix("sqlite:///")
    assert not set("%?#") & set(path)
    create(Path(path))
    assert local.fault(folder / "mlflow.db") == ""
    assert sqlite_path(local.plain_uri(tmp_path / "plain.db")) == tmp_path / "plain.db"


# -- with the real MLflow -------------------------------------------------------------------------

SENT = """
import os, sys
sys.path[:0] = [sys.argv[1]]
import made_studies as made
from autotune.driver.sinks.sync import mlflow_sink
study = made.study(study_id=sys.argv[2], label="train-" + sys.argv[2][-1])
sink = mlflow_sink()
sink.open()
for trial in study.finished():
    sink.send("trial_ended", {"wall_s": made.WALL_S + trial.number, "number": trial.number}, study)
ended = {"wall_s": made.WALL_S + 99, "why": "x", "best_yaml": "picks: {}"}
sink.send("study_ended", ended, study, made.found())
"""
WHOLE_BYTES = 500_000
"""Somewhat less than MLflow's tables take without any run."""
HELPERS = str(Path(__file__).parents[2] / "helpers")


def sender(home: Path, number: int, *, cwd: Path | None = None, **more: Any) -> subprocess.Popen[str]:
    """A process that sends a study to the default store of a home."""
    command = [sys.executable, "-c", SENT, HELPERS, f"01JD000000000000000000000{number}"]
    environ = {**os.environ, "AUTOTUNE_HOME": str(home)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environ, cwd=cwd, **pipes, **more)  # type: ignore[call-overload]


def searches(database: Path) -> set[str]:
    """Labels of the studies in a store, read without MLflow."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT value FROM tags WHERE key = 'autotune.label'")
        return {label for (label,) in rows}


@real
@pytest.mark.timeout(300)
def test_four_searches_that_start_at_once_in_a_fresh_home_share_one_store(database: Path) -> None:
    processes = [sender(database.parent, number) for number in range(4)]
    reported = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, reported
    assert searches(database) == {f"train-{number}" for number in range(4)}
    assert {p.name for p in database.parent.iterdir()} == {"mlflow.db", "mlartifacts"}
    assert {name: mode for name, mode in modes(database.parent).items() if mode & 0o077} == {}


@real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_while_mlflow_creates_the_store_costs_the_next_nothing(
    database: Path,
) -> None:
    moments = random.Random(32)
    for _ in range(8):
        process, size = sender(database.parent, 0), moments.uniform(0.0, WHOLE_BYTES)
        while not any(p.stat().st_size >= size for p in database.parent.glob("*.part-*/mlflow.db")):
            assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
        assert not database.exists()
    last = sender(database.parent, 1)
    reported = last.communicate(timeout=240)
    assert last.returncode == 0, reported
    assert searches(database) == {"train-1"}
    assert [p.name for p in database.parent.iterdir() if ".part-" in p.name] == []


@real
@pytest.mark.parametrize("name", ["o'neil", "o'n\"eil 100%41", "what? a#b", "ünï 名  x=1&y;z"])
def test_any_name_of_working_folder_and_home_holds_a_store_with_its_artifacts(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.driver.sinks.sync import mlflow_sink

    work = tmp_path / name
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("AUTOTUNE_HOME", str(work / "home"))
    study, sink = made.study(), mlflow_sink()
    sink.send("study_began", {"wall_s": made.WALL_S}, study)
    sink.send(
        "study_ended", {"wall_s": made.WALL_S + 9, "why": "x", "best_yaml": "a: 1\n"}, study, made.found()
    )
    assert local.fault(work / "home" / "mlflow.db") == ""
    (run,) = sink._connection.runs(sink._experiment.id, "tags.`autotune.role` = 'study'")
    found = Path(sink._connection.client.download_artifacts(run.info.run_id, "best.yaml"))
    assert found.read_text() == "a: 1\n"
    assert len([*(work / "home" / "mlartifacts" / "autotune-train").rglob("best.yaml")]) == 1
    assert {p.name for p in work.iterdir()} == {"home"}
    assert {p.name for p in tmp_path.iterdir()} == {name}, "no folder of a misread name"
    assert {n: mode for n, mode in modes(work / "home").items() if mode & 0o077} == {}
    assert set(mlflow_sink().find(study)) == set(sink.paths())
