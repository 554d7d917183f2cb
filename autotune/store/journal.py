"""Journal: one SQLite file per study, appended to by one writer, readable by any process.

Events are never changed or removed. Each has a digest over itself and the previous digest, and number and
digest of the last one are stored separately. So truncation, gaps and edits are detected and located. Journals
of versions without that head are read without it. When `append` returns, the event is on the disk
(`synchronous=FULL`), before it is visible anywhere else.

One writer at a time: `flock` on a file next to the journal, held until `close` or the end of the process.
Each opening for writing takes a new epoch, which every commit checks inside its own transaction. So a writer
that lost the lock unnoticed writes nothing more.

On network file systems write-ahead logging needs shared memory that does not exist between hosts
(https://sqlite.org/wal.html, section 1). There the rollback journal is used, and `flock` is tested first.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autotune.clock import Clock, SystemClock
from autotune.errors import DiskFull, JournalDamaged, StoreError, StudyLocked
from autotune.model.wire import OLD_EVENTS, to_wire
from autotune.store.outbox import OutboxRow
from autotune.store.paths import BALLAST_FILE, JOURNAL_FILE, LOCK_FILE, SET_HOME, unwritable
from autotune.store.sqlite_file import (
    DAMAGED_HINT,
    SCHEMA,
    Connection,
    check_files,
    check_own,
    check_schema,
    connect_to_read,
    connect_to_write,
    is_endless,
)
from autotune.store.study_lock import StudyLock, is_network_filesystem
from autotune.text.encodable import writable, writable_json
from autotune.text.redact import redact_data

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from autotune.errors import AutotuneError

FORMAT = 2
"""Format 2: events of kind `proposed` and `finished`; older versions would pass over them."""
BALLAST_BYTES = 16 * 1024 * 1024
"""Space reserved for the last events of a search whose disk is full."""

_PAGE = 200
"""Number of events in memory at once."""
_DEEPEST = 60
"""Deepest nesting of lists and mappings in an event; real ones have about ten levels."""
_ROOM_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event as it was written.

    Args:
        seq: From 1, without gaps.
        uid: ``kind/number/attempt``; unique in the journal.
        epoch: Number of the writer's life.
        data: In wire form; `autotune.store.fold` converts it to values.
        wall_s: Seconds since the epoch; a label.
    """

    seq: int
    uid: str
    epoch: int
    kind: str
    data: Mapping[str, Any]
    wall_s: float


class Journal:
    """Journal of a study, open for writing or only for reading. Thread-safe.

    Open one with `create`, `open` or `read`.
    """

    def __init__(
        self,
        file: Path,
        connection: Connection,
        *,
        lock: StudyLock | None,
        clock: Clock,
        environ: Mapping[str, str] | None,
        ballast: Path | None,
    ) -> None:
        self.file = file
        self.epoch = 0
        self._connection = connection
        self._lock = lock
        self._clock = clock
        self._environ = environ
        self._ballast = ballast
        self._mutex = threading.RLock()
        self._seq = 0
        self._sha = ""

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        clock: Clock | None = None,
        environ: Mapping[str, str] | None = None,
        ballast_bytes: int = BALLAST_BYTES,
    ) -> Journal:
        """Create the journal of a new study and hold its lock.

        Args:
            path: The study's directory (created if missing), or the journal's file in it.
            clock: For the wall-time labels.
            environ: Environment with the secrets to redact; this process's by default.
            ballast_bytes: Disk space kept in reserve; 0 for none.

        Raises:
            StoreError: A journal exists already, or the folder cannot be written.
            StudyLocked: Another process has just created it.
        """
        file = _file(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what, hint = f"the study directory {file.parent} cannot be made", SET_HOME
            raise unwritable(what, file.parent, error, hint=hint) from error
        if file.exists():
            message = f"{file} exists already"
            raise StoreError(message, hint="`autotune resume` continues a study.")
        return cls._writer(file, clock, environ, ballast_bytes)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        clock: Clock | None = None,
        environ: Mapping[str, str] | None = None,
        ballast_bytes: int = BALLAST_BYTES,
    ) -> Journal:
        """Open an existing journal for writing: lock, new epoch, whole chain checked.

        Raises:
            StudyNotFound: There is no journal.
            StudyLocked: Another process writes to it; names its pid and host.
            JournalDamaged: Names the damage and its position.
        """
        file = _file(path)
        check_files(file)
        return cls._writer(file, clock, environ, ballast_bytes)

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Open for reading, without a lock; also while another process writes.

        Raises:
            StudyNotFound: There is no journal.
            JournalDamaged: It is no journal.
        """
        file = _file(path)
        try:
            connection = connect_to_read(file)
        except sqlite3.Error as error:
            message = f"{file} cannot be opened: {error}"
            raise StoreError(message) from error
        journal = cls(file, connection, lock=None, clock=SystemClock(), environ=None, ballast=None)
        with _closing_on_error(journal), journal._guarded("read"):
            check_schema(connection, file)
            journal._check_format()
        return journal

    @classmethod
    def _writer(
        cls, file: Path, clock: Clock | None, environ: Mapping[str, str] | None, ballast_bytes: int
    ) -> Journal:
        network = is_network_filesystem(file.parent)
        check_own(*(file.with_name(name) for name in (file.name, LOCK_FILE, BALLAST_FILE)))
        lock = StudyLock(file.with_name(LOCK_FILE), prove=network)
        try:
            if not file.exists():
                _begin(file)
            connection = connect_to_write(file)
        except StoreError:
            lock.release()
            raise
        except (sqlite3.Error, OSError) as error:
            lock.release()
            raise _unusable(f"{file} cannot be opened", file, error, probes=True) from error
        ballast = file.with_name(BALLAST_FILE) if ballast_bytes else None
        journal = cls(
            file, connection, lock=lock, clock=clock or SystemClock(), environ=environ, ballast=ballast
        )
        with _closing_on_error(journal):
            with journal._guarded("open"):
                check_schema(connection, file)
                journal._prepare("DELETE" if network else "WAL")
            for _entry in journal.entries():
                pass
            with journal._guarded("open"):
                journal._next_epoch()
            journal._take_ballast(ballast_bytes)
        return journal

    def append(
        self, kind: str, uid: str, data: Mapping[str, Any], *, outbox: Sequence[OutboxRow] = ()
    ) -> int:
        """Write one event and its outbox rows in one transaction.

        When this returns, the event is on the disk. An event with an existing uid is a repeat: neither it nor
        its outbox rows are written. Secrets are redacted.

        Args:
            kind: ``opened``, ``finished``, ...
            uid: Unique name of the event, which identifies repeats.
            data: Core values and plain data; any input of `autotune.model.wire.to_wire`.
            outbox: Rows, usually `autotune.store.outbox.rows_for(kind, data)`.

        Returns:
            Its number in the journal.

        Raises:
            StudyLocked: Another writer has taken over; nothing was written, and nothing may be.
            DiskFull: Only a ``stopped`` event was written, into reserved space.
            StoreError: The journal was opened for reading only, or the disk failed.
        """
        self._must_write()
        kind, uid, text = writable(kind), writable(uid), self._strict(data)
        rows = [(row.sink, row.op, writable(row.key), self._strict(row.payload)) for row in outbox]
        with self._mutex:
            try:
                with self._guarded("write"):
                    return self._commit(kind, uid, text, rows)
            except DiskFull:
                self._last_words(data)
                raise

    def entries(self, *, after: int = 0) -> Iterator[Entry]:
        """Yield the events in order, each checked against the chain.

        Args:
            after: Start after this event; 0 for all.

        Raises:
            JournalDamaged: At the first invalid event; earlier ones are intact.
        """
        sha, seq = "", 0
        # Read before the events, as a concurrent writer advances it.
        head, head_sha = self._head()
        if after:
            sha, seq = self._digest_at(after), after
        while True:
            with self._mutex, self._guarded("read"):
                rows = self._connection.execute(
                    "SELECT seq, uid, epoch, kind, wall_s, json, sha FROM events "
                    "WHERE seq > ? ORDER BY seq LIMIT ?",
                    (seq, _PAGE),
                ).fetchall()
            for row in rows:
                entry = self._checked(row, seq, sha)
                seq, sha = entry.seq, row[6]
                if seq == head and sha != head_sha:
                    message = f"{self.file}: event {seq} ({entry.uid}) is not the last one written"
                    raise JournalDamaged(message, hint=DAMAGED_HINT)
                yield entry
            if len(rows) < _PAGE:
                break
        if seq < head:
            intact = f"events 1 to {seq} are intact" if seq else "there is none before them"
            message = f"{self.file}: events {seq + 1} to {head} are missing at the end; {intact}"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        with self._mutex:
            if seq >= self._seq:
                self._seq, self._sha = seq, sha

    def pending(self, sink: str, limit: int = 100) -> list[OutboxRow]:
        """Return rows not yet acknowledged for this sink, oldest first."""
        with self._mutex, self._guarded("read"):
            rows = self._connection.execute(
                "SELECT o.seq, o.op, o.key, o.payload, e.wall_s "
                "FROM outbox o JOIN events e ON e.seq = o.event "
                "WHERE o.sink = ? AND o.done = 0 ORDER BY o.seq LIMIT ?",
                (sink, limit),
            ).fetchall()
        return [self._row(sink, *row) for row in rows]

    def _row(self, sink: str, seq: Any, op: Any, key: Any, payload: Any, wall_s: Any) -> OutboxRow:
        if not _match((int, str, str, str, float), (seq, op, key, payload, wall_s)):
            message = f"{self.file}: row {seq} of its outbox is invalid"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        return OutboxRow(
            seq=seq, sink=sink, op=op, key=key, payload=self._parsed(payload, f"row {seq}"), wall_s=wall_s
        )

    def unsent(self, sink: str) -> int:
        """Return the number of unacknowledged rows."""
        with self._mutex, self._guarded("read"):
            (count,) = self._connection.execute(
                "SELECT COUNT(*) FROM outbox WHERE sink = ? AND done = 0", (sink,)
            ).fetchone()
        return int(count)

    def ack(self, seq: int) -> None:
        """Record that an outbox row has arrived; a repeat changes nothing."""
        self._must_write()
        with self._mutex, self._guarded("write"), self._transaction():
            self._connection.execute("UPDATE outbox SET done = 1 WHERE seq = ?", (seq,))

    def resend(self, sink: str) -> None:
        """Mark every row of a sink as unsent, to refill a lost store."""
        self._must_write()
        with self._mutex, self._guarded("write"), self._transaction():
            self._connection.execute("UPDATE outbox SET done = 0 WHERE sink = ?", (sink,))

    def close(self) -> None:
        """Close the file and release the lock; a second call does nothing."""
        with self._mutex:
            self._connection.close()
            if self._lock is not None:
                if self._ballast is not None and self._lock.is_held:
                    self._ballast.unlink(missing_ok=True)
                self._lock.release()

    def __enter__(self) -> Journal:  # noqa: PYI034 (typing.Self came with Python 3.11)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _prepare(self, mode: str) -> None:
        self._connection.execute("PRAGMA busy_timeout=30000")
        self._connection.execute(f"PRAGMA journal_mode={mode}")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
        with self._transaction(fenced=False):
            self._connection.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (str(FORMAT),))
            self._check_format()
            self._connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(FORMAT),))

    def _check_format(self) -> None:
        row = self._connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        seen = "none" if row is None else str(row[0])
        if not seen.isdecimal() or int(seen) > FORMAT:
            message = f"{self.file} has format {seen}; this version reads formats up to {FORMAT}"
            raise StoreError(message, hint="Upgrade autotune.")

    def _next_epoch(self) -> None:
        with self._transaction(fenced=False):
            self.epoch = self._stored_epoch() + 1
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (str(self.epoch),))
            self._move_head(self._seq, self._sha)

    def _move_head(self, seq: int, sha: str) -> None:
        """Update the head in the transaction of this event; also for a journal without one."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('head', ?)", (f"{seq} {sha}",))

    def _head(self) -> tuple[int, str]:
        """Return number and digest of the last event; 0 if they are not stored."""
        with self._mutex, self._guarded("read"):
            row = self._connection.execute("SELECT value FROM meta WHERE key = 'head'").fetchone()
        number, _, sha = ("0  " if row is None else str(row[0])).partition(" ")
        if not number.isdecimal():
            message = f"{self.file}: the number of its last event is {number!r}"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        return int(number), sha

    def _stored_epoch(self) -> int:
        row = self._connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
        epoch = str(row[0]) if row else "0"
        if not epoch.isdecimal():
            message = f"{self.file}: the number of its last writer is {epoch!r}"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        return int(epoch)

    @contextlib.contextmanager
    def _transaction(self, *, fenced: bool = True) -> Generator[None, None, None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if fenced and (newest := self._stored_epoch()) != self.epoch:
                raise _overtaken(self.file.parent, newest, self.epoch)  # noqa: TRY301 (to roll back below)
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            raise

    def _commit(self, kind: str, uid: str, text: str, rows: Sequence[tuple[str, str, str, str]]) -> int:
        with self._transaction():
            known = self._connection.execute("SELECT seq FROM events WHERE uid = ?", (uid,)).fetchone()
            if known is not None:
                return int(known[0])
            seq, wall_s = self._seq + 1, self._clock.wall_s()
            sha = _digest(self._sha, seq, uid, self.epoch, kind, wall_s, text)
            self._connection.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
                (seq, uid, self.epoch, kind, wall_s, text, sha),
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO outbox (event, sink, op, key, payload) VALUES (?, ?, ?, ?, ?)",
                [(seq, *row) for row in rows],
            )
            self._move_head(seq, sha)
        self._seq, self._sha = seq, sha
        return seq

    def _strict(self, data: Mapping[str, Any]) -> str:
        clean = redact_data(to_wire(data), self._environ)
        text = json.dumps(clean, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        # SQLite rejects surrogates, which other programs' undecodable names become.
        return writable_json(text)

    def _last_words(self, data: Mapping[str, Any]) -> None:
        if self._ballast is None:
            return
        self._ballast.unlink(missing_ok=True)
        elapsed_s = data.get("elapsed_s", 0.0)
        text = self._strict({"why": "disk", "elapsed_s": elapsed_s})
        # The caller gets the error in any case. Without this event the driver would appear to have been
        # killed.
        with contextlib.suppress(StoreError), self._guarded("write"):
            self._commit("stopped", f"stopped/{self.epoch}", text, ())

    def _take_ballast(self, size_bytes: int) -> None:
        if self._ballast is None:
            return
        with contextlib.suppress(OSError), self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)

    def _must_write(self) -> None:
        if self._lock is None:
            message = f"{self.file} was opened for reading only"
            raise StoreError(message)

    def _digest_at(self, seq: int) -> str:
        with self._mutex, self._guarded("read"):
            row = self._connection.execute("SELECT sha FROM events WHERE seq = ?", (seq,)).fetchone()
        if row is None:
            message = f"{self.file} has no event {seq}"
            raise JournalDamaged(message)
        return str(row[0])

    def _checked(self, row: tuple[Any, ...], before: int, sha_before: str) -> Entry:
        seq, uid, epoch, kind, wall_s, text, sha = row
        intact = f"events 1 to {before} are intact" if before else "no event before it"
        if seq != before + 1:
            message = f"{self.file}: events {before + 1} to {seq - 1} are missing; {intact}"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        if _digest(sha_before, seq, uid, epoch, kind, wall_s, text) != sha:
            message = f"{self.file}: event {seq} ({uid}) is not what was written; {intact}"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        if not _match((str, int, str, float, str), (uid, epoch, kind, wall_s, text)):
            message = f"{self.file}: event {seq} holds values of other types than an event has"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        data = self._parsed(text, f"event {seq} ({uid})")
        kind = OLD_EVENTS.get(str(kind), str(kind))
        return Entry(seq=seq, uid=uid, epoch=epoch, kind=kind, data=data, wall_s=wall_s)

    def _parsed(self, text: str, what: str) -> dict[str, Any]:
        """Return the mapping in this JSON; a valid digest does not ensure the format."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or _is_deep(data):
            message = f"{self.file}: {what} is not a valid mapping"
            raise JournalDamaged(message, hint=DAMAGED_HINT)
        return cast("dict[str, Any]", data)

    @contextlib.contextmanager
    def _guarded(self, doing: str) -> Generator[None, None, None]:
        """Convert SQLite's errors to autotune's."""
        self._connection.begin()
        try:
            yield
        except sqlite3.Error as error:
            if is_endless(error):
                raise self._damaged("a statement exceeds the step limit of a journal") from error
            if isinstance(error, sqlite3.ProgrammingError):
                message = f"{self.file} was closed"
                raise StoreError(message) from error
            if isinstance(error, sqlite3.OperationalError) and not _is_corrupt(error):
                what = f"{self.file} cannot be {_PARTICIPLE[doing]}"
                raise _unusable(what, self.file, error, probes=doing != "read") from error
            raise self._damaged(str(error)) from error
        except UnicodeDecodeError as error:
            # SQLite quotes a damaged schema in its error, which Python may fail to decode.
            raise self._damaged("its schema is not text") from error

    def _damaged(self, why: str) -> JournalDamaged:
        message = f"{self.file} is damaged: {why}; {self._seq} events had been read before"
        return JournalDamaged(message, hint=DAMAGED_HINT)


_PARTICIPLE = {"open": "opened", "read": "read", "write": "written"}


def _file(path: Path) -> Path:
    path = Path(path).absolute()
    return path if path.suffix == ".db" else path / JOURNAL_FILE


@contextlib.contextmanager
def _closing_on_error(journal: Journal) -> Generator[None, None, None]:
    try:
        yield
    except BaseException:
        journal.close()
        raise


def _digest(before: str, seq: int, uid: str, epoch: int, kind: str, wall_s: float, text: str) -> str:
    # str() of each value: a damaged file may have any type in any column.
    parts = (before, seq, uid, epoch, kind, repr(wall_s), text)
    return hashlib.sha256("\x00".join(map(str, parts)).encode(errors="surrogatepass")).hexdigest()


def _match(kinds: Sequence[type], values: Sequence[object]) -> bool:
    """Return whether each value has its type; a column of SQLite may hold any."""
    pairs = zip(values, kinds, strict=True)
    return all(isinstance(value, kind) and not isinstance(value, bool) for value, kind in pairs)


def _is_deep(data: object) -> bool:
    level: list[Any] = [data]
    for _ in range(_DEEPEST):
        nested = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list)))
        level = [item for items in nested for item in items]
        if not level:
            return False
    return True


def _overtaken(directory: Path, newest: int, epoch: int) -> StudyLocked:
    message = f"another process has taken over {directory} (epoch {newest}, ours is {epoch})"
    return StudyLocked(message, hint="This process ends; the other one continues.")


def _begin(file: Path) -> None:
    """Create a journal without events atomically, as other processes may list it at once."""
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.executescript(f"PRAGMA synchronous=FULL; BEGIN IMMEDIATE; {SCHEMA}")
        connection.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
        connection.execute("COMMIT")
    part.replace(file)


def _unusable(what: str, file: Path, error: sqlite3.Error | OSError, *, probes: bool) -> AutotuneError:
    """Return the error of a journal that cannot be opened, read or written.

    Args:
        what: Attempted operation, with the file.
        file: The journal.
        error: SQLite's error, which does not report an exceeded quota.
        probes: Whether a small file may be written to test for a quota.
    """
    if probes and _is_io(error) and not has_room(file.parent):
        error = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(file))
    found = unwritable(what, file, error, hint="Check that its disk is mounted and writable.")
    if isinstance(found, DiskFull):
        found.hint = f"{found.hint}; then `autotune resume` continues a search"
    return found


def _is_io(error: sqlite3.Error | OSError) -> bool:
    """Return whether reading or writing failed for an unknown reason."""
    name = str(getattr(error, "sqlite_errorname", ""))
    return name.startswith("SQLITE_IOERR") or "disk I/O error" in str(error)


def has_room(folder: Path) -> bool:
    """Return whether a small file can be written: SQLite reports a full disk, but not an exceeded quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            left = _ROOM_BYTES
            while left:
                left -= os.write(file.fileno(), bytes(left))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True


def _is_corrupt(error: sqlite3.Error) -> bool:
    name = str(getattr(error, "sqlite_errorname", ""))
    words = ("malformed", "not a database", "no such table", "no such column")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or any(w in str(error) for w in words)
