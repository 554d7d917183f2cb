"""`in_order`: the contract, the facts that refuse it, and its tie to workers."""

import pytest
from knob_facts import run

from autotune.knobs.loader.in_order import InOrder
from autotune.knobs.registry import needs_permission
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = InOrder()


class TestInOrder(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=run(loader=None)), "No training DataLoader"),
        (facts(run=run(versions={"torch": "2.5.1+cpu"})), "PyTorch 2.6"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None
    assert KNOB.refuse(facts(run=run(versions={"torch": "2.6.0"}))) is None


def test_it_changes_the_training_and_takes_part_by_name_only() -> None:
    assert KNOB.effect_for(facts()) is Effect.TRAINING
    assert KNOB.changes_rng_streams(facts())
    assert needs_permission(KNOB)


def test_one_worker_is_always_in_order() -> None:
    requested = Config({"in_order": False})
    assert KNOB.settle(requested, facts()) == Config()
    one, two = Config({"in_order": False, "num_workers": 1}), Config({"in_order": False, "num_workers": 2})
    assert KNOB.settle(one, facts()) == Config({"num_workers": 1})
    assert KNOB.settle(two, facts()) == two
    alone = facts(run=run(values={**CPU_RUN.values, "num_workers": 1}))
    assert "one worker" in (KNOB.idle(alone, ("in_order",)) or "")
    assert KNOB.idle(facts(), ("in_order", "num_workers")) is None
