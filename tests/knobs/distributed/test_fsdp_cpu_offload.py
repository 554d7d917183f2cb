"""`fsdp_cpu_offload`: the contract, and the facts that refuse it."""

from dataclasses import replace

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.fsdp_cpu_offload import FsdpCpuOffload
from autotune.testing.knobs import CPU_RUN, GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = FsdpCpuOffload()


def on_device(**values: object):
    return facts(host=GPU_HOST, run=replace(fsdp(values), model=GPU_RUN.model))


class TestFsdpCpuOffload(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=CPU_RUN), "A single process"),
        (facts(run=ddp()), "No fully_shard"),
        (facts(run=fsdp()), "runs on the CPU"),
        (on_device(fsdp_cpu_offload=True), "offloads to the CPU itself"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_it_is_varied_on_a_device() -> None:
    assert KNOB.refuse(on_device()) is None
