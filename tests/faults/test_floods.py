"""Output that is no text and has no end is drained within bounds."""

from __future__ import annotations

import pytest
from faultbed import floods

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("case", floods.sample(), ids=lambda case: case["key"])
def test_a_flood_is_drained_bounded_and_shown(injected, is_clean, case) -> None:
    is_clean(injected(floods, case))


def test_without_its_bound_the_guard_keeps_it_all(injected, crippled_guard) -> None:
    crippled_guard(("while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:", "while False:"))
    count = injected(floods, {"key": "unbounded", "kind": "zeros", "mib": 200})
    assert "the guard took" in count.notes[-1]
