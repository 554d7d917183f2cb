"""`ddp_powersgd_rank`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.ddp_powersgd_rank import DdpPowersgdRank
from autotune.knobs.registry import needs_permission
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpPowersgdRank()


class TestDdpPowersgdRank(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (fsdp(), "No DistributedDataParallel"),
        (ddp({"ddp_powersgd_rank": None}), "different values"),
        (ddp({"ddp_comm_hook": "own"}), "hook of its own"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_it_takes_part_by_permission_alone() -> None:
    assert needs_permission(KNOB)
