"""`mp_context`: the contract, the facts that refuse a way to start workers, and its ties."""

from dataclasses import replace

import pytest
from knob_facts import loader, run

from autotune.knobs.loader.mp_context import MpContext
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import FetchState, ScriptConstant, ScriptFlag
from autotune.testing.knobs import CPU_RUN, GPU_HOST, GPU_RUN, SCRIPT, KnobContract, facts

KNOB = MpContext()
IMPORTED = replace(SCRIPT, import_runs=True)


class TestMpContext(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=run(loader=None)), "No training DataLoader"),
        (facts(script=IMPORTED), "trains on import"),
        (facts(script=IMPORTED, run=None), "trains on import"),
        (facts(run=loader(unsendable="It holds a lock.")), "It holds a lock."),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts(run=loader(unsendable="", mp_context="fork"))) is None
    assert KNOB.domain(facts(run=loader(unsendable=""))) == ("fork", "forkserver", "spawn")


def test_nothing_is_forked_that_the_script_does_not_fork_once_cuda_has_started() -> None:
    spawned = replace(GPU_RUN, values={**GPU_RUN.values, "mp_context": "spawn"})
    assert KNOB.domain(facts(host=GPU_HOST, run=spawned)) == ("forkserver", "spawn")
    both = facts(host=GPU_HOST, run=spawned, script=IMPORTED)
    assert KNOB.domain(both) == ("spawn",)
    assert "cannot be forked" in (KNOB.refuse(both) or "")
    forked = replace(GPU_RUN, values={**GPU_RUN.values, "mp_context": "fork"})
    assert KNOB.domain(facts(host=GPU_HOST, run=forked)) == ("fork", "forkserver", "spawn")


@pytest.mark.parametrize(
    ("given", "effect", "changes_rng_streams"),
    [
        (facts(), Effect.EXACT, False),
        (facts(run=loader(random=True)), Effect.EXACT, False),
        (facts(run=loader(own_code=True)), Effect.NUMERIC, False),
        (facts(run=loader(own_code=True, random=True)), Effect.NUMERIC, True),
    ],
)
def test_code_of_the_scripts_own_may_read_what_a_new_process_lacks(
    given, effect, changes_rng_streams
) -> None:
    assert KNOB.effect_for(given) is effect
    assert KNOB.changes_rng_streams(given) is changes_rng_streams


def test_it_goes_with_workers_alone() -> None:
    requested = Config({"mp_context": "spawn"})
    assert KNOB.settle(requested, facts()) == Config()
    both = Config({"mp_context": "spawn", "num_workers": 2})
    assert KNOB.settle(both, facts()) == both
    four = facts(run=replace(CPU_RUN, values={**CPU_RUN.values, "num_workers": 4}))
    assert KNOB.settle(requested, four) == requested
    assert KNOB.idle(facts(), ("mp_context",)) is not None
    assert KNOB.idle(facts(), ("mp_context", "num_workers")) is None


def test_state_that_a_fetch_changes_raises_the_effect_and_is_named() -> None:
    held = FetchState(what="your dataset collects what it has fetched (seen) at data.py:9", sure=True)
    given = facts(run=loader(num_workers=2, fetch_state=held))
    assert KNOB.effect_for(given) is Effect.TRAINING
    assert KNOB.raised(given).startswith("Your dataset collects what it has fetched (seen) at data.py:9,")
    assert KNOB.raised(facts()) == ""


def test_constants_rule_out_workers_that_import_the_script_only_where_they_set_a_knob() -> None:
    written = ScriptConstant(name="batch_size", file="train.py", line=3, value=32)
    requested = Config({"mp_context": "spawn", "num_workers": 2, "batch_size": 64})
    plain = replace(SCRIPT, flags=(), constants=(written,))
    assert "in its file" in str(KNOB.settle(requested, facts(script=plain, run=loader(num_workers=2))))
    flagged = replace(plain, flags=(ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int"),))
    assert KNOB.settle(requested, facts(script=flagged, run=loader(num_workers=2))) == requested
