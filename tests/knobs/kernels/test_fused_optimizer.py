"""`fused_optimizer`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import optimizer, run

from autotune.knobs.kernels.fused_optimizer import FusedOptimizer
from autotune.testing.knobs import KnobContract, facts

KNOB = FusedOptimizer()


class TestFusedOptimizer(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=optimizer(can_fuse=False)), "no fused kernel"),
        (facts(run=optimizer(kernel_given=True)), "chooses the kernel"),
        (facts(run=optimizer(fused=True)), "already uses"),
        (facts(run=run(optimizer=None)), "No optimizer was seen"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None
