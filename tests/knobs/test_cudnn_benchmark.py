"""`cudnn_benchmark`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest

from autotune.knobs.cudnn_benchmark import CudnnBenchmark
from autotune.testing.knobs import GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = CudnnBenchmark()


class TestCudnnBenchmark(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "NVIDIA devices only"),
        (facts(host=GPU_HOST, run=replace(GPU_RUN, input_shapes_vary=True)), "shapes vary"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts(host=GPU_HOST, run=GPU_RUN)) is None
