"""`prefetch_factor`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import run

from autotune.knobs.loader.prefetch_factor import PrefetchFactor
from autotune.testing.knobs import KnobContract, facts

KNOB = PrefetchFactor()


class TestPrefetchFactor(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=run(loader=None)), "No training DataLoader"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None
