"""Many trials in one driver leave nothing behind in it."""

from __future__ import annotations

import os

import pytest
from faultbed import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEARCHES, PROCESSES = soak.sample()


@pytest.mark.parametrize("case", soak.sample(), ids=lambda case: case["key"])
def test_memory_descriptors_and_scratch_stay_as_they_were(injected, is_clean, case) -> None:
    count = injected(soak, case)
    is_clean(count)
    assert count.injected >= case["trials"]


def test_what_a_trial_leaves_behind_is_seen(injected) -> None:
    kept = []

    def leave() -> None:
        kept.append((os.urandom(1 << 17), os.open(os.devnull, os.O_RDONLY)))

    count = injected(soak, {**SEARCHES, "trials": 150}, after_each=leave)
    assert any("grows by" in note for note in count.notes)
    assert any("descriptors grow" in note for note in count.notes)


def _judged(memory) -> soak.Count:
    """The report on a driver that held so many bytes after every fifth trial of two thousand."""
    watch, count = soak.Watch(), soak.Count()
    watch.rows = [(n, int(memory(n)), 8, 0) for n in range(5, 2001, 5)]
    watch.judge(count)
    return count


def test_a_table_that_is_made_anew_once_is_no_leak() -> None:
    count = _judged(lambda n: 80e6 + 100 * n + (2.6e6 if n > 1200 else 0))
    assert count.notes == []
    assert count.facts["bytes_per_trial"] == pytest.approx(100, abs=1)


def test_a_little_that_every_trial_leaves_is_seen() -> None:
    assert any("grows by 2000 bytes" in note for note in _judged(lambda n: 80e6 + 2000 * n).notes)


def test_growth_that_comes_in_jumps_is_seen() -> None:
    notes = _judged(lambda n: 80e6 + 1e6 * (n // 160)).notes
    assert any("has grown by" in note for note in notes)
