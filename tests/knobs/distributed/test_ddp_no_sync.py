"""`ddp_no_sync`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp

from autotune.knobs.distributed.ddp_no_sync import DdpNoSync
from autotune.model.facts import ModelFacts, OptimizerFacts
from autotune.source.loops import OWN_GRADIENT
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpNoSync()
FOUR = {"own_accumulation": True, "backward_per_step": 4.0}


class TestDdpNoSync(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "followed by a step"),
        (ddp(run=FOUR, no_sync=True), "itself (no_sync)"),
        (ddp(run=FOUR, count=2), "2 models"),
        (ddp({"ddp_comm_hook": "own"}, FOUR), "hook of its own"),
        (ddp({"ddp_static_graph": True}, FOUR), "graph to be static"),
        (ddp(run=FOUR, all_used=False), "no gradient in some passes"),
        (ddp(run={**FOUR, "optimizer": OptimizerFacts(name="SGD", count=2)}), "Several optimizers"),
        (ddp(run={**FOUR, "model": ModelFacts(name="Net", moves=True)}), "buffers of its own"),
        (ddp(run={**FOUR, "loop_hazards": (OWN_GRADIENT,)}), "own code uses gradients"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_a_script_that_accumulates_may_exchange_once_a_step() -> None:
    given = facts(run=ddp(run=FOUR))
    assert KNOB.refuse(given) is None
    assert KNOB.domain(given) == (1, 4)
