"""A driver that is killed at any border of its journal loses nothing and runs nothing twice."""

from __future__ import annotations

import pytest
from faultbed import drivers

from autotune.driver import tune
from autotune.store.fold import fold
from autotune.store.journal import Journal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("case", drivers.sample(), ids=lambda case: case["key"])
def test_kills_lose_nothing_and_double_nothing(injected, is_clean, case) -> None:
    count = injected(drivers, case)
    is_clean(count)
    assert count.injected == case["kills"]


def test_a_journal_that_acknowledges_before_it_writes_loses_events(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Journal.append

    def later(journal, kind, uid, data, *, outbox=()):
        if journal.epoch == 1:
            return append(journal, kind, uid, data, outbox=outbox)
        waiting = journal.__dict__.setdefault("_later", [])
        waiting.append((kind, uid, data, outbox))
        if len(waiting) > 1:
            kind, uid, data, outbox = waiting.pop(0)
            return append(journal, kind, uid, data, outbox=outbox)
        return 0

    monkeypatch.setattr(Journal, "append", later)
    count = injected(drivers, {"key": "late", "kills": 4})
    assert count.lost > 0
    assert not count.survived


def test_a_resume_that_forgets_outcomes_runs_trials_twice(injected, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(entries, **more):
        return fold([entry for entry in entries if entry.kind != "finished"], **more)

    monkeypatch.setattr(tune, "fold", forgetful)
    count = injected(drivers, {"key": "forgetful", "kills": 2})
    assert count.duplicated > 0
    assert not count.survived
