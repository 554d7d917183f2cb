"""`fp8`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import gpu

from autotune.knobs.numerics.fp8 import Fp8
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.testing.knobs import GPU_HOST, GPU_RUN, KnobContract, example_facts, facts

KNOB = Fp8()
INSTALLED = replace(GPU_RUN, versions={"torch": "2.13.0", "torchao": "0.18.0"})
HOPPER = facts(host=GPU_HOST, run=INSTALLED)


class TestFp8(KnobContract):
    knob = KNOB
    facts = (*example_facts(), HOPPER)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "training runs on the CPU"),
        (facts(host=gpu(8, 0), run=INSTALLED), "compute capability 8.9"),
        (facts(host=GPU_HOST, run=GPU_RUN), "torchao is not installed"),
        (facts(host=GPU_HOST, run=replace(INSTALLED, values={"fp8": "rowwise"})), "itself"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(HOPPER) is None
    assert KNOB.effect is Effect.TRAINING


@pytest.mark.parametrize(
    ("others", "stays"),
    [
        ({}, False),
        ({"compile_mode": "default"}, False),
        ({"precision": "bf16"}, False),
        ({"precision": "bf16", "compile_mode": "default"}, True),
        ({"pure_bf16": True, "compile_mode": "default"}, True),
    ],
)
def test_it_drops_out_without_compile_or_half_precision(others, stays) -> None:
    config = Config({"fp8": "rowwise", **others})
    settled = KNOB.settle(config, HOPPER)
    assert settled == (config if stays else Config(others))
    assert "compile_mode" in (KNOB.idle(HOPPER, ("fp8",)) or "")
