"""`batch_size`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import loader, model, run

from autotune.core.change import Keyword
from autotune.core.effect import Effect
from autotune.knobs.batch_size import BatchSize
from autotune.knobs.common import LOADER as DATALOADER
from autotune.testing.knobs import KnobContract, facts

KNOB = BatchSize()


class TestBatchSize(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=replace(loader(batch_size=None), values={})), "no batch size of its own"),
        (facts(run=run(loader=None)), "No training DataLoader"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


def test_a_custom_batch_sampler_leaves_only_the_scripts_option() -> None:
    given = facts(run=loader(custom_batch_sampler=True))
    assert "batch sampler" in str(KNOB.refuse_spelling(Keyword(DATALOADER, "batch_size"), given))


@pytest.mark.parametrize(
    ("wanted", "plain"),
    [("x2", 64), ("x1.5", 48), ("x0.5", 16), (7, 7), (0, None), ("xnan", None), (32001, None)],
)
def test_batches_relative_to_the_scripts_own(wanted, plain) -> None:
    assert KNOB.resolve(wanted, facts()) == plain


@pytest.mark.parametrize(
    ("given", "effect"),
    [
        (facts(), Effect.EXACT),
        (facts(run=model(dropout=True)), Effect.NUMERIC),
        (facts(run=model(batch_norm=True)), Effect.TRAINING),
        (facts(run=run(model=None)), Effect.NUMERIC),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect) -> None:
    assert KNOB.effect_for(given) is effect


def test_dropout_re_deals_random_streams() -> None:
    assert KNOB.redeals(facts(run=model(dropout=True)))
    assert not KNOB.redeals(facts())
