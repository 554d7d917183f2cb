"""`activation_checkpointing`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import model, run

from autotune.knobs.memory.activation_checkpointing import ActivationCheckpointing
from autotune.model.change import Flag
from autotune.model.config import Config
from autotune.model.facts import BlockFacts, ScriptFlag
from autotune.space.choose_delivery import choose
from autotune.testing.knobs import SCRIPT, KnobContract, facts

KNOB = ActivationCheckpointing()
BLOCKS = BlockFacts(name="Layer", count=6, alike=True, watched=True)


class TestActivationCheckpointing(KnobContract):
    knob = KNOB


def with_blocks(**changed):
    return facts(run=model(blocks=replace(BLOCKS, **changed)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "no repeated blocks"),
        (facts(run=run(model=None)), "No trained module"),
        (with_blocks(checkpointed=True), "already recomputes"),
        (with_blocks(watched=False), "not seen running"),
        (with_blocks(changes_state=True), "happen twice"),
        (with_blocks(changes_input=True), "in place"),
        (with_blocks(host_random=True), "Python or NumPy"),
        (facts(run=replace(model(blocks=BLOCKS), own_compile=True)), "compiles its model"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(with_blocks()) is None


def test_dropout_is_the_same_in_the_second_pass_so_nothing_is_dealt_anew() -> None:
    assert not KNOB.changes_rng_streams(facts(run=model(blocks=BLOCKS, dropout=True)))


def test_a_switch_of_the_scripts_own_says_all_or_nothing() -> None:
    switch = ScriptFlag(names=("--gradient-checkpointing",), dest="g", kind="switch")
    assert KNOB.option("full", switch) == ("--gradient-checkpointing", "")
    assert KNOB.option("selective", switch) is None
    assert KNOB.resolve(True, with_blocks()) == "full"
    assert KNOB.resolve("off", with_blocks()) == "none"
    words = ScriptFlag(
        names=("--activation-checkpointing",), dest="a", choices=("none", "selective", "full"), default="none"
    )
    assert KNOB.option("full", words) == ("--activation-checkpointing", "full")
    assert KNOB.option("selective", words) is None


def with_option(kind, **changed):
    flag = ScriptFlag(
        names=("--gradient-checkpointing", "--no-gradient-checkpointing"), dest="g", kind=kind, default=True
    )
    return replace(with_blocks(**changed), script=replace(SCRIPT, flags=(flag,)))


def test_what_the_script_computes_again_by_itself_can_be_switched_off_where_it_has_a_switch() -> None:
    given = with_option("pair", checkpointed=True)
    assert KNOB.own(given) == "full"
    assert KNOB.refuse(given) is None
    (change,), () = choose(Config({KNOB.name: "none"}), given, {KNOB.name: KNOB})
    assert isinstance(change.spelling, Flag)
    assert change.spelling.names[0] == "--no-gradient-checkpointing"
    (), (refusal,) = choose(Config({KNOB.name: "selective"}), given, {KNOB.name: KNOB})
    assert "already recomputes" in refusal.reason


def test_a_switch_that_only_says_what_is_there_already_changes_nothing() -> None:
    assert "already recomputes" in (KNOB.refuse(with_option("switch", checkpointed=True)) or "")
    assert KNOB.refuse(with_option("switch")) is None
