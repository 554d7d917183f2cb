"""The journal keeps what it acknowledged, refuses what is not whole, and has one writer."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import SimulatedClock
from autotune.errors import DiskFull, JournalDamaged, StoreError, StudyLocked, StudyNotFound
from autotune.store.journal import Journal, has_room
from autotune.store.outbox import OutboxRow
from autotune.store.study_lock import is_network_filesystem

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made


def create(path: Path, **more: object) -> Journal:
    return Journal.create(path, ballast_bytes=0, environ={}, **more)  # type: ignore[arg-type]


def reopen(path: Path) -> Journal:
    return Journal.open(path, ballast_bytes=0, environ={})


def uids(path: Path) -> list[str]:
    with contextlib.closing(Journal.read(path)) as journal:
        return [entry.uid for entry in journal.entries()]


def test_a_reader_never_finds_a_journal_half_begun(tmp_path: Path) -> None:
    """Somebody lists studies while one begins, again and again."""
    seen: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for file in tmp_path.glob("*/journal.db"):
                try:
                    with Journal.read(file) as reader:
                        seen.extend(entry.kind for entry in reader.entries())
                except StoreError as error:
                    seen.append(str(error))

    watching = threading.Thread(target=read)
    watching.start()
    for number in range(30):
        Journal.create(tmp_path / str(number), ballast_bytes=0).close()
    done.set()
    watching.join()
    assert seen == []


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    with create(tmp_path / "s", clock=SimulatedClock(wall_s=5.0)) as journal:
        for event in made.events():
            journal.append(event.kind, event.uid, event.data)
    with contextlib.closing(Journal.read(tmp_path / "s")) as reader:
        entries = list(reader.entries())
        assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
        assert [e.uid for e in entries] == [e.uid for e in made.events()]
        assert {e.wall_s for e in entries} == {5.0}
        assert [e.uid for e in reader.entries(after=3)] == [e.uid for e in entries[3:]]


def test_text_that_no_encoding_has_is_spelled_out(tmp_path: Path) -> None:
    row = OutboxRow(sink="mlflow", op="trial_ended", key="k\udc80", payload={"name": "\udcff"})
    with create(tmp_path) as journal:
        journal.append("noted", "noted/\udc80", {"text": 'caf\udce9 "\\\udcff"'}, outbox=[row])
        assert journal.pending("mlflow")[0].payload == {"name": r"\udcff"}
    with contextlib.closing(reopen(tmp_path)) as journal:
        (entry,) = journal.entries()
        assert entry.uid == r"noted/\udc80"
        assert entry.data["text"] == 'caf\\udce9 "\\\\udcff"'


def test_an_event_with_a_known_uid_is_written_once_and_so_are_its_rows(tmp_path: Path) -> None:
    row = OutboxRow(sink="mlflow", op="trial_ended", key="k", payload={"number": 1})
    with create(tmp_path) as journal:
        first = journal.append("finished", "finished/1/1", {"n": 1}, outbox=[row])
        assert journal.append("finished", "finished/1/1", {"n": 2}, outbox=[row]) == first
        assert [e.data for e in journal.entries()] == [{"n": 1}]
        (pending,) = journal.pending("mlflow")
        assert (pending.op, pending.payload, pending.key) == ("trial_ended", {"number": 1}, "k")
        assert journal.pending("other") == []
        journal.ack(pending.seq)
        assert journal.unsent("mlflow") == 0
        journal.resend("mlflow")
        assert journal.unsent("mlflow") == 1


def test_infinity_is_kept_and_what_has_no_place_in_json_is_refused(tmp_path: Path) -> None:
    with create(tmp_path) as journal:
        journal.append("noted", "a", {"x": float("inf")})
        assert next(journal.entries()).data == {"x": {"_": "float", "v": "inf"}}
        with pytest.raises(TypeError):
            journal.append("noted", "b", {"x": object()})
        assert uids(tmp_path) == ["a"]


def test_a_second_writer_is_refused_with_the_holder_of_the_lock(tmp_path: Path) -> None:
    with create(tmp_path) as journal:
        journal.append("noted", "a", {})
        with pytest.raises(StudyLocked, match=rf"pid {os.getpid()} on host \S+"):
            reopen(tmp_path)
        assert uids(tmp_path) == ["a"], "a reader needs no lock"
    reopen(tmp_path).close()


def test_a_writer_of_an_older_epoch_writes_nothing_more(tmp_path: Path) -> None:
    with create(tmp_path) as old:
        old.append("noted", "a", {})
        # As where a lock is lost without notice: another file, so another lock.
        (tmp_path / "journal.lock").unlink()
        with reopen(tmp_path) as new:
            assert new.epoch == old.epoch + 1
            new.append("noted", "b", {})
            with pytest.raises(StudyLocked, match="taken over"):
                old.append("noted", "c", {})
            with pytest.raises(StudyLocked):
                old.ack(1)
            assert uids(tmp_path) == ["a", "b"]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            'UPDATE events SET json = \'{"text":"other"}\' WHERE seq = 4',
            "event 4 .* events 1 to 3 are intact",
        ),
        ("UPDATE events SET wall_s = 1 WHERE seq = 1", "event 1 .* no event before it"),
        ("DELETE FROM events WHERE seq BETWEEN 3 AND 4", "events 3 to 4 are missing"),
        ("UPDATE events SET sha = x'00' WHERE seq = 2", "event 2"),
        (
            "DELETE FROM events WHERE seq > 4",
            "events 5 to 6 are missing at the end; .* 1 to 4 are",
        ),
        ("DELETE FROM events", "events 1 to 6 are missing at the end"),
        ("UPDATE meta SET value = 'six' WHERE key = 'head'", "last event is 'six'"),
        (
            "UPDATE meta SET value = '6 ab' WHERE key = 'head'",
            "event 6 .* is not the last one written",
        ),
    ],
)
def test_an_edit_is_noticed_and_located(tmp_path: Path, statement: str, says: str) -> None:
    with create(tmp_path) as journal:
        for i in range(6):
            journal.append("noted", f"n/{i}", {"text": "x"})
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as raw, raw:
        raw.execute(statement)
    with contextlib.closing(Journal.read(tmp_path)) as reader, pytest.raises(JournalDamaged, match=says):
        list(reader.entries())
    with pytest.raises(JournalDamaged, match=says):
        reopen(tmp_path)
    reopen_possible = (tmp_path / "journal.lock").exists()
    assert reopen_possible, "the lock was let go, or the next line blocks"
    with pytest.raises(JournalDamaged, match=says):
        reopen(tmp_path)


def test_a_file_that_is_no_journal_is_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"hello " * 1000)
    for way in (Journal.read, reopen):
        with pytest.raises(JournalDamaged, match=r"journal\.db"):
            way(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as raw, raw:
        raw.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    with pytest.raises(StoreError):
        Journal.read(tmp_path / "other.db")
    with pytest.raises(StudyNotFound):
        Journal.read(tmp_path / "nowhere")


@pytest.mark.parametrize("table", ["meta", "events", "outbox"])
def test_a_schema_that_is_no_text_any_more_is_called_damaged(tmp_path: Path, table: str) -> None:
    create(tmp_path).close()
    file = tmp_path / "journal.db"
    data = bytearray(file.read_bytes())
    place = data.index(f"TABLE {table}".encode())
    data[place : place + 40] = b"\x80" * 40
    file.write_bytes(data)
    for way in (Journal.read, reopen):
        with (
            pytest.raises(JournalDamaged, match=r"journal\.db is damaged"),
            contextlib.closing(way(tmp_path)),
        ):
            pass


@pytest.mark.parametrize("written", ["99", "one", "", "-1"])
def test_another_format_is_refused_and_not_touched(tmp_path: Path, written: str) -> None:
    create(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as raw, raw:
        raw.execute("UPDATE meta SET value = ? WHERE key = 'format'", (written,))
    for way in (Journal.read, reopen):
        with pytest.raises(StoreError, match=f"format {written};"):
            way(tmp_path)


def test_a_journal_that_kept_no_head_is_read_and_has_one_from_then_on(tmp_path: Path) -> None:
    with create(tmp_path) as journal:
        for i in range(3):
            journal.append("noted", f"n/{i}", {})
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as raw, raw:
        raw.execute("DELETE FROM meta WHERE key = 'head'")
    assert uids(tmp_path) == ["n/0", "n/1", "n/2"]
    reopen(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as raw, raw:
        raw.execute("DELETE FROM events WHERE seq = 3")
    with pytest.raises(JournalDamaged, match="events 3 to 3 are missing"):
        uids(tmp_path)


def test_a_reader_beside_a_writer_takes_nothing_for_missing(tmp_path: Path) -> None:
    with create(tmp_path) as journal, contextlib.closing(Journal.read(tmp_path)) as reader:
        journal.append("noted", "a", {})
        seen = reader.entries()
        assert next(seen).uid == "a"
        journal.append("noted", "b", {})
        assert [e.uid for e in seen] == []
        assert [e.uid for e in reader.entries(after=1)] == ["b"]


def test_a_log_cut_anywhere_loses_only_whole_events_from_the_end(tmp_path: Path) -> None:
    """The file is copied as a killed machine would leave it, its log cut at random places."""
    draw = random.Random(7)
    with create(tmp_path / "whole") as journal:
        # One row so big that it takes several frames of the log.
        written = [f"n/{i}" for i in range(25)]
        for i, uid in enumerate(written):
            journal.append("noted", uid, {"text": "x" * (9000 if i % 5 == 0 else 300)})
        database = (tmp_path / "whole" / "journal.db").read_bytes()
        wal = (tmp_path / "whole" / "journal.db-wal").read_bytes()
    seen: set[int] = set()
    last = -1
    cuts = sorted(draw.randrange(len(wal)) for _ in range(100))
    for cut in cuts:
        torn = tmp_path / "torn"
        torn.mkdir()
        (torn / "journal.db").write_bytes(database)
        (torn / "journal.db-wal").write_bytes(wal[:cut])
        try:
            with reopen(torn) as again:
                kept = [e.uid for e in again.entries()]
                assert again.append("noted", "after", {}) == len(kept) + 1
        except StoreError:
            # The very first commit, which makes the tables, was torn: nothing was acknowledged yet.
            kept = []
        assert kept == written[: len(kept)]
        assert len(kept) >= last, "a longer log never holds fewer events"
        last = len(kept)
        seen.add(len(kept))
        shutil.rmtree(torn)
    assert len(seen) > 10, "the cuts did not fall into different events"


WRITER = """
import sys
from pathlib import Path
from autotune.store.journal import Journal
journal = Journal.open(Path(sys.argv[1]), ballast_bytes=0)
for i in range(10**6):
    uid = f"n/{journal.epoch}/{i}"
    journal.append("noted", uid, {"text": "x" * 200})
    sys.stdout.write(uid + "\\n")
    sys.stdout.flush()
"""


@pytest.mark.thorough
def test_twenty_kills_of_a_writer_lose_no_acknowledged_event(tmp_path: Path) -> None:
    create(tmp_path).close()
    acknowledged: list[str] = []
    draw = random.Random(3)
    for _ in range(20):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(draw.randrange(1, 12)):
                acknowledged.append(writer.stdout.readline().strip())
            writer.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    kept = uids(tmp_path)
    assert len(acknowledged) >= 20
    assert len(set(kept)) == len(kept)
    assert [u for u in acknowledged if u not in set(kept)] == []
    # At most one event per kill was written and not yet acknowledged.
    assert len(kept) - len(acknowledged) <= 20


def test_threads_share_one_journal(tmp_path: Path) -> None:
    with create(tmp_path) as journal:

        def write(name: int) -> None:
            for i in range(20):
                journal.append("noted", f"{name}/{i}", {"name": name})
                list(journal.entries())

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(journal.entries())) == 80
    assert len(uids(tmp_path)) == 80


def test_a_journal_that_another_program_holds_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with create(tmp_path) as journal:
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN EXCLUSIVE")
        timer = threading.Timer(0.4, other.execute, ("COMMIT",))
        timer.start()
        journal.append("noted", "a", {})
        timer.join()
        other.close()
    assert uids(tmp_path) == ["a"]


def test_a_full_disk_stops_the_study_and_says_so_in_the_reserve(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, environ={}, ballast_bytes=1 << 20)
    assert (tmp_path / "journal.ballast").stat().st_size == 1 << 20
    journal.append("noted", "a", {})
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(DiskFull, match="full"):  # noqa: PT012 (which of them it is does not matter)
        for i in range(50):
            journal.append("finished", f"finished/{i}", {"text": "x" * 6000, "elapsed_s": 7.0})
    assert not (tmp_path / "journal.ballast").exists()
    journal.close()
    with reopen(tmp_path) as again:
        entries = list(again.entries())
        assert entries[-1].kind == "stopped"
        assert entries[-1].data == {"why": "disk", "elapsed_s": 7.0}
        again.append("noted", "b", {})


class UsedUp:
    """A connection whose writes fail as SQLite has it fail where a quota is used up, until there is room."""

    def __init__(self, real: sqlite3.Connection, reserve: Path) -> None:
        self._real, self._reserve = real, reserve

    def execute(self, sql: str, *rest: Any) -> Any:
        if sql.startswith("INSERT") and self._reserve.exists():
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_WRITE"
            raise error
        return self._real.execute(sql, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("used_up", [True, False])
def test_a_quota_that_is_used_up_is_a_full_disk_and_not_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used_up: bool
) -> None:
    journal = Journal.create(tmp_path, environ={}, ballast_bytes=1 << 16)
    reserve = tmp_path / "journal.ballast"
    journal._connection = UsedUp(journal._connection, reserve)  # type: ignore[assignment]
    write, number = os.write, errno.EDQUOT if used_up else errno.EIO

    def refuse(file: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(StoreError) as raised:
        journal.append("finished", "finished/1", {"elapsed_s": 7.0})
    monkeypatch.setattr(os, "write", write)
    assert isinstance(raised.value, DiskFull) is used_up
    assert reserve.exists() is not used_up
    journal.close()
    with reopen(tmp_path) as again:
        assert [entry.data for entry in again.entries()] == ([{"why": "disk", "elapsed_s": 7.0}] * used_up)


def test_room_is_what_takes_a_small_file(tmp_path: Path) -> None:
    assert has_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert has_room(tmp_path / "missing"), "that is another error, and reported as such"


def test_write_errors_lose_no_acknowledged_event(tmp_path: Path) -> None:
    """A limit on file size makes SQLite's own writes fail, at a different place each time."""
    code = """
import resource, signal, sys
from pathlib import Path
from autotune.errors import StoreError
from autotune.store.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal.open(Path(sys.argv[1]), ballast_bytes=0)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
try:
    for i in range(60):
        journal.append("noted", f"n/{journal.epoch}/{i}", {"text": "x" * 400})
        sys.stdout.write(f"n/{journal.epoch}/{i}\\n")
        sys.stdout.flush()
except StoreError as error:
    sys.stderr.write(error.message)
    sys.exit(3)
"""
    create(tmp_path).close()
    failed = 0
    acknowledged: list[str] = []
    for limit in (45_000, 70_000, 95_001, 120_000):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), str(limit)],
            capture_output=True,
            text=True,
            check=False,
        )
        failed += done.returncode == 3
        acknowledged += done.stdout.split()
    assert failed >= 3
    assert acknowledged
    reopen(tmp_path).close()
    assert [u for u in acknowledged if u not in set(uids(tmp_path))] == []


def test_reading_does_not_write(tmp_path: Path) -> None:
    create(tmp_path).close()
    with contextlib.closing(Journal.read(tmp_path)) as reader:
        for act in (lambda: reader.append("noted", "a", {}), lambda: reader.ack(1)):
            with pytest.raises(StoreError, match="reading only"):
                act()
    with pytest.raises(StoreError, match="closed"):
        list(reader.entries())


def test_a_journal_is_not_begun_twice(tmp_path: Path) -> None:
    create(tmp_path).close()
    with pytest.raises(StoreError, match="exists already"):
        create(tmp_path)


MOUNTS = """\
20 1 8:1 / / rw - ext4 /dev/sda rw
30 20 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/me/fast rw - xfs /dev/sdb rw
32 20 0:42 / /mnt/with\\040space rw - fuse.sshfs x rw
"""


@pytest.mark.parametrize(
    ("directory", "network"),
    [
        ("/var/x", False),
        ("/home", True),
        ("/home/me", True),
        ("/home/me/fast/s", False),
        ("/homework", False),
    ],
)
def test_shared_file_systems_are_recognised_by_their_mount(directory: str, network: bool) -> None:
    assert is_network_filesystem(Path(directory), mounts=MOUNTS) is network


def test_on_a_shared_file_system_there_is_no_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.store.journal.is_network_filesystem", lambda directory: True)
    with create(tmp_path) as journal:
        assert journal._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        journal.append("noted", "a", {})
        assert not (tmp_path / "journal.db-wal").exists()
        with pytest.raises(StudyLocked):
            reopen(tmp_path)


def test_locks_without_effect_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.store.journal.is_network_filesystem", lambda directory: True)
    monkeypatch.setattr("autotune.store.study_lock.fcntl.flock", lambda fd, how: None)
    with pytest.raises(StoreError, match="no effect"):
        create(tmp_path)
