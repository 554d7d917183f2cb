"""`ddp_gradient_as_bucket_view`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.ddp_gradient_as_bucket_view import DdpGradientAsBucketView
from autotune.source.loops import OWN_GRADIENT
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpGradientAsBucketView()


class TestDdpGradientAsBucketView(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (fsdp(), "No DistributedDataParallel"),
        (ddp({"ddp_gradient_as_bucket_view": None}), "different values"),
        (ddp(run={"loop_hazards": (OWN_GRADIENT,)}), "own code uses gradients"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason
