"""A disk that fails stops the search with what it has, and the search goes on when it is mended."""

from __future__ import annotations

import contextlib

import pytest
from faultbed import writes

from autotune.driver import tune
from autotune.store.journal import Journal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("case", writes.sample(), ids=lambda case: case["key"])
def test_a_failing_disk_stops_the_search_with_what_it_has(injected, is_clean, case) -> None:
    if case["what"] == "full" and not writes.can_mount():
        pytest.skip("this user may not mount a disk of their own")
    is_clean(injected(writes, case))


def test_without_the_borders_of_journal_and_driver_errors_of_sqlite_escape(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "_guarded", lambda journal, doing: contextlib.nullcontext())
    monkeypatch.setattr(tune._Search, "_as_shortage", lambda search, error: error)
    count = injected(writes, {"key": "statement/ENOSPC", "what": "statement", "error": "ENOSPC"})
    assert not count.survived
    assert "without output" in count.notes[0]
