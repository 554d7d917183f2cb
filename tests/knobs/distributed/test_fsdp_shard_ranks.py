"""`fsdp_shard_ranks`: the contract, the facts that refuse it, and its values."""

from dataclasses import replace

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.fsdp_shard_ranks import FsdpShardRanks
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = FsdpShardRanks()


def of(ranks: int):
    return facts(run=replace(fsdp({"fsdp_shard_ranks": ranks}), ranks=ranks))


class TestFsdpShardRanks(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=CPU_RUN), "A single process"),
        (facts(run=ddp()), "No fully_shard"),
        (facts(run=fsdp(own_mesh=True)), "a device mesh of its own"),
        (of(2), "cannot be divided"),
        (of(7), "cannot be divided"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_groups_are_of_equal_size() -> None:
    assert KNOB.refuse(of(8)) is None
    assert KNOB.domain(of(8)) == (2, 4, 8)
    assert KNOB.resolve(4, of(8)) == 4
    assert KNOB.resolve(3, of(8)) is None
