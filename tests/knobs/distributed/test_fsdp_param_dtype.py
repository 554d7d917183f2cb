"""`fsdp_param_dtype`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.fsdp_param_dtype import FsdpParamDtype
from autotune.model.config import Config
from autotune.testing.knobs import CPU_HOST, CPU_RUN, KnobContract, facts

KNOB = FsdpParamDtype()


class TestFsdpParamDtype(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "No fully_shard"),
        (fsdp({"fsdp_param_dtype": "bfloat16"}), "chooses the number format"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_half_precision_of_another_kind_takes_its_place() -> None:
    config = Config({"fsdp_param_dtype": "bfloat16", "precision": "bf16"})
    assert KNOB.settle(config, facts(run=fsdp())) == Config({"precision": "bf16"})


def test_a_cpu_without_bfloat16_gains_nothing() -> None:
    reason = KNOB.refuse(facts(host=replace(CPU_HOST, cpu_flags=()), run=fsdp()))
    assert reason is not None
    assert "no bfloat16 in hardware" in reason
