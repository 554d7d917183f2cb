"""`pure_bf16`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import gpu, model, run

from autotune.knobs.numerics.pure_bf16 import PureBf16
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.testing.knobs import CPU_HOST, GPU_RUN, SCRIPT, KnobContract, facts

KNOB = PureBf16()


class TestPureBf16(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(host=replace(CPU_HOST, cpu_flags=())), "This CPU has no bf16"),
        (facts(host=gpu(7, 5), run=GPU_RUN), "compute capability 8.0"),
        (facts(run=run(own_autocast=True)), "autocast itself"),
        (facts(run=run(own_scaler=True)), "scales its gradients"),
        (facts(run=None, script=replace(SCRIPT, hazards=("own_autocast",))), "autocast itself"),
        (facts(script=replace(SCRIPT, hazards=("own_bf16",))), "makes bf16 tensors itself"),
        (facts(run=run(loop_hazards=("own_average",))), "averages weights"),
        (facts(run=run(model=None)), "No trained module"),
        (facts(run=run(owners=("accelerate",))), "belongs to accelerate"),
        (facts(run=run(bce_outside=True)), "saturates"),
        (facts(run=model(dtypes=("float32", "float64"))), "float32 and float64"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


def test_it_changes_the_training() -> None:
    assert KNOB.effect is Effect.TRAINING


def test_autocast_has_nothing_left_to_do() -> None:
    both = Config({"pure_bf16": True, "precision": "bf16"})
    assert KNOB.settle(both, facts()) == Config({"pure_bf16": True})
