"""`ddp_find_unused_parameters`: the contract, the facts that refuse it, and what is its own."""

import pytest
from knob_facts import ddp

from autotune.knobs.distributed.ddp_find_unused_parameters import DdpFindUnusedParameters
from autotune.model.effect import Effect
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpFindUnusedParameters()
UNUSED = {"ddp_find_unused_parameters": True}


class TestDdpFindUnusedParameters(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (CPU_RUN, "A single process"),
        (ddp(), "does not search"),
        (ddp(UNUSED, all_used=False), "no gradient in some backward passes"),
        (ddp(UNUSED, all_used=None), "could not be seen"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(run, words) -> None:
    reason = KNOB.refuse(facts(run=run))
    assert reason is not None
    assert words in reason


def test_a_search_that_never_found_anything_may_be_left_out() -> None:
    given = facts(run=ddp(UNUSED, all_used=True))
    assert KNOB.refuse(given) is None
    assert KNOB.own(given) is True
    assert KNOB.effect_for(given) is Effect.EXACT
