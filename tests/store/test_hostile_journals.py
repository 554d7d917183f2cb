"""Whatever a journal's file holds, reading it ends, runs nothing of its writer's and says what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli.main import run
from autotune.errors import JournalDamaged, StoreError
from autotune.store import sqlite_file
from autotune.store.fold import fold
from autotune.store.journal import Journal, _digest
from autotune.store.outbox import MLFLOW
from autotune.store.paths import all_studies, home, study_dir
from autotune.store.study_lock import is_locked, locked

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made

GOOD, BAD = "01JD0000000000000000000001", "01JE0000000000000000000002"
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
COLUMNS = "n AS seq, 'u' || n AS uid, 1 AS epoch, 'finished' AS kind, 1.0 AS wall_s, '{}' AS json, 'x' AS sha"
REBUILT = "seq INTEGER PRIMARY KEY, uid TEXT, epoch INTEGER, kind TEXT, wall_s REAL, sha TEXT"

pytestmark = pytest.mark.timeout(60)


def put(study_id: str) -> Path:
    with Journal.create(study_dir(study_id), ballast_bytes=0, environ={}) as journal:
        for event in made.events(study_id=study_id, label=f"train-{study_id[3]}"):
            journal.append(event.kind, event.uid, event.data, outbox=event.outbox)
    with contextlib.closing(sqlite3.connect(study_dir(study_id) / "journal.db")) as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
    return study_dir(study_id) / "journal.db"


@pytest.fixture
def bad() -> Path:
    """The file of a study that somebody has changed, newer than a good one."""
    put(GOOD)
    return put(BAD)


def script(*statements: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as raw:
            for statement in statements:
                raw.execute(statement)

    return change


def forged(text: str, **columns: object) -> Callable[[Path], None]:
    """The first event with another text, under digests that fit."""

    def change(file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as raw:
            before = ""
            for seq, uid, epoch, kind, wall_s, old in raw.execute(
                "SELECT seq, uid, epoch, kind, wall_s, json FROM events ORDER BY seq"
            ).fetchall():
                row = {"uid": uid, "epoch": epoch, "kind": kind, "wall_s": wall_s, "json": old}
                row |= {"json": text, **columns} if seq == 1 else {}
                sha = _digest(
                    before, seq, *(row[name] for name in ("uid", "epoch", "kind", "wall_s", "json"))
                )
                raw.execute(
                    "UPDATE events SET uid=?, epoch=?, kind=?, wall_s=?, json=?, sha=? WHERE seq=?",
                    (*row.values(), sha, seq),
                )
                before = sha
            raw.execute("UPDATE meta SET value = ? WHERE key = 'head'", (f"{seq} {before}",))

    return change


def as_pipe(name: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.with_name(name).unlink(missing_ok=True)
        os.mkfifo(file.with_name(name))

    return change


def sparse(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.truncate(sqlite_file.MOST_BYTES + 1)


def device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


HOSTILE: dict[str, Callable[[Path], None]] = {
    "events are an endless view": script(
        "DROP TABLE events", f"CREATE VIEW events AS {ENDLESS} SELECT {COLUMNS} FROM r"
    ),
    "meta is an endless view": script(
        "DROP TABLE meta", f"CREATE VIEW meta AS {ENDLESS} SELECT 'head' AS key, '1 x' AS value FROM r"
    ),
    "outbox is an endless view": script(
        "DROP TABLE outbox",
        f"CREATE VIEW outbox AS {ENDLESS} SELECT n AS seq, 0 AS done, 'mlflow' AS sink FROM r",
    ),
    "a further view": script(f"CREATE VIEW more AS {ENDLESS} SELECT n FROM r"),
    "a trigger": script("CREATE TRIGGER t AFTER INSERT ON outbox BEGIN DELETE FROM events; END"),
    "a generated column": script(
        "DROP TABLE events",
        f"CREATE TABLE events ({REBUILT}, json TEXT GENERATED ALWAYS AS (printf('%.*c', 1000000000, 'x')))",
    ),
    "an index on an expression": script("CREATE INDEX i ON events (length(zeroblob(1000000000)))"),
    "a check that computes": script(
        "DROP TABLE meta", "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT CHECK (length(value) > 0))"
    ),
    "a virtual table": script("CREATE VIRTUAL TABLE v USING rtree(a, b, c)"),
    "columns of other names": script("ALTER TABLE events RENAME COLUMN json TO text"),
    "text that is none": forged("{", kind="opened"),
    "a list in place of a mapping": forged("[1, 2]"),
    "very deep JSON": forged("[" * 100_000 + "]" * 100_000),
    "deep JSON that Python reads": forged('{"a":' * 200 + "1" + "}" * 200),
    "a number of ten thousand digits": forged('{"spec": ' + "9" * 10_000 + "}"),
    "text in the place of a number": forged("{}", epoch="many"),
    "bytes in the place of text": forged("{}", kind=b"\xff\xfe"),
    "a time in no calendar": forged('{"wall_s": 1e300, "spec": {}}'),
    "a specification of other types": forged('{"wall_s": 1.0, "spec": [1]}'),
    "a pipe": as_pipe("journal.db"),
    "a pipe beside it": as_pipe("journal.db-wal"),
    "a device": device,
    "no end of zeros": sparse,
    "no database": lambda file: file.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000) and None,
    "nothing": lambda file: file.write_bytes(b"") and None,
}


def read(file: Path) -> None:
    with Journal.read(file) as journal:
        fold(journal.entries())
        journal.unsent(MLFLOW)


@pytest.mark.parametrize("kind", HOSTILE)
def test_reading_ends_with_a_damaged_journal(bad: Path, kind: str) -> None:
    read(bad)
    HOSTILE[kind](bad)
    with pytest.raises(StoreError):
        read(bad)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", HOSTILE)
def test_every_verb_goes_on_with_the_other_studies(
    bad: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    HOSTILE[kind](bad)
    assert run(["list", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["studies"]}
    assert rows[GOOD]["label"] == "train-D"
    assert rows.get(BAD, {"state": "unreadable"})["state"] == "unreadable"
    assert run(["show", "train-D"]) == 0
    assert run(["show", str(bad.parent)]) == 5
    assert run(["report", str(bad.parent), "--md"]) == 5
    assert run(["clean", "--dry-run"]) == 0
    assert run(["resume", str(bad.parent)]) == 5


def test_list_goes_on_with_the_other_studies(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    HOSTILE["events are an endless view"](bad)
    assert run(["list", "--json"]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["studies"]] == [GOOD]


def test_what_is_left_out_has_its_reason(bad: Path) -> None:
    HOSTILE["events are an endless view"](bad)
    seen = all_studies()
    assert [found.study_id for found in seen.found] == [GOOD]
    assert seen.left_out == {BAD: "its journal cannot be read"}
    assert seen.note == f"1 study is left out ({BAD}: its journal cannot be read)"


def test_the_message_names_what_is_not_a_journals(bad: Path) -> None:
    HOSTILE["events are an endless view"](bad)
    with pytest.raises(JournalDamaged, match='is not a journal: it has an unknown view "events"'):
        Journal.read(bad)


def test_a_statement_that_takes_too_many_steps_is_ended(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_CHECKED_EVERY", 10)
    monkeypatch.setattr(sqlite_file, "MOST_STEPS", 2_000)
    read(bad)
    rows = [(n, 1, MLFLOW, "x", f"k{n}", "{}", 0) for n in range(100, 2_000)]
    with contextlib.closing(sqlite3.connect(bad, isolation_level=None)) as raw:
        raw.execute("BEGIN")
        raw.executemany("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        raw.execute("COMMIT")
    with Journal.read(bad) as journal, pytest.raises(JournalDamaged, match="exceeds the step limit"):
        journal.unsent(MLFLOW)


def test_a_log_of_another_journal_beside_it_is_reported_by_the_chain_of_events(bad: Path) -> None:
    """SQLite applies a write-ahead log to whatever file it lies beside; the digests do not fit then."""
    other = put("01JF0000000000000000000003")
    writer = Journal.open(other, ballast_bytes=0)
    writer.append("stopped", "stopped/9", {"why": "forged", "elapsed_s": 1.0})
    stolen = other.with_name("journal.db-wal").read_bytes()
    writer.close()
    script("PRAGMA journal_mode=WAL")(bad)
    bad.with_name("journal.db-wal").write_bytes(stolen)
    with Journal.read(bad) as journal, pytest.raises(JournalDamaged):
        list(journal.entries())


@pytest.mark.parametrize("name", ["journal.lock", "journal.ballast", "journal.db", "journal.db-wal"])
def test_nothing_is_written_through_a_link(bad: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    shutil.copy(bad, mine)
    before = mine.read_bytes()
    bad.with_name(name).unlink(missing_ok=True)
    bad.with_name(name).symlink_to(mine)
    with pytest.raises(StoreError):
        Journal.open(bad)
    with contextlib.suppress(StoreError), locked(bad.parent):
        pass
    assert mine.read_bytes() == before
    assert isinstance(is_locked(bad.parent), bool)


def test_a_lock_that_is_a_pipe_is_not_waited_for(bad: Path) -> None:
    as_pipe("journal.lock")(bad)
    assert isinstance(is_locked(bad.parent), bool)
    assert run(["clean", "--dry-run"]) == 0


def test_studies_of_a_home_are_never_followed_into_a_file(bad: Path) -> None:
    shutil.rmtree(bad.parent)
    bad.parent.write_text("no folder")
    assert all_studies().left_out == {BAD: "it is no folder"}
    assert [path.name for path in (home() / "studies").iterdir()]
