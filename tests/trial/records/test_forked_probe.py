"""A question that is answered in a forked child, which leaves this process as it was."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from autotune.trial.records import forked_probe
from autotune.trial.records.forked_probe import answer_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_answer_comes_back_and_changes_stay_in_the_child() -> None:
    held = [1]

    def change() -> list[int]:
        held.append(2)
        return held

    assert answer_of(change, limit_s=10.0) == [1, 2]
    assert held == [1]


def test_a_child_that_fails_or_takes_too_long_has_no_answer() -> None:
    assert answer_of(lambda: 1 / 0, limit_s=10.0) is None
    assert answer_of(lambda: time.sleep(60), limit_s=0.1) is None


def test_a_child_that_takes_too_long_unlocks_what_it_has_locked() -> None:
    lock = multiprocessing.get_context("fork").Lock()

    def hold() -> None:
        with lock:
            time.sleep(60)

    assert answer_of(hold, limit_s=0.2) is None
    assert lock.acquire(timeout=5.0)


def test_a_child_that_does_not_end_when_it_is_requested_to_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_probe, "_GRACE_S", 0.1)

    def stubborn() -> None:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(60)

    assert answer_of(stubborn, limit_s=0.1) is None


def test_positions_of_files_are_put_back(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcdef")
    with (tmp_path / "f").open("rb", buffering=0) as file:
        file.seek(2)
        assert answer_of(lambda: file.read(2).decode(), limit_s=10.0) == "cd"
        assert file.tell() == 2


def test_a_connection_of_this_process_is_not_spoken_on() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert answer_of(lambda: os.write(here.fileno(), b"x"), limit_s=10.0) == 1
        there.setblocking(False)
        try:
            heard = there.recv(1)
        except BlockingIOError:
            heard = b""
        assert heard == b""
