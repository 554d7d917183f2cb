"""Who waits is woken, and nobody else waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.driver.backends.wakeup import Wakeup, ring


@pytest.fixture
def bell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # A socket's path may have 107 bytes, which a test's folder alone can have.
    monkeypatch.chdir(tmp_path)
    one = Wakeup(Path())
    yield one
    one.close()


def test_nothing_is_heard_where_nobody_rings(bell: Wakeup) -> None:
    begun_s = time.monotonic()
    assert not bell.wait(0.05)
    assert time.monotonic() - begun_s >= 0.05


def test_a_ring_of_before_counts_and_all_count_as_one(bell: Wakeup) -> None:
    for _ in range(5):
        ring(bell.path)
    assert bell.wait(10.0)
    assert not bell.wait(0.0)


def test_who_waits_is_woken(bell: Wakeup) -> None:
    timer = threading.Timer(0.1, ring, (bell.path,))
    timer.start()
    begun_s = time.monotonic()
    assert bell.wait(20.0)
    assert time.monotonic() - begun_s < 10.0
    timer.join()


def test_nobody_needs_to_be_there(bell: Wakeup, tmp_path: Path) -> None:
    ring("")
    ring(str(tmp_path / "none"))
    for _ in range(10_000):
        ring(bell.path)  # more than it holds: what is too much is let go, and nobody waits
    bell.close()
    ring(bell.path)
