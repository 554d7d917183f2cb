"""`ddp_comm_hook`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.ddp_comm_hook import DdpCommHook
from autotune.model.config import Config
from autotune.model.facts import ModelFacts
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpCommHook()


class TestDdpCommHook(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (fsdp(), "No DistributedDataParallel"),
        (ddp({"ddp_comm_hook": None}), "different values"),
        (ddp({"ddp_comm_hook": "fp16"}), "compresses its gradients itself"),
        (ddp(mixed_precision=True), "policy for number formats"),
        (ddp(run={"model": ModelFacts(name="Net", dtypes=("bfloat16",))}), "No gradients are float32"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_bf16_is_sent_by_nccl_alone() -> None:
    assert KNOB.domain(facts(run=ddp())) == ("none", "fp16")
    assert KNOB.domain(facts(run=ddp(backend="nccl"))) == ("none", "bf16", "fp16")


def test_a_hook_of_the_scripts_may_send_rounded_gradients() -> None:
    given = facts(run=ddp({"ddp_comm_hook": "own"}))
    assert KNOB.refuse(given) is None
    assert KNOB.domain(given) == ("own", "fp16")


def test_powersgd_leaves_no_room_for_another_format() -> None:
    config = Config({"ddp_comm_hook": "fp16", "ddp_powersgd_rank": 2})
    assert KNOB.settle(config, facts(run=ddp())) == Config({"ddp_powersgd_rank": 2})
