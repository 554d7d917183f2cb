"""`deepspeed_overlap_comm`: the contract, and the facts that refuse it."""

from dataclasses import replace

import pytest
from knob_facts import ddp, deepspeed

from autotune.knobs.distributed.deepspeed_overlap_comm import DeepspeedOverlapComm
from autotune.testing.knobs import CPU_RUN, GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = DeepspeedOverlapComm()


class TestDeepspeedOverlapComm(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "does not train through DeepSpeed"),
        (deepspeed(), "runs on the CPU"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_a_device_can_overlap_exchanges() -> None:
    run = replace(deepspeed(), model=GPU_RUN.model)
    assert KNOB.refuse(facts(host=GPU_HOST, run=run)) is None
    off = replace(deepspeed(zero=0), model=GPU_RUN.model)
    assert "ZeRO is off" in str(KNOB.refuse(facts(host=GPU_HOST, run=off)))
