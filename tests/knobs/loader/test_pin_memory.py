"""`pin_memory`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest

from autotune.knobs.loader.pin_memory import PinMemory
from autotune.testing.knobs import GPU_HOST, GPU_RUN, LOADER, KnobContract, facts

KNOB = PinMemory()


class TestPinMemory(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "training runs on the CPU"),
        (facts(host=GPU_HOST, run=replace(GPU_RUN, loader=replace(LOADER, cuda_tensors=True))), "pinned"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts(host=GPU_HOST, run=GPU_RUN)) is None
