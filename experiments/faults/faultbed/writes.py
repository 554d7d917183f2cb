"""Writes that fail, at many places: the search stops with what it has, and goes on later."""

import ctypes
import errno
import os
import resource
import signal
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.launch.guard import namespace
from autotune.store.journal import BALLAST_BYTES, Journal
from faultbed.common import Case, Child, Count, dice
from faultbed.search import LIFE_S, begin, entries, lived, losses, undisturbed

NAME = "writes"
TITLE = "write errors"
DISK_BYTES = BALLAST_BYTES + (6 << 20)
SEED = 1
ERRORS = {
    "ENOSPC": ("SQLITE_FULL", "database or disk is full"),
    "EIO": ("SQLITE_IOERR_WRITE", "disk I/O error"),
    "EROFS": ("SQLITE_READONLY", "attempt to write a readonly database"),
}


def cases() -> list[Case]:
    """Limits on file size, full disks, statements that fail, and files other than the journal."""
    return [
        *({"key": f"limit/{n}", "what": "limit"} for n in range(80)),
        *({"key": f"full/{n}", "what": "full"} for n in range(60)),
        *(
            {"key": f"statement/{name}/{n}", "what": "statement", "error": name}
            for n in range(25)
            for name in ERRORS
        ),
        *({"key": f"file/{name}/{n}", "what": "file", "error": name} for n in range(6) for name in ERRORS),
    ]


def sample() -> list[Case]:
    """Some of each."""
    return [
        *({"key": f"limit/{n}", "what": "limit"} for n in range(3)),
        *({"key": f"full/{n}", "what": "full"} for n in range(3)),
        *({"key": f"statement/{name}", "what": "statement", "error": name} for name in ERRORS),
        *({"key": f"file/{name}", "what": "file", "error": name} for name in ("ENOSPC", "EIO")),
    ]


def run(case: Case, folder: Path) -> Count:
    """One life with the fault, one without."""
    expected = undisturbed(folder, SEED)
    with Child(lambda: _lives(case, folder, expected).row(), folder / "case.log") as child:
        if not child.wait(2 * LIFE_S + 20):
            return Count(injected=1, notes=["the case did not end"])
        row = child.answer
    if row is None:
        note = (folder / "case.log").read_text()[-400:]
        return Count(injected=1, notes=[f"the case ended by itself: {note}"])
    return Count(**row)


def can_mount() -> bool:
    """Whether this user may have a small disk of their own."""
    with Child(lambda: namespace._own_namespace() or True, Path(os.devnull)) as child:  # noqa: SLF001 (as the guard calls it)
        child.wait(LIFE_S)
        return child.answer is True


def _lives(case: Case, folder: Path, expected: dict[str, Any]) -> Count:
    draw = dice(NAME, case["key"])
    what = str(case["what"])
    count = Count(injected=1)
    place = folder / "disk"
    place.mkdir(parents=True)
    if what == "full":
        _mount(place)
        # Our own notes lie on another disk.
        (folder / "notes").mkdir()
        (place / "notes").symlink_to(folder / "notes")
    home = begin(place, seed=SEED)
    first = _first_life(what, case, home, draw)
    with Child(first, folder / "driver.log") as driver:
        if not driver.wait(LIFE_S):
            count.notes.append("the search did not stop")
            return count
        stopped = driver.answer
    if what == "full":
        (place / "filler").unlink()
    if stopped is None:
        count.notes.append("it ended without a word: " + (folder / "driver.log").read_text()[-300:])
    elif "error" not in stopped:
        count.notes.append("no error was met")
    elif "error" in stopped and stopped["error"] not in (
        "DiskFailed",
        "DiskFull",
        "StoreError",
        "JournalDamaged",
    ):
        count.notes.append(f"{stopped['error']}: {stopped['message']}")
    elif stopped.get("error") == "JournalDamaged":
        count.notes.append(f"a failing disk was called damage: {stopped['message']}")
    before = [e.kind for e in entries(home)]
    count.facts = {"error": (stopped or {}).get("error", ""), "events": len(before)}
    with Child(lambda: lived(home), folder / "driver.log") as driver:
        driver.wait(LIFE_S)
        ended = driver.answer
    if not ended or ended.get("picks") != expected["picks"]:
        count.notes.append(f"going on, it ended with {ended!r} instead of {expected['picks']!r}")
    count.lost, count.duplicated = losses(home)
    count.survived = int(not count.notes and not count.lost and not count.duplicated)
    return count


def _first_life(what: str, case: Case, home: Path, draw: Any) -> Any:
    """The function of the child in which the disk fails."""
    if what == "limit":
        limit = draw.randrange(34_000, 420_000)

        def limited() -> dict[str, Any]:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            return lived(home)

        return limited
    if what == "full":
        left = draw.randrange(0, 700_000)
        return lambda: lived(home, patches=[_filled(home.parent, left)])
    if what == "statement":
        after = draw.randrange(3, 250)
        return lambda: lived(home, patches=[_failing_statements(str(case["error"]), after)])
    call = draw.choice(("fsync", "fdopen", "mkstemp"))
    return lambda: lived(home, patches=[_failing_files(str(case["error"]), call)])


def _mount(place: Path) -> None:
    """A small disk of our own, seen by this process and its children alone."""
    namespace._own_namespace()  # noqa: SLF001 (as the guard calls it)
    libc = ctypes.CDLL(None, use_errno=True)
    private, recursive = 1 << 18, 16384
    libc.mount(b"none", b"/", None, ctypes.c_ulong(private | recursive), None)
    data = f"size={DISK_BYTES},mode=0700".encode()
    if libc.mount(b"faults", os.fsencode(place), b"tmpfs", ctypes.c_ulong(0), data):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _filled(place: Path, left: int) -> Any:
    """Fills the disk as soon as the reserve was taken, but for so many bytes."""
    take = Journal.__dict__["_take_ballast"]

    def took(journal: Any, size: int) -> None:
        take(journal, size)
        status = os.statvfs(place)
        room = status.f_bavail * status.f_frsize - left
        with (place / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, room))

    return mock.patch.object(Journal, "_take_ballast", took)


class _Statements:
    """A connection to SQLite whose statements fail from the n-th on; a faithful fake of a failing disk.

    From then on nothing is written any more, as on a disk that has become full or read-only.
    """

    def __init__(self, real: Any, name: str, after: int) -> None:
        self._real, self._name, self._after = real, name, after
        self._main = threading.get_ident()

    def _check(self, sql: str) -> None:
        if threading.get_ident() == self._main:
            self._after -= 1
        if self._after <= 0 and not sql.lstrip().upper().startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            code, text = ERRORS[self._name]
            error = sqlite3.OperationalError(text)
            error.sqlite_errorname = code
            raise error

    def execute(self, sql: str, *rest: Any) -> Any:
        self._check(sql)
        return self._real.execute(sql, *rest)

    def executemany(self, sql: str, *rest: Any) -> Any:
        self._check(sql)
        return self._real.executemany(sql, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _failing_statements(name: str, after: int) -> Any:
    take = Journal.__dict__["_take_ballast"]

    def took(journal: Any, size: int) -> None:
        take(journal, size)
        journal._connection = _Statements(journal._connection, name, after)  # noqa: SLF001 (replaced by one that fails)

    return mock.patch.object(Journal, "_take_ballast", took)


def _failing_files(name: str, call: str) -> Any:
    """Writing best.yaml fails at one of its system calls."""
    number = getattr(errno, name)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return mock.patch.object(tempfile if call == "mkstemp" else os, call, fails)
