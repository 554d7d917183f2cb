"""Whoever of a forked trial's processes is killed, nothing is left, the fork server included."""

from __future__ import annotations

import pytest
from faultbed import forks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BUSY_S = 10.0
"""Two seconds are promised; here other tests may run beside."""


@pytest.mark.parametrize("case", forks.sample(), ids=lambda case: case["key"])
def test_nothing_survives_a_kill(injected, is_clean, case) -> None:
    is_clean(injected(forks, case, promise_s=BUSY_S))
