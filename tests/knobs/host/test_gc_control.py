"""`gc_control`: the contract, and the script that has a rhythm of its own."""

import pytest
from knob_facts import run

from autotune.knobs.host.gc_control import GcControl
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = GcControl()


def owning(value: str):
    return facts(run=run(values={**CPU_RUN.values, "gc_control": value}))


class TestGcControl(KnobContract):
    knob = KNOB


@pytest.mark.parametrize("own", ["own", "freeze"])
def test_a_script_that_controls_collection_is_left_alone(own) -> None:
    assert "controls garbage collection" in (KNOB.refuse(owning(own)) or "")
    assert KNOB.domain(owning(own)) == (own,)


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None
    assert KNOB.refuse(owning("auto")) is None
    assert KNOB.domain(facts()) == ("auto", "freeze", "boundary")
