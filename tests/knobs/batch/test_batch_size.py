"""`batch_size`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import loader, model, run

from autotune.knobs.batch.batch_size import BATCH_OPTIONS, BatchSize, given_batch_size
from autotune.knobs.common import LOADER as DATALOADER
from autotune.model.change import Change, Keyword
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import (
    OPTION,
    REPORTED,
    FetchState,
    InputFacts,
    OptimizerFacts,
    ScriptConstant,
    ScriptFlag,
)
from autotune.source.loops import GROWN
from autotune.space.choose_delivery import way
from autotune.testing.knobs import SCRIPT, KnobContract, facts

KNOB = BatchSize()
FLAGGED = replace(
    SCRIPT, flags=(ScriptFlag(names=("--batch_size",), dest="batch_size", kind="int", default=32),)
)
SEEN = InputFacts(batch_size=32, dims=(1,), shape=(16, 32))
COUNTS = FetchState(what="your collate function changes what it holds (n) at c.py:4", by="collate_fn")
CLOSURE = OptimizerFacts(name="LBFGS", closure=True)


def by_option(rule: str = "explore", **changed: object):
    """A script that makes its batches itself, by an option of its own."""
    seen = {"loader": None, "samples_source": OPTION, "inputs": SEEN, **changed}
    return facts(script=FLAGGED, run=run(**seen), rule=rule)


class TestBatchSize(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=replace(loader(batch_size=None), values={})), "no batch size of its own"),
        (facts(run=run(loader=None)), "No training DataLoader"),
        (
            by_option(samples_source="input", inputs=InputFacts(batch_size=12)),
            "has the size 12 of its batch_size",
        ),
        (by_option(samples_source="input", inputs=replace(SEEN, calls_per_backward=19.0)), "are 19 calls"),
        (by_option(samples_source="input", optimizer=CLOSURE), "decides how many batches"),
        (
            by_option(samples_source=REPORTED, optimizer=CLOSURE),
            "per step, so the effect of another batch size",
        ),
        (
            by_option(samples_source=REPORTED, inputs=InputFacts(batch_size=12)),
            "the effect of another batch size cannot",
        ),
        (
            by_option(samples_source="input", inputs=InputFacts(batch_size=512, rare_frac=0.5)),
            "only 50 % of the",
        ),
        (by_option("keep"), "is not visible in the loop"),
        (by_option(gathers=True), "collects its samples"),
        (facts(run=replace(loader(), loop_hazards=(GROWN,))), "adds collected samples to the dataset"),
        (facts(run=replace(loader(kind="iterable"), gathers=True)), "collects its samples"),
        (facts(run=run(loader=None, loader_in_thread=True)), "in a separate thread"),
        (facts(run=loader(fetch_state=COUNTS)), "Your collate function changes what it holds (n) at c.py:4"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None
    # A loader that hands over what was gathered gives as many samples of it in any batch.
    assert KNOB.refuse(facts(run=run(gathers=True))) is None


def test_a_sample_that_is_taken_out_of_its_batch_has_no_larger_one() -> None:
    given = facts(run=loader(batch_size=1, takes_one=True))
    reason = KNOB.refuse_spelling(Keyword(DATALOADER, "batch_size"), given)
    assert reason is not None
    assert "would lose the others" in reason


def test_a_custom_batch_sampler_leaves_only_the_scripts_option() -> None:
    given = facts(run=loader(custom_batch_sampler=True))
    assert "batch sampler" in str(KNOB.refuse_spelling(Keyword(DATALOADER, "batch_size"), given))


def test_one_of_several_loaders_that_train_together_keeps_its_batch() -> None:
    """As in FixMatch, which zips a labelled one with another."""
    given = facts(run=loader(beside=1))
    assert "several loaders" in str(KNOB.refuse_spelling(Keyword(DATALOADER, "batch_size"), given))
    assert KNOB.refuse_spelling(BATCH_OPTIONS, given) is None


@pytest.mark.parametrize(
    ("wanted", "plain"),
    [("x2", 64), ("x1.5", 48), ("x0.5", 16), (7, 7), (0, None), ("xnan", None), (32001, None)],
)
def test_batches_relative_to_the_scripts_own(wanted, plain) -> None:
    assert KNOB.resolve(wanted, facts()) == plain


@pytest.mark.parametrize(
    ("given", "effect"),
    [
        (facts(), Effect.EXACT),
        (facts(run=model(dropout=True)), Effect.NUMERIC),
        (facts(run=model(batch_norm=True)), Effect.TRAINING),
        (facts(run=run(model=None)), Effect.NUMERIC),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect) -> None:
    assert KNOB.effect_for(given) is effect


def test_dropout_re_deals_random_streams() -> None:
    assert KNOB.changes_rng_streams(facts(run=model(dropout=True)))
    assert not KNOB.changes_rng_streams(facts())


@pytest.mark.parametrize("source", [OPTION, REPORTED])
def test_without_a_loader_the_scripts_own_option_moves_what_its_input_shows(source) -> None:
    given = by_option(samples_source=source)
    assert KNOB.refuse(given) is None
    assert KNOB.own(given) == 32
    change = way(KNOB, 64, given)
    assert isinstance(change, Change)
    assert change.spelling.how == "flag"
    assert change.delivered == "64"
    assert InputFacts.at(change.site, 32) == SEEN


def test_batches_of_the_scripts_own_making_are_judged_by_distribution() -> None:
    assert KNOB.changes_rng_streams(by_option())
    assert KNOB.effect_for(by_option()) is Effect.NUMERIC


def test_a_change_says_nothing_of_places_where_a_loader_reports_the_batch() -> None:
    change = way(KNOB, 64, facts(script=FLAGGED))
    assert isinstance(change, Change)
    assert change.site == ""


def test_where_nothing_accumulates_the_batch_moves_the_step_along() -> None:
    settled = KNOB.settle(Config({"batch_size": 64, "effective_batch": 64}), by_option())
    assert settled == Config({"batch_size": 64, "effective_batch": 64})
    assert "effective_batch=64" in str(KNOB.settle(Config({"batch_size": 64}), by_option()))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), 32),
        (("--batch_size=8",), 8),
        (("--batch_size", "8", "--batch_size=4"), 4),
        (("--batch_size=many",), 0),
        (("--batch_size=0",), 0),
    ],
)
def test_what_the_option_says_on_a_command_line(args, message) -> None:
    assert given_batch_size(FLAGGED, args) == message


def test_without_an_option_nothing_is_reported() -> None:
    assert given_batch_size(SCRIPT, ("--batch_size=8",)) == 0
    computed = ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int")
    assert given_batch_size(replace(SCRIPT, flags=(computed,)), ()) == 0


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (run(fixed_steps="OneCycleLR of 250 steps (a.py:21)"), "counts OneCycleLR of 250 steps (a.py:21) by"),
        (loader(sizes=(64, 32, 16)), "Loaders of 64, 32 and 16 samples are built at train.py:12"),
    ],
)
def test_a_loader_that_other_things_go_by_keeps_its_size_unless_the_scripts_option_moves_it(
    seen, words
) -> None:
    refused = way(KNOB, 64, facts(run=seen))
    assert isinstance(refused, str)
    assert words in refused
    assert way(KNOB, 64, facts(script=FLAGGED, run=seen)).delivered == "64"


def test_a_constant_is_refused_before_a_run_where_loaders_of_several_sizes_follow_it() -> None:
    named = ScriptConstant(name="BATCH_SIZE", value=32, file="train.py", line=6)
    given = facts(script=replace(SCRIPT, constants=(named,)), run=loader(batch_size=32))
    assert isinstance(way(KNOB, 16, given), Change)
    stages = replace(given, run=loader(batch_size=32, sizes=(64, 32)))
    refused = way(KNOB, 16, stages)
    assert isinstance(refused, str)
    assert "by a constant of its source: Loaders of 64 and 32 samples are built at" in refused


def test_an_option_that_sizes_several_loaders_moves_them_by_one_factor() -> None:
    seen = replace(loader(batch_size=112), option_batch=16, values={"batch_size": 112})
    change = way(KNOB, 56, facts(script=FLAGGED, run=seen))
    assert isinstance(change, Change)
    assert (change.value, change.delivered) == (56, "8")
    odd = way(KNOB, 100, facts(script=FLAGGED, run=replace(seen, loader=replace(seen.loader, beside=1))))
    assert isinstance(odd, str)
    assert "cannot express 100" in odd
    plain = replace(seen, option_batch=0)
    assert way(KNOB, 56, facts(script=FLAGGED, run=plain)).delivered == "56"


def test_where_workers_change_copies_a_batch_of_another_size_is_dealt_to_others() -> None:
    held = FetchState(what="your dataset collects what it has fetched (seen) at data.py:9", sure=True)
    dealt, alone = (facts(run=loader(num_workers=n, fetch_state=held)) for n in (2, 0))
    assert KNOB.effect_for(dealt) is Effect.TRAINING
    assert "seen" in KNOB.raised(dealt)
    assert (KNOB.effect_for(alone), KNOB.raised(alone)) == (Effect.EXACT, "")
