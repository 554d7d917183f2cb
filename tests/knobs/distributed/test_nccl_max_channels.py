"""`nccl_max_channels`: the contract, the facts that refuse it, and its values."""

import pytest
from knob_facts import ddp

from autotune.knobs.distributed.nccl_max_channels import NcclMaxChannels
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = NcclMaxChannels()


class TestNcclMaxChannels(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(run={"parallel": None}), "No wrapper was seen"),
        (ddp(), "not by NCCL"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_nccl_gets_the_variable_unless_the_script_sets_it() -> None:
    given = facts(run=ddp(backend="nccl"))
    assert KNOB.refuse(given) is None
    assert KNOB.domain(given) == ("default", 2, 4, 8, 16)
    own = facts(run=ddp(backend="nccl", run={"environ_set": ("NCCL_MAX_NCHANNELS",)}))
    assert "sets NCCL_MAX_NCHANNELS itself" in str(KNOB.refuse_spelling(KNOB.spellings[0], own))
