"""`cpu_affinity`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp

from autotune.knobs.distributed.cpu_affinity import CpuAffinity
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = CpuAffinity()


class TestCpuAffinity(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(run={"ranks": 16}), "fewer CPUs than processes"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_processes_may_be_bound() -> None:
    given = facts(run=ddp())
    assert KNOB.refuse(given) is None
    assert (KNOB.own(given), KNOB.domain(given)) == ("none", ("none", "block"))
