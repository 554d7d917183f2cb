"""`deepspeed_bucket_size`: the contract, and the facts that refuse it."""

import pytest
from knob_facts import ddp, deepspeed

from autotune.knobs.distributed.deepspeed_bucket_size import DeepspeedBucketSize
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DeepspeedBucketSize()


class TestDeepspeedBucketSize(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "does not train through DeepSpeed"),
        (deepspeed(zero=0), "ZeRO is off"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_a_script_with_zero_has_its_own_size_among_the_values() -> None:
    given = facts(run=deepspeed({"deepspeed_bucket_size": 7}))
    assert KNOB.refuse(given) is None
    assert KNOB.domain(given)[0] == 7
