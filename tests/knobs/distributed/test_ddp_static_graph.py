"""`ddp_static_graph`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.distributed.ddp_static_graph import DdpStaticGraph
from autotune.model.config import Config
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpStaticGraph()


class TestDdpStaticGraph(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (fsdp(), "No DistributedDataParallel"),
        (ddp({"ddp_static_graph": None}), "different values"),
        (ddp({"ddp_static_graph": True}), "static itself"),
        (ddp(no_sync=True), "leaves out exchanges"),
        (ddp(all_used=False), "Not every parameter"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize("deferred", [{"ddp_no_sync": 4}, {"accumulation": 2}])
def test_passes_without_an_exchange_need_a_graph_of_their_own(deferred) -> None:
    config = Config({"ddp_static_graph": True, **deferred})
    assert KNOB.settle(config, facts(run=ddp())) == Config(deferred)
