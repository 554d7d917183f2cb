"""`threads`: the contract, the facts that refuse it, and what is its own."""

import pytest

from autotune.core.effect import Effect
from autotune.knobs.threads import Threads
from autotune.testing.knobs import GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = Threads()


class TestThreads(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(host=GPU_HOST, run=GPU_RUN), "NVIDIA device"),
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
