"""`fsdp_prefetch`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.fsdp_prefetch import FsdpPrefetch
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = FsdpPrefetch()


class TestFsdpPrefetch(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "No fully_shard"),
        (fsdp(count=2), "none to gather ahead"),
        (fsdp({"fsdp_prefetch": 1}), "sets the order"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason
