"""`tf32`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import gpu

from autotune.knobs.tf32 import Tf32
from autotune.testing.knobs import GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = Tf32()


class TestTf32(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "NVIDIA devices only"),
        (facts(host=gpu(7, 5), run=GPU_RUN), "no TF32"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts(host=GPU_HOST, run=GPU_RUN)) is None
