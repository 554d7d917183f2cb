"""`persistent_workers`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import loader, model, run

from autotune.knobs.loader.persistent_workers import PersistentWorkers
from autotune.model.effect import Effect
from autotune.model.facts import FetchState
from autotune.testing.knobs import SCRIPT, KnobContract, facts

KNOB = PersistentWorkers()


class TestPersistentWorkers(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=run(loader=None)), "No training DataLoader"),
        (facts(run=loader(changed="between")), "keep their own"),
        (facts(run=loader(changed="between", changed_at="noise.p (a.py:5)")), "changes noise.p (a.py:5) as"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


DRAWN = [loader(shuffles=True), loader(random=True), model(dropout=True), run(loop_draws="host")]


@pytest.mark.parametrize("drawn", DRAWN)
def test_what_is_drawn_at_random_is_dealt_anew(drawn) -> None:
    """Without the seed for new workers, the generator is elsewhere when the next order is drawn."""
    assert KNOB.changes_rng_streams(facts(run=drawn))
    assert KNOB.effect_for(facts(run=drawn)) is Effect.NUMERIC
    assert KNOB.effect_for(facts(run=model(dropout=True, device="cuda"))) is Effect.EXACT
    assert KNOB.effect_for(facts(run=run(loop_draws="device"))) is Effect.EXACT


def test_in_a_fixed_order_nothing_changes() -> None:
    assert not KNOB.changes_rng_streams(facts())
    assert KNOB.effect_for(facts()) is Effect.EXACT


def test_a_loader_of_one_pass_has_nothing_to_keep_workers_for() -> None:
    assert "built for every pass" in str(KNOB.refuse(facts(run=loader(rebuilt=True))))


def test_a_child_that_the_script_forks_may_wait_for_what_workers_hold() -> None:
    script = replace(SCRIPT, hazards=("forks",))
    assert "end of a pipe" in str(KNOB.refuse(facts(script=script)))
    assert KNOB.refuse(facts(script=script, run=loader(num_workers=2, persistent_workers=True))) is None


def test_state_that_a_fetch_changes_raises_the_effect_and_is_named() -> None:
    held = FetchState(what="your dataset collects what it has fetched (seen) at data.py:9", sure=True)
    given = facts(run=loader(num_workers=2, fetch_state=held))
    assert KNOB.effect_for(given) is Effect.TRAINING
    assert KNOB.raised(given).startswith("Your dataset collects what it has fetched (seen) at data.py:9,")
    assert KNOB.raised(facts()) == ""
