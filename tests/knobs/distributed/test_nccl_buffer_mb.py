"""`nccl_buffer_mb`: the contract, the facts that refuse it, and its values."""

import pytest
from knob_facts import ddp

from autotune.knobs.distributed.nccl_buffer_mb import NcclBufferMb
from autotune.model.change import Env
from autotune.testing.knobs import CPU_RUN, FakePatches, FakeProcess, KnobContract, facts

KNOB = NcclBufferMb()


class TestNcclBufferMb(KnobContract):
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
    assert KNOB.domain(given) == ("default", 1, 2, 8, 16)
    own = facts(run=ddp(backend="nccl", run={"environ_set": ("NCCL_BUFFSIZE",)}))
    assert "sets NCCL_BUFFSIZE itself" in str(KNOB.refuse_spelling(KNOB.spellings[0], own))


def test_the_variable_counts_bytes() -> None:
    given = facts(run=ddp(backend="nccl"))
    assert KNOB.environment(8, Env("NCCL_BUFFSIZE"), given) == "8388608"
    assert KNOB.environment("default", Env("NCCL_BUFFSIZE"), given) is None


@pytest.mark.parametrize(("text", "value"), [("", "default"), ("8388608", 8), ("5000", "5000")])
def test_what_the_process_has_is_read_back(text, value) -> None:
    patches = FakePatches()
    patches.process = FakeProcess(variables={"NCCL_BUFFSIZE": text})
    assert KNOB.seen(patches) == value
