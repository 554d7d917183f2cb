"""`effective_batch`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import run

from autotune.knobs.batch.effective_batch import EffectiveBatch
from autotune.model.effect import Effect
from autotune.model.facts import OPTION, REPORTED, InputFacts
from autotune.testing.knobs import KnobContract, facts

KNOB = EffectiveBatch()


class TestEffectiveBatch(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(rule="keep"), "kept, as requested"),
        (facts(run=run(samples_source="input")), "not verified"),
        (
            facts(run=run(samples_source="input", loader=None, gathers=True)),
            "collects its samples during training",
        ),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


@pytest.mark.parametrize(
    ("given", "effect"),
    [
        (facts(), Effect.TRAINING),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect) -> None:
    assert KNOB.effect_for(given) is effect


@pytest.mark.parametrize(("rows", "largest"), [(200, 128), (256, 256), (10_000, 256), (None, 256), (20, 32)])
def test_no_step_is_larger_than_the_data_set_but_the_scripts_own(rows, largest) -> None:
    few = replace(run().loader, batch_size=32, dataset_length=rows)
    assert max(KNOB.domain(facts(run=replace(run(), loader=few)))) == largest


@pytest.mark.parametrize("source", [OPTION, REPORTED])
def test_samples_that_the_scripts_option_says_are_as_good_as_a_loaders(source) -> None:
    own = run(loader=None, samples_source=source, inputs=InputFacts(batch_size=32, dims=(0,), shape=(32, 8)))
    assert KNOB.refuse(facts(run=own)) is None
    assert 256 in KNOB.domain(facts(run=own))
