"""`threads`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import run

from autotune.knobs.host.threads import Threads
from autotune.model.change import Change, Env, Flag
from autotune.model.effect import Effect
from autotune.model.facts import ScriptFlag
from autotune.space.choose_delivery import way
from autotune.testing.knobs import GPU_HOST, GPU_RUN, SCRIPT, KnobContract, facts

KNOB = Threads()


class TestThreads(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(host=GPU_HOST, run=GPU_RUN), "NVIDIA device"),
        (facts(run=run(sets_threads=True)), "sets the number of threads itself"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


@pytest.mark.parametrize(
    ("wanted", "plain"),
    [
        ("physical", 4),
        ("physical-1", 3),
        ("half", 2),
        (1, 1),
        ("asis", 4),
        ("x0.5", 2),
        ("x3", 12),
        ("x0.3", None),
    ],
)
def test_names_of_thread_counts(wanted, plain) -> None:
    assert KNOB.resolve(wanted, facts()) == plain


@pytest.mark.parametrize(
    ("given", "effect"),
    [
        (facts(), Effect.EXACT),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect) -> None:
    assert KNOB.effect_for(given) is effect


@pytest.mark.parametrize("names", [("--num_threads",), ("-p",)])
def test_where_the_script_sets_them_its_own_option_says_how_many(names) -> None:
    """An option that is given by a letter alone is known by the name of its value."""
    option = ScriptFlag(names=names, dest="nthreads", kind="int")
    script = replace(SCRIPT, flags=(option,))
    found = way(KNOB, 1, facts(script=script, run=run(sets_threads=True)))
    assert isinstance(found, Change)
    assert (found.spelling, found.delivered) == (Flag(names), "1")
    assert KNOB.refuse(facts(script=script, run=run(sets_threads=True))) is None


def test_an_option_of_that_name_need_not_be_for_operations() -> None:
    script = replace(SCRIPT, flags=(ScriptFlag(names=("--threads",), dest="threads", kind="int"),))
    for given in (facts(script=script), facts(script=script, run=None)):
        found = way(KNOB, 1, given)
        assert isinstance(found, Change)
        assert isinstance(found.spelling, Env)


def test_a_long_spelling_is_not_read_past() -> None:
    """What has a name of its own is known by that one alone."""
    script = replace(SCRIPT, flags=(ScriptFlag(names=("--jobs", "-j"), dest="threads", kind="int"),))
    assert script.flag("--threads") is None
    assert script.flag("-j") is not None


def test_several_processes_share_the_cores_out() -> None:
    assert KNOB.domain(facts(run=run(ranks=2, threads=1))) == (1, 2)
    assert KNOB.resolve("physical", facts(run=run(ranks=8, threads=1))) == 1
