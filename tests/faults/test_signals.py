"""A signal ends a search with the answer so far, everything journaled and no process left."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
from faultbed import signals

from autotune.driver import tune

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


BUSY_S = 120.0
"""The fault suite holds it to its 15 seconds; here other tests may run beside."""


@pytest.mark.parametrize("case", signals.sample(), ids=lambda case: case["key"])
def test_a_signal_ends_it_with_what_it_has(injected, is_clean, case) -> None:
    is_clean(injected(signals, case, promise_s=BUSY_S))


def test_without_our_handlers_a_signal_leaves_no_answer(injected) -> None:
    @contextlib.contextmanager
    def impolite(*_, **__):
        yield lambda: None

    deaf = mock.patch.object(tune, "polite_ending", impolite)
    count = injected(signals, signals.sample()[1], patches=(deaf,))
    assert not count.survived
    assert "there is no best.yaml" in count.notes
