"""Local SQLite store of MLflow: created atomically, private, replaced if broken.

MLflow is not imported. Creating its tables takes seconds and some hundred commits, and cannot continue after
an interruption. A new database is therefore created in a folder beside its place and then linked there.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import logging
import os
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import TrackerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

log = logging.getLogger(__name__)

_PART = ".part-"
_BROKEN = ".broken-"
_REFILL = ".refill"
_COMPANIONS = ("-journal", "-wal", "-shm")
"""Files that SQLite keeps beside a database: https://sqlite.org/tempfiles.html"""

_BUSY_S = 0.2
"""Seconds to wait for a lock: a store in use is not broken."""

_MISREAD = frozenset("%?#")
"""SQLAlchemy 2.1 unquotes the path in an address and 2.0 does not; both end it at a question mark."""


def artifact_folder(database: Path) -> Path:
    """Return the folder for artifacts of a local store's experiments."""
    return database.parent / "mlartifacts"


def plain_uri(database: Path) -> str:
    """Return an address that every version of SQLAlchemy reads as this path, valid in this process only."""
    folder = next((p for p in database.parents if _MISREAD & set(p.name)), None)
    if folder is None:
        return f"sqlite:///{database}"
    return f"sqlite:///{_descriptor(folder)}/{database.relative_to(folder)}"


@functools.cache
def _descriptor(folder: Path) -> str:
    # Open until the process ends, as long as the address is in use.
    return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}"


def fault(database: Path) -> str:
    """Return why MLflow cannot use a database.

    Returns:
        The reason; empty if the database is in order, missing, locked or not readable by this account.
    """
    if not database.exists():
        return ""
    try:
        # Not read-only, so that SQLite rolls back what an interrupted writer left.
        with contextlib.closing(_connected(database)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
            if any(str(name).startswith("_alembic_tmp_") for name in names):
                return "an update of its tables was interrupted"
            # MLflow writes the first experiment last.
            if "experiments" not in names or not connection.execute("SELECT 1 FROM experiments").fetchone():
                return "its creation was interrupted"
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return "" if state == "ok" else " ".join(str(state).split())[:200]
    except sqlite3.OperationalError:
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)


def _connected(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)


def needs_refill(database: Path) -> bool:
    """Return whether a store is broken, or its replacement does not yet have all studies."""
    return _refill_mark(database).exists() or bool(fault(database))


def refilled(database: Path) -> None:
    """Record that the replacement of a broken store has all studies."""
    _refill_mark(database).unlink(missing_ok=True)


def _refill_mark(database: Path) -> Path:
    return database.with_name(database.name + _REFILL)


def prepare(database: Path, create: Callable[[Path], None], *, own: bool) -> None:
    """Create a store's database if it is missing, and replace it if it is private and broken.

    Concurrent processes wait for the first. After a kill the next call starts over.

    Args:
        database: The store's file.
        create: Creates a complete database at the given path.
        own: The store is private to this program and can be rebuilt from the journals.

    Raises:
        TrackerUnavailable: A private store belongs to another account.
        OSError: The place cannot be written.
    """
    database.parent.parent.mkdir(parents=True, exist_ok=True)
    database.parent.mkdir(mode=0o700 if own else 0o777, exist_ok=True)
    if not database.exists() or (own and fault(database)) or _parts(database):
        with _locked(database.parent) as has_lock:
            # Another process may have replaced it meanwhile.
            if own and (why := fault(database)):
                _move_aside(database, why)
            # Left by a killed process: under the lock no live one creates.
            for part in _parts(database) if has_lock else ():
                shutil.rmtree(part, ignore_errors=True)
            if not database.exists():
                _create(database, create, own=own)
    if own:
        _protect(database)


def _create(database: Path, create: Callable[[Path], None], *, own: bool) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{database.name}{_PART}", dir=database.parent))
    try:
        fresh = part / database.name
        create(fresh)
        if own:
            fresh.chmod(0o600)
        for suffix in _COMPANIONS:
            # Belongs to a deleted database; SQLite would apply it to the new one.
            Path(f"{database}{suffix}").unlink(missing_ok=True)
        try:
            # Unlike a rename, a link never replaces a database that another process created first.
            os.link(fresh, database)
        except FileExistsError:
            log.debug("another process created %s first", database)
        except OSError:
            # The file system has no hard links.
            fresh.rename(database)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move_aside(database: Path, why: str) -> None:
    names = (database.with_name(f"{database.name}{_BROKEN}{number}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    _refill_mark(database).touch(mode=0o600)
    # The database is last: alone, it is found broken again after a kill in between.
    for suffix in (*_COMPANIONS, ""):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{database}{suffix}").rename(f"{aside}{suffix}")
    log.warning(
        "MLflow's store was broken (%s) and is now %s; `autotune ui` and `autotune sync` fill a new one "
        "from the journals",
        why,
        aside,
    )


def _parts(database: Path) -> list[Path]:
    return [p for p in database.parent.iterdir() if p.name.startswith(f"{database.name}{_PART}")]


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[bool]:
    """Hold a lock on a folder; yield False if the file system has none for folders, such as NFS."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _protect(database: Path) -> None:
    """Restrict a private store to the user's account whatever the umask, also existing files."""
    artifacts = artifact_folder(database)
    try:
        _close(os.path.realpath(database))
        artifacts.mkdir(mode=0o700, exist_ok=True)
    except PermissionError as error:
        message = f"MLflow's store {database} belongs to another account"
        hint = "Name a store of your own with --tracking-uri, or a home of your own with AUTOTUNE_HOME."
        raise TrackerUnavailable(message, hint=hint) from error
    for entry in os.scandir(database.parent):
        if entry.name.startswith((f"{database.name}-", f"{database.name}{_BROKEN}")):
            with contextlib.suppress(OSError):
                _close(entry.path)
    if artifacts.stat().st_mode & 0o077:
        close_tree(artifacts.resolve())


def close_tree(root: Path) -> None:
    """Remove other accounts' access to a folder and everything below it; links are not followed."""
    # The root is last: while it is open, a kill in between is detected.
    for folder, _folders, files in os.walk(root, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                _close(str(Path(folder, name)))
        with contextlib.suppress(OSError):
            _close(folder)


def _close(path: str) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_IMODE(mode) & 0o077 and not stat.S_ISLNK(mode):
        Path(path).chmod(stat.S_IMODE(mode) & 0o700)
