"""SQLite file of a journal, opened so that untrusted contents cannot run code or block.

A file may come from another user. Its schema must equal a journal's, object for object: views, triggers,
virtual tables and generated columns run code that need not end. Statements have a step limit, values and the
file a size limit (docs/decisions/0113).
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
"""All tables and indexes of a journal. A change requires another `FORMAT`."""

MOST_BYTES: Final = 1 << 30
"""Largest journal; one of 10,000 trials has some hundred MB."""
MOST_VALUE_BYTES: Final = 64 << 20
"""Largest event, or row of it."""
MOST_STEPS: Final = 200_000_000
"""Virtual machine steps per statement, some seconds; a page of events takes thousands."""
_CHECKED_EVERY: Final = 100_000
_BESIDE: Final = ("-wal", "-shm", "-journal")
_MOST_OBJECTS: Final = 50
DAMAGED_HINT: Final = (
    "Keep a copy of the directory. The results of trials are in its folder `trials`; "
    "a new search is not affected."
)


class Connection(sqlite3.Connection):
    """Connection with limited statements; `begin` resets the step count for the next one."""

    _calls = 0

    def bound(self) -> None:
        """Set every limit that SQLite has for untrusted files."""
        self.set_progress_handler(self._count, _CHECKED_EVERY)
        self.execute("PRAGMA trusted_schema=OFF")
        self.execute("PRAGMA cell_size_check=ON")
        self.execute("PRAGMA mmap_size=0")
        if sys.version_info >= (3, 11):
            self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
            self.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)

    def begin(self) -> None:
        """Begin a statement with `MOST_STEPS` steps."""
        self._calls = 0

    def _count(self) -> bool:
        self._calls += 1
        return self._calls * _CHECKED_EVERY > MOST_STEPS


def connect_to_read(file: Path, *, timeout_s: float = 30.0) -> Connection:
    """Open a journal for reading only; call `check_schema` next.

    Raises:
        StudyNotFound: There is no journal.
        StoreError: It may not be read.
        JournalDamaged: It is not a regular file, or too large.
        sqlite3.Error: SQLite cannot open it.
    """
    check_files(file)
    # A read-only directory cannot hold the shared memory of the write-ahead log, which is not needed without
    # a log.
    writable = os.access(file.parent, os.W_OK) or file.with_name(f"{file.name}-wal").exists()
    connection = _connected(f"{file.as_uri()}?mode=ro{'' if writable else '&immutable=1'}", timeout_s)
    connection.execute("PRAGMA query_only=ON")
    return connection


def connect_to_write(file: Path) -> Connection:
    """Open a journal of this account for reading and writing; call `check_schema` next.

    Raises:
        StoreError: It, or an SQLite file next to it, is a link or belongs to another account.
        JournalDamaged, sqlite3.Error: As for `connect_to_read`.
    """
    check_files(file)
    check_own(file, *(file.with_name(file.name + suffix) for suffix in _BESIDE))
    return _connected(f"{file.as_uri()}?mode=rw", 30.0)


def check_files(file: Path) -> None:
    """Reject a file that is not regular: a pipe would block, a device has no end.

    Raises:
        StudyNotFound: There is no journal.
        StoreError: It may not be read.
        JournalDamaged: It is not a regular file, or larger than any journal.
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
            raise StoreError(message, hint="Check the owner of the study.") from error
        if not stat.S_ISREG(status.st_mode):
            message = f"{path} is not a regular file"
            raise JournalDamaged(message)
        if status.st_size > MOST_BYTES:
            message = f"{path} has {status.st_size >> 20} MiB; a journal has at most {MOST_BYTES >> 20}"
            raise JournalDamaged(message)


def check_own(*paths: Path) -> None:
    """Refuse to write to a link or to another account's file.

    Raises:
        StoreError: One of these files is a link, or belongs to another account.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                message = f"{path} is a link, or not a regular file; nothing is written"
                raise StoreError(message)
            if not is_own(status.st_uid, path.parent):
                message = f"{path} belongs to {account(status.st_uid)}"
                raise StoreError(message, hint="Only its own account can continue a study.")


def check_schema(connection: Connection, file: Path) -> None:
    """Reject a file with any other objects than a journal's tables and indexes.

    Raises:
        JournalDamaged: Names the first such object.
    """
    connection.begin()
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master LIMIT ?", (_MOST_OBJECTS,)
    ).fetchall()
    expected = _objects()
    for kind, name, sql in rows:
        if (kind, name) not in expected or expected[kind, name] != _squeezed(sql):
            message = f'{file} is not a journal: it has an unknown {kind} "{name}"'
            raise JournalDamaged(message, hint=DAMAGED_HINT)


def is_endless(error: sqlite3.Error) -> bool:
    """Return whether a statement was ended because it exceeded the step limit."""
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
    # Damaged text must fail the digest of its event, which names the event, not the whole reading.
    connection.text_factory = _text
    connection.bound()
    return connection


@functools.cache
def _objects() -> dict[tuple[str, str], str]:
    """Return (type, name) -> definition of all objects in a journal, in SQLite's form."""
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(SCHEMA)
        rows = memory.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return {(kind, name): _squeezed(sql) for kind, name, sql in rows}


def _squeezed(sql: object) -> str:
    return " ".join(str(sql or "").split())


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
