"""`fsdp_reshard_after_forward`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.fsdp_reshard_after_forward import FsdpReshardAfterForward
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = FsdpReshardAfterForward()


class TestFsdpReshardAfterForward(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "No fully_shard"),
        (fsdp(count=1), "One module is sharded"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason
