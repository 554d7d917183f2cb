"""`memory_budget`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

from knob_facts import model, run

from autotune.knobs.compile.memory_budget import MemoryBudget
from autotune.model.config import Config
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = MemoryBudget()
COMPILED = facts(run=replace(CPU_RUN, own_compile=True, values={**CPU_RUN.values, "compile_mode": "default"}))


class TestMemoryBudget(KnobContract):
    knob = KNOB


def test_an_old_torch_refuses_it_in_words() -> None:
    reason = KNOB.refuse(facts(run=run(versions={"torch": "2.3.1"})))
    assert reason is not None
    assert "2.4" in reason
    assert KNOB.refuse(facts(run=run(versions={"torch": "2.13.0"}))) is None


def test_without_compile_it_drops_out_of_a_config_and_of_a_space_that_never_compiles() -> None:
    half = Config({"memory_budget": 0.5})
    assert KNOB.settle(half, facts()) == Config()
    compiled = Config({"memory_budget": 0.5, "compile_mode": "default"})
    assert KNOB.settle(compiled, facts()) == compiled
    assert KNOB.settle(half, COMPILED) == half
    assert KNOB.settle(Config({"memory_budget": 0.5, "compile_mode": "off"}), COMPILED) == Config(
        {"compile_mode": "off"}
    )
    assert "compile_mode" in (KNOB.idle(facts(), ("memory_budget",)) or "")
    assert KNOB.idle(facts(), ("memory_budget", "compile_mode")) is None
    assert KNOB.idle(COMPILED, ("memory_budget",)) is None


def test_it_is_a_share() -> None:
    assert KNOB.resolve(0.9, facts()) == 0.9
    assert KNOB.resolve(1, facts()) == 1.0
    assert KNOB.resolve(1.5, facts()) is None
    assert KNOB.resolve(True, facts()) is None


def test_dropout_in_compiled_code_may_be_dealt_anew() -> None:
    assert KNOB.changes_rng_streams(facts(run=model(dropout=True)))
    assert not KNOB.changes_rng_streams(facts())


def test_a_tenth_less_is_tried_too() -> None:
    assert KNOB.domain(COMPILED) == (0.3, 0.5, 0.7, 0.9, 1.0)
