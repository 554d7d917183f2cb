"""`cudnn_benchmark`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest

from autotune.knobs.kernels.cudnn_benchmark import CudnnBenchmark
from autotune.model.facts import ModelFacts
from autotune.testing.knobs import GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = CudnnBenchmark()


class TestCudnnBenchmark(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "NVIDIA devices only"),
        (facts(host=GPU_HOST, run=replace(GPU_RUN, input_shapes_vary=True)), "shapes vary"),
        (facts(host=GPU_HOST, run=replace(GPU_RUN, deterministic=True)), "requires deterministic"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts(host=GPU_HOST, run=GPU_RUN)) is None


@pytest.mark.parametrize("kind", ["has_4d", "has_5d", "convolves"])
def test_convolutions_of_any_kind_have_kernels_to_choose_and_other_models_have_none(kind) -> None:
    """Over signals they are modules, over images and volumes their parameters identify them too."""

    def on_gpu(**known: bool):
        model = ModelFacts(name="Net", device="cuda", **known)
        return facts(host=GPU_HOST, run=replace(GPU_RUN, model=model))

    assert KNOB.refuse(on_gpu(**{kind: True})) is None
    assert "no convolutions" in (KNOB.refuse(on_gpu()) or "")
