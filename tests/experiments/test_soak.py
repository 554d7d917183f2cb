"""The soak counts what accounts leave, and separates growth from noise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soak_measures as measures


def rows(piece: int, count: int, **values: Any) -> list[dict[str, Any]]:
    return [{"piece": piece, **{name: value(n) for name, value in values.items()}} for n in range(count)]


def test_a_count_that_grows_by_one_in_three_searches_is_seen_and_a_wobble_is_not() -> None:
    found = measures.judged(rows(1, 30, tmp_entries=lambda n: n // 3, shm_entries=lambda n: n % 2))
    assert found["tmp_entries"]["flat"] is False
    assert found["tmp_entries"]["slope"] == pytest.approx(1 / 3, abs=0.02)
    assert found["shm_entries"]["flat"] is True


def test_a_neighbour_that_is_started_anew_is_judged_within_its_pieces() -> None:
    leaks = rows(1, 8, neighbour_descriptors=lambda n: 20 + n) + rows(
        2, 8, neighbour_descriptors=lambda n: 20 + n
    )
    assert measures.judged(leaks)["neighbour_descriptors"]["flat"] is False
    warm = rows(1, 8, neighbour_descriptors=lambda n: 20 + 5 * (n > 0)) + rows(
        2, 8, neighbour_descriptors=lambda n: 40 + 5 * (n > 0)
    )
    assert measures.judged(warm)["neighbour_descriptors"]["flat"] is True


def test_too_few_searches_show_nothing() -> None:
    found = measures.judged(rows(1, 3, processes=lambda n: n))
    assert found["processes"] == {"first": 0, "last": 2, "largest": 2, "slope": None, "flat": None}


def test_memory_is_judged_once_a_process_has_searched_often_enough() -> None:
    def judged(count: int) -> Any:
        return measures.judged(rows(1, count, neighbour_bytes=lambda n: n * 2**20))["neighbour_bytes"]

    assert (judged(9)["slope"], judged(9)["flat"]) == (2**20, None)
    assert judged(30)["flat"] is False


def test_what_an_account_has_is_counted_and_nothing_of_others(account: Any, shared_folder: Path) -> None:
    uid = account.uid
    empty = measures.accounts_left({uid}, shared_folder)
    assert set(empty.values()) == {0}
    source = (
        "import ctypes, os, sys, tempfile\n"
        "libc = ctypes.CDLL(None)\n"
        "segment = libc.shmget(0, 4096, 0o1600)\n"
        "assert segment >= 0\n"
        "path = tempfile.mkdtemp(dir='/tmp')\n"
        "open(path + '/file', 'wb').write(b'x' * 100)\n"
        f"open({str(shared_folder)!r} + '/claim', 'w').close()\n"
        "print('made', flush=True)\n"
        "sys.stdin.read()\n"
        "os.remove(path + '/file')\n"
        "os.rmdir(path)\n"
        "libc.shmctl(segment, 0, None)\n"
    )
    process = subprocess.Popen(
        account.command(sys.executable, "-c", source),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    try:
        left = measures.accounts_left({uid}, shared_folder)
    finally:
        process.communicate("")
    assert (left["processes"], left["tmp_entries"], left["ipc"], left["lock_files"]) == (1, 1, 1, 1)
    assert left["tmp_bytes"] == 100
    after = measures.accounts_left({uid}, shared_folder)
    assert (after["processes"], after["tmp_entries"], after["ipc"]) == (0, 0, 0)


def test_a_home_is_studies_runs_and_the_rest(tmp_path: Path) -> None:
    (tmp_path / "studies" / "01").mkdir(parents=True)
    (tmp_path / "studies" / "01" / "journal.db").write_bytes(b"x" * 10)
    (tmp_path / "mlflow.db").write_bytes(b"x" * 20)
    (tmp_path / "labels.lock").write_bytes(b"")
    (tmp_path / "left").write_bytes(b"x" * 7)
    assert measures.home_bytes(tmp_path) == {"study_bytes": 10, "run_bytes": 20, "other_bytes": 7}


def test_what_a_process_holds_is_read_from_the_kernel() -> None:
    before = measures.process_holds(os.getpid())
    with Path(os.devnull).open(), Path(os.devnull).open():
        held = measures.process_holds(os.getpid())
    assert held["descriptors"] == before["descriptors"] + 2
    assert held["threads"] >= 1
    assert held["bytes"] > 2**20
