"""Time for which a thread waits for a CPU."""

from __future__ import annotations

import pytest

from autotune.trial.runtime import queue_delay
from autotune.trial.runtime.queue_delay import QueueDelay


def refused(*_: object) -> int:
    raise OSError("no such file")


def test_it_never_falls_and_is_zero_once_closed() -> None:
    delay = QueueDelay()
    first, second = delay.ns(), delay.ns()
    assert 0 <= first <= second
    delay.close()
    assert (delay.known, delay.ns()) == (False, 0)


def test_it_is_zero_where_the_kernel_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_delay.os, "open", refused)
    delay = QueueDelay()
    assert (delay.known, delay.ns()) == (False, 0)
