"""`ddp_bucket_cap_mb`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.ddp_bucket_cap_mb import DdpBucketCapMb
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpBucketCapMb()


class TestDdpBucketCapMb(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (fsdp(), "No DistributedDataParallel"),
        (ddp({"ddp_bucket_cap_mb": None}), "different values"),
        (ddp(gradient_bytes=2**20), "first bucket"),
        (ddp({"ddp_bucket_cap_mb": 0.5}, gradient_bytes=2**19), "first bucket"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_buckets_grow_from_the_scripts_own_to_one_for_all_gradients() -> None:
    given = facts(run=ddp(gradient_bytes=130 * 2**20 + 1))
    assert KNOB.refuse(given) is None
    assert KNOB.domain(given) == (10, 25, 50, 100, 131)
    assert KNOB.resolve("one_bucket", given) == 131
    small = facts(run=ddp({"ddp_bucket_cap_mb": 0.01}, gradient_bytes=71172))
    assert KNOB.domain(small) == (0.01, 1)
