"""`cuda_max_connections`: the contract, the facts that refuse it, and its values."""

import pytest
from knob_facts import ddp

from autotune.knobs.distributed.cuda_max_connections import CudaMaxConnections
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = CudaMaxConnections()


class TestCudaMaxConnections(KnobContract):
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
    assert KNOB.domain(given) == ("default", 1, 16, 32)
    own = facts(run=ddp(backend="nccl", run={"environ_set": ("CUDA_DEVICE_MAX_CONNECTIONS",)}))
    assert "sets CUDA_DEVICE_MAX_CONNECTIONS itself" in str(KNOB.refuse_spelling(KNOB.spellings[0], own))
