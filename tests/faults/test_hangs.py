"""Whatever a trial hangs in, it is ended in time."""

from __future__ import annotations

import pytest
from faultbed import hangs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("case", hangs.sample(), ids=lambda case: case["key"])
def test_a_hang_is_ended_in_time(injected, is_clean, case) -> None:
    is_clean(injected(hangs, case, promise_s=120.0))


def test_without_the_progress_limit_a_hang_lasts_until_the_deadline(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.launch.running_trial.Running._limit_s", lambda self, floor_s: float("inf"))
    count = injected(hangs, {"key": "sleep", "kind": "sleep", "grace_s": 0.3}, promise_s=0.5)
    assert not count.survived
    assert "timeout_total" in count.notes[0].lower()
