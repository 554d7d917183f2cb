"""`set_to_none`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import run

from autotune.knobs.memory.set_to_none import SetToNone
from autotune.model.effect import Effect
from autotune.testing.knobs import KnobContract, facts

KNOB = SetToNone()


class TestSetToNone(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "does not fill"),
        (facts(run=run(zeroes_gradients=True, gradients_pause=True)), "no gradient in some steps"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_a_script_that_fills_with_zeros_may_let_go() -> None:
    given = facts(run=run(zeroes_gradients=True))
    assert KNOB.refuse(given) is None
    assert KNOB.own(given) is False
    assert KNOB.effect_for(given) is Effect.EXACT
