"""What a machine lacks, however it is reported, becomes one sentence with place, amount and remedy."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from autotune import shortage as module
from autotune.errors import AutotuneError, BackendError, DiskFailed, DiskFull, StoreError
from autotune.shortage import first_line, shortage, size_text

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def of_system(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path) if path else OSError(number, os.strerror(number))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk with 3.2 KiB of room, as far as anybody asks."""
    status = SimpleNamespace(f_files=100, f_favail=50, f_bavail=32, f_frsize=100)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    return status


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Limits of this process by their number; those that are missing are infinite."""
    found: dict[int, int] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (found.get(which, resource.RLIM_INFINITY), -1))
    return found


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (of_system(errno.ENOSPC), DiskFull, "the disk of {place} is full (3.1 KiB free)"),
        (sqlite3.OperationalError("database or disk is full"), DiskFull, "the disk of {place} is full"),
        (sqlite3.OperationalError("unable to open database file"), DiskFull, "the disk of {place} is full"),
        (of_system(errno.EDQUOT), DiskFull, "the quota of disk space is used up in {place}"),
        (of_system(errno.EROFS), DiskFailed, "read-only file system in {place}"),
        (sqlite3.OperationalError("disk I/O error"), DiskFailed, "disk I/O error in {place} (3.1 KiB free)"),
        (sqlite3.OperationalError("attempt to write a readonly database"), DiskFailed, "in {place}"),
        (of_system(errno.EMFILE), BackendError, "this process may open 20"),
        (of_system(errno.ENOMEM), BackendError, "may use 300.0 MiB of address space"),
        (MemoryError(), BackendError, "may use 300.0 MiB of address space"),
        (
            ImportError("x.so: failed to map segment from shared object"),
            BackendError,
            "may use 300.0 MiB of address space",
        ),
        (RuntimeError("can't start new thread"), BackendError, "this user may have 7 of them"),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            BackendError,
            "no temporary folder can be written",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, Exception) else "",
)
def test_each_error_becomes_a_sentence_with_a_remedy_and_exit_code_6(
    error: Exception, kind: type, words: str, tmp_path: Path, free: SimpleNamespace, limits: dict[int, int]
) -> None:
    limits.update({resource.RLIMIT_NOFILE: 20, resource.RLIMIT_AS: 300 * MIB, resource.RLIMIT_NPROC: 7})
    found = shortage(error, what="x could not be written", places=(tmp_path / "not" / "there",))
    assert type(found) is kind
    assert found.exit_code == 6
    assert found.message.startswith("x could not be written: ")
    assert words.format(place=tmp_path) in found.message
    assert found.hint
    assert "\n" not in found.message


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        RuntimeError("can't do it"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        PermissionError(errno.EACCES, "Permission denied"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        sqlite3.OperationalError("no such table: events"),
        ImportError("No module named x"),
    ],
)
def test_any_other_error_is_none_of_the_machines(error: Exception, tmp_path: Path) -> None:
    assert shortage(error, places=(tmp_path,)) is None


def test_a_database_that_cannot_be_opened_while_there_is_room_is_another_error(tmp_path: Path) -> None:
    assert shortage(sqlite3.OperationalError("unable to open database file"), places=(tmp_path,)) is None


def test_a_process_that_could_not_be_started_is_known_by_where_it_was_raised(
    monkeypatch: pytest.MonkeyPatch, limits: dict[int, int]
) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "_fork_exec", refuse)
    with pytest.raises(BlockingIOError) as raised:
        subprocess.Popen(["true"])
    found = shortage(raised.value)
    assert found is not None
    assert "no more threads or processes" in found.message
    assert "pids.max" in found.hint, "no limit of the shell is in the way"


def test_the_cause_of_an_error_counts_and_so_does_what_sqlalchemy_keeps_apart(
    tmp_path: Path, free: SimpleNamespace
) -> None:
    with pytest.raises(ValueError, match="it failed") as raised:
        raise ValueError("it failed") from of_system(errno.ENOSPC)
    assert isinstance(shortage(raised.value, places=(tmp_path,)), DiskFull)
    wrapped = RuntimeError("(sqlite3.OperationalError) database or disk is full\n[SQL: INSERT INTO runs]")
    wrapped.orig = sqlite3.OperationalError("database or disk is full")  # type: ignore[attr-defined]
    assert isinstance(shortage(wrapped, places=(tmp_path,)), DiskFull)


def test_the_file_that_an_error_names_comes_before_every_guess(tmp_path: Path, free: SimpleNamespace) -> None:
    (tmp_path / "there").mkdir()
    found = shortage(of_system(errno.ENOSPC, str(tmp_path / "there" / "x")), places=("/",))
    assert found is not None
    assert f"the disk of {tmp_path / 'there'} is full" in found.message


def test_of_several_places_the_fullest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = {str(tmp_path / name): 100 * n for n, name in enumerate("abc", start=1)}
    for name in "abc":
        (tmp_path / name).mkdir()
    monkeypatch.setattr(
        os, "statvfs", lambda p: SimpleNamespace(f_files=0, f_favail=0, f_bavail=room[p], f_frsize=1)
    )
    found = shortage(of_system(errno.ENOSPC), places=sorted(room, reverse=True))
    assert found is not None
    assert found.message == f"the disk of {tmp_path / 'a'} is full (100 bytes free)"


def test_a_disk_with_room_is_not_called_full(tmp_path: Path, free: SimpleNamespace) -> None:
    free.f_bavail = 10 * module._ENOUGH_BYTES // free.f_frsize
    found = shortage(of_system(errno.ENOSPC), places=(tmp_path, "/"))
    assert found is not None
    assert found.message == "a disk is full, or a quota is used up"
    named = shortage(of_system(errno.ENOSPC, str(tmp_path / "x")))
    assert named is not None
    assert named.message.endswith(f"is used up in {tmp_path}")


def test_a_disk_without_inodes_is_distinguished(tmp_path: Path, free: SimpleNamespace) -> None:
    free.f_favail, free.f_bavail = 0, 2**40
    found = shortage(of_system(errno.ENOSPC), places=(tmp_path,))
    assert found is not None
    assert "takes no more files" in found.message


def test_full_and_failing_disks_are_errors_of_the_store() -> None:
    assert issubclass(DiskFull, StoreError)
    assert issubclass(DiskFailed, StoreError)
    assert StoreError.exit_code == 5
    assert AutotuneError.exit_code == 70


def test_one_line_about_an_error_has_no_statement_of_a_database_in_it() -> None:
    error = RuntimeError("(sqlite3.OperationalError) no such table: runs\n[SQL: SELECT * FROM runs]\n[x]")
    assert first_line(error) == "RuntimeError: (sqlite3.OperationalError) no such table: runs"
    assert first_line(ValueError()) == "ValueError"
    assert "too many files are open" in first_line(of_system(errno.EMFILE))


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 * MIB, "5.0 MiB"), (2**31, "2.0 GiB")],
)
def test_amounts_have_a_unit_in_which_they_are_no_zero(size: int, text: str) -> None:
    assert size_text(size) == text
