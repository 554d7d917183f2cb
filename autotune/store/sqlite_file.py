"""A journal's SQLite file, opened so that reading it ends and runs nothing of its writer's.

A file may come from somebody else. Its schema has to be the one that a journal has, object for object: views,
triggers, virtual tables and generated columns compute what they return and need not end. Statements have a
limit on their steps, values and the file one on their size (docs/decisions/0113).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import stat
import sys
from typing import TYPE_CHECKING, Final

from autotune.errors import JournalDamaged, StoreError, StudyNotFound
from autotune.store.owners import account, is_own

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, kind TEXT NOT NULL,
    wall_s REAL NOT NULL, json TEXT NOT NULL, sha TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY, event INTEGER NOT NULL, sink TEXT NOT NULL, op TEXT NOT NULL,
    key TEXT NOT NULL, payload TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0, UNIQUE (sink, key));
CREATE INDEX IF NOT EXISTS outbox_open ON outbox (sink, seq) WHERE done = 0;
"""
"""Every table and index of a journal. To change it is another `FORMAT`."""

MOST_BYTES: Final = 1 << 30
"""Of a journal; one of 10,000 trials has some hundred MB."""
MOST_VALUE_BYTES: Final = 64 << 20
"""Of one event or one row of it."""
MOST_STEPS: Final = 200_000_000
"""Of SQLite's machine in one statement: some seconds. A page of events takes thousands of them."""
_CHECKED_EVERY: Final = 100_000
_BESIDE: Final = ("-wal", "-shm", "-journal")
_MOST_OBJECTS: Final = 50
DAMAGED_HINT: Final = (
    "Keep a copy of the directory. The results of trials are in its folder `trials`; "
    "a new search is not affected."
)


class Connection(sqlite3.Connection):
    """A connection whose statements end: `begin` gives the next one its number of steps."""

    _calls = 0

    def bound(self) -> None:
        """Set every limit that SQLite has for files that are not trusted."""
        self.set_progress_handler(self._count, _CHECKED_EVERY)
        self.execute("PRAGMA trusted_schema=OFF")
        self.execute("PRAGMA cell_size_check=ON")
        self.execute("PRAGMA mmap_size=0")
        if sys.version_info >= (3, 11):
            self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
            self.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)

    def begin(self) -> None:
        """A statement begins; it may take `MOST_STEPS`."""
        self._calls = 0

    def _count(self) -> bool:
        self._calls += 1
        return self._calls * _CHECKED_EVERY > MOST_STEPS


def connect_to_read(file: Path, *, timeout_s: float = 30.0) -> Connection:
    """Open a journal for reading alone; `check_schema` comes next.

    Raises:
        StudyNotFound: No journal is there.
        StoreError: It may not be read.
        JournalDamaged: It is no plain file, or too large.
        sqlite3.Error: SQLite cannot open it.
    """
    check_files(file)
    # A directory that may not be written cannot hold the shared memory of the write-ahead log;
    # without a log there is nothing that it would be needed for.
    writable = os.access(file.parent, os.W_OK) or file.with_name(f"{file.name}-wal").exists()
    connection = _connected(f"{file.as_uri()}?mode=ro{'' if writable else '&immutable=1'}", timeout_s)
    connection.execute("PRAGMA query_only=ON")
    return connection


def connect_to_write(file: Path) -> Connection:
    """Open a journal of this account's own for reading and writing; `check_schema` comes next.

    Raises:
        StoreError: It, or what SQLite keeps beside it, is a link or belongs to another account.
        JournalDamaged, sqlite3.Error: As for `connect_to_read`.
    """
    check_files(file)
    check_own(file, *(file.with_name(file.name + suffix) for suffix in _BESIDE))
    return _connected(f"{file.as_uri()}?mode=rw", 30.0)


def check_files(file: Path) -> None:
    """Refuse what is no plain file: a pipe would be waited for, a device has no end.

    Raises:
        StudyNotFound: No journal is there.
        StoreError: It may not be looked at.
        JournalDamaged: It is no plain file, or larger than any journal.
    """
    for path in (file, *(file.with_name(file.name + suffix) for suffix in _BESIDE)):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            if path == file:
                message = f"there is no journal at {file}"
                raise StudyNotFound(message, hint="`autotune list` shows the studies.") from error
            continue
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}"
            raise StoreError(message, hint="Whose study is it?") from error
        if not stat.S_ISREG(status.st_mode):
            message = f"{path} is no plain file"
            raise JournalDamaged(message)
        if status.st_size > MOST_BYTES:
            message = f"{path} has {status.st_size >> 20} MiB; a journal has at most {MOST_BYTES >> 20}"
            raise JournalDamaged(message)


def check_own(*paths: Path) -> None:
    """Refuse to write to what leads elsewhere or is another account's.

    Raises:
        StoreError: One of these files is there and is a link, or belongs to somebody else.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                message = f"{path} is a link, or no plain file; nothing is written through it"
                raise StoreError(message)
            if not is_own(status.st_uid, path.parent):
                message = f"{path} belongs to {account(status.st_uid)}"
                raise StoreError(message, hint="Only its own account can continue a study.")


def check_schema(connection: Connection, file: Path) -> None:
    """Refuse a file that holds anything but a journal's tables and indexes, defined as a journal's.

    Raises:
        JournalDamaged: It names the first such thing.
    """
    connection.begin()
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master LIMIT ?", (_MOST_OBJECTS,)
    ).fetchall()
    expected = _objects()
    for kind, name, sql in rows:
        if (kind, name) not in expected or expected[kind, name] != _squeezed(sql):
            message = f'{file} is not a journal: its {kind} "{name}" is none that a journal has'
            raise JournalDamaged(message, hint=DAMAGED_HINT)


def is_endless(error: sqlite3.Error) -> bool:
    """Return whether a statement was ended because it took more steps than any of a journal."""
    return str(error) == "interrupted"


def _connected(uri: str, timeout_s: float) -> Connection:
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    # Damaged text is to fail its own digest, which names the event, and not the whole reading.
    connection.text_factory = _text
    connection.bound()
    return connection


@functools.cache
def _objects() -> dict[tuple[str, str], str]:
    """(type, name) -> definition of everything that a journal has, as SQLite keeps it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(SCHEMA)
        rows = memory.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return {(kind, name): _squeezed(sql) for kind, name, sql in rows}


def _squeezed(sql: object) -> str:
    return " ".join(str(sql or "").split())


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
