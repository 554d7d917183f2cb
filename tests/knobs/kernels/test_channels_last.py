"""`channels_last`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import model, run

from autotune.knobs.kernels.channels_last import ChannelsLast
from autotune.testing.knobs import KnobContract, facts

KNOB = ChannelsLast()


class TestChannelsLast(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=model(has_4d=False)), "no 4-D parameters"),
        (facts(run=run(model=None)), "No trained module"),
        (facts(run=model(has_5d=True)), "convolutions over volumes"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


def test_dropout_re_deals_random_streams() -> None:
    assert KNOB.changes_rng_streams(facts(run=model(dropout=True)))
    assert not KNOB.changes_rng_streams(facts())
