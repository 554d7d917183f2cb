"""`compile_region`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import model, run

from autotune.knobs.compile.compile_region import CompileRegion
from autotune.model.config import Config
from autotune.model.facts import BlockFacts
from autotune.testing.knobs import SCRIPT, KnobContract, facts

KNOB = CompileRegion()
BLOCKS = BlockFacts(name="Layer", count=6, alike=True)
WITH_BLOCKS = facts(run=model(blocks=BLOCKS))


class TestCompileRegion(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "no repeated blocks"),
        (facts(run=run(model=None)), "No trained module"),
        (facts(run=model(blocks=replace(BLOCKS, alike=False))), "differ in size"),
        (facts(run=replace(model(blocks=BLOCKS), own_compile=True)), "compiles its own regions"),
        (facts(run=None, script=replace(SCRIPT, hazards=("own_compile",))), "compiles its own regions"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(WITH_BLOCKS) is None


def test_without_compile_it_drops_out() -> None:
    assert KNOB.settle(Config({"compile_region": "block"}), WITH_BLOCKS) == Config()
    both = Config({"compile_region": "block", "compile_mode": "default"})
    assert KNOB.settle(both, WITH_BLOCKS) == both
    assert KNOB.idle(WITH_BLOCKS, ("compile_region",)) is not None


def test_dropout_in_compiled_code_may_be_dealt_anew() -> None:
    assert KNOB.changes_rng_streams(facts(run=model(blocks=BLOCKS, dropout=True)))
    assert not KNOB.changes_rng_streams(WITH_BLOCKS)
