"""Many trials in one driver leave nothing behind in it."""

from __future__ import annotations

import os

import pytest
from faultbed import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

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
