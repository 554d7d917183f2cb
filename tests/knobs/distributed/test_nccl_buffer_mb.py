"""`nccl_buffer_mb`: the contract, the facts that refuse it, and its values."""

import pytest
from knob_facts import NcclVariable, ddp

from autotune.knobs.distributed.nccl_buffer_mb import NcclBufferMb
from autotune.model.change import Env
from autotune.testing.knobs import FakePatches, FakeProcess, KnobContract, facts

KNOB = NcclBufferMb()


class TestNcclBufferMb(KnobContract):
    knob = KNOB


class TestVariable(NcclVariable):
    knob = KNOB
    variable = "NCCL_BUFFSIZE"
    values = ("default", 1, 2, 8, 16)


def test_the_variable_counts_bytes() -> None:
    given = facts(run=ddp(backend="nccl"))
    assert KNOB.environment(8, Env("NCCL_BUFFSIZE"), given) == "8388608"
    assert KNOB.environment("default", Env("NCCL_BUFFSIZE"), given) is None


@pytest.mark.parametrize(("text", "value"), [("", "default"), ("8388608", 8), ("5000", "5000")])
def test_what_the_process_has_is_read_back(text, value) -> None:
    patches = FakePatches()
    patches.process = FakeProcess(variables={"NCCL_BUFFSIZE": text})
    assert KNOB.seen(patches) == value
