"""`deepspeed_zero_stage`: the contract, and the facts that refuse it."""

import pytest
from knob_facts import ddp, deepspeed

from autotune.knobs.distributed.deepspeed_zero_stage import DeepspeedZeroStage
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DeepspeedZeroStage()


class TestDeepspeedZeroStage(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "does not train through DeepSpeed"),
        (deepspeed({"deepspeed_zero_stage": 3}), "written for stage 3"),
        (deepspeed(pipeline=True), "DeepSpeed pipeline"),
        (deepspeed({"deepspeed_zero_stage": None}), "does not report"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_parameters_are_never_shared_out_by_it() -> None:
    given = facts(run=deepspeed({"deepspeed_zero_stage": 0}))
    assert KNOB.refuse(given) is None
    assert KNOB.domain(given) == (0, 1, 2)
    assert KNOB.resolve(3, given) is None
