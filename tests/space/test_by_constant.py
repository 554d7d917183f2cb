"""Values that reach a script through a constant of its source."""

from dataclasses import replace

import pytest

from autotune.knobs.batch.accumulation import Accumulation
from autotune.knobs.batch.batch_size import BatchSize, given_batch_size
from autotune.knobs.compile.compile_mode import CompileMode
from autotune.knobs.loader.num_workers import NumWorkers
from autotune.knobs.numerics.precision import Precision
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Constant, Keyword, Patch
from autotune.model.config import Config
from autotune.model.facts import InputFacts, ScriptConstant, ScriptFlag
from autotune.model.study import SpaceRequest
from autotune.model.wire import dumps, loads
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import choose, way
from autotune.testing.knobs import CPU_RUN, LOADER, SCRIPT, facts


def constant(name="BATCH_SIZE", value=32, **rest):
    return ScriptConstant(name=name, file="train.py", line=3, value=value, **rest)


def having(*constants, run=CPU_RUN, **rest):
    return facts(script=replace(SCRIPT, constants=constants, **rest), run=run)


OWN_BATCHES = replace(
    CPU_RUN,
    loader=None,
    samples_source="option",
    inputs=InputFacts(batch_size=32, dims=(0,), shape=(32, 20)),
)


def test_a_constant_goes_before_the_keyword_of_the_loader_and_behind_an_option():
    found = way(BatchSize(), 64, having(constant()))
    assert isinstance(found, Change)
    assert found.spelling == Constant(("BATCH_SIZE",), file="train.py", line=3, was=32)
    assert loads(Change, dumps(found)) == found
    option = ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int", default=32)
    found = way(BatchSize(), 64, having(constant(), flags=(option,)))
    assert isinstance(found, Change)
    assert found.spelling.how == "flag"


def test_it_brings_scripts_into_reach_that_make_their_batches_themselves():
    given = having(constant("CONFIG.train.batch_size"), run=OWN_BATCHES)
    found = way(BatchSize(), 16, given)
    assert isinstance(found, Change)
    assert found.site == "input:0:0:32x20"
    request = SpaceRequest(name="t", knobs={"batch_size": (), "effective_batch": ()})
    space, _ = build_space(request, given, builtin())
    assert {"batch_size", "effective_batch"} <= set(space.dimensions)


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ((), "contains no literal value of"),
        ((constant(value=64),), "has another value than the run, 32"),
        ((constant("a.batch_size"), constant("b.batch_size")), "--set a.batch_size=A,B names one"),
        ((constant(times=2),), "is given a value 2 times"),
        ((constant(value=True),), "another value"),
    ],
)
def test_what_is_missing_or_ambiguous_is_refused_with_the_place(constants, reason):
    found = way(BatchSize(), 16, having(*constants, run=OWN_BATCHES))
    assert isinstance(found, str)
    assert reason in found


def test_ambiguous_constants_leave_the_loader_its_keyword():
    found = way(BatchSize(), 16, having(constant("a.batch_size"), constant("b.batch_size")))
    assert isinstance(found, Change)
    assert isinstance(found.spelling, Keyword)


def test_a_name_of_its_own_goes_before_the_default_of_an_argument():
    found = way(BatchSize(), 16, having(constant("get_batch(batch_size)"), constant()))
    assert isinstance(found, Change)
    assert found.spelling.names == ("BATCH_SIZE",)


def test_the_one_that_the_user_has_given_is_taken():
    chosen = constant("b.batch_size", is_chosen=True)
    found = way(BatchSize(), 16, having(constant("a.batch_size"), chosen, run=OWN_BATCHES))
    assert isinstance(found, Change)
    assert found.spelling.names == ("b.batch_size",)


def test_batch_and_accumulation_of_own_batches_move_together():
    given = having(constant(), run=replace(OWN_BATCHES, pass_samples=960))
    request = SpaceRequest(name="t", knobs={"batch_size": (), "effective_batch": ()})
    space, _ = build_space(request, given, builtin())
    assert {"batch_size", "accumulation", "effective_batch"} <= set(space.dimensions)
    settled = BatchSize().settle(Config({"batch_size": 8}), given)
    assert isinstance(settled, Config)
    assert settled == Config({"batch_size": 8, "accumulation": 4})
    changes, refusals = choose(settled, given, builtin())
    assert {c.knob: c.spelling.how for c in changes} == {"batch_size": "constant", "accumulation": "patch"}
    assert refusals == ()


def test_a_constant_that_was_seen_not_to_act_is_not_tried_again():
    dead = frozenset({("batch_size", "constant")})
    found = way(BatchSize(), 16, having(constant()), dead)
    assert isinstance(found, Change)
    assert isinstance(found.spelling, Keyword)


def test_workers_that_are_not_forked_would_see_the_old_value():
    loader = replace(LOADER, num_workers=2, mp_context="spawn")
    given = having(constant(), run=replace(CPU_RUN, loader=loader))
    found = way(BatchSize(), 16, given, frozenset({("batch_size", "keyword")}))
    assert isinstance(found, str)
    assert "not forked" in found


def test_workers_follow_their_constant():
    found = way(NumWorkers(), 2, having(constant("cfg.workers", 0)))
    assert isinstance(found, Change)
    assert found.spelling.names == ("cfg.workers",)


@pytest.mark.parametrize(
    ("knob", "value", "name", "was", "literal"),
    [
        (Precision(), "bf16", "DTYPE", "float32", "bfloat16"),
        (Precision(), "bf16", "cfg.mixed_precision", "no", "bf16"),
        (Precision(), "bf16", "USE_AMP", False, True),
        (CompileMode(), "default", "COMPILE", False, True),
    ],
)
def test_words_and_switches_are_written_in_the_notation_of_the_source(knob, value, name, was, literal):
    found = way(knob, value, having(constant(name, was), hazards=("own_autocast",)))
    assert isinstance(found, Change)
    assert (found.spelling.names, found.literal) == ((name,), literal)
    assert loads(Change, dumps(found)).literal == literal


@pytest.mark.parametrize(
    ("knob", "value", "name", "was"),
    [
        (Precision(), "bf16", "dtype", "int64"),  # a word of something else
        (Precision(), "bf16", "USE_AMP", True),  # another value than the run
        (CompileMode(), "max-autotune", "COMPILE", False),  # a switch has no modes
    ],
)
def test_a_constant_that_cannot_hold_the_value_is_passed_by(knob, value, name, was):
    found = way(knob, value, having(constant(name, was), hazards=("own_autocast",)))
    assert isinstance(found, Change)
    assert isinstance(found.spelling, Patch)


def test_without_autocast_in_the_source_a_word_may_be_that_of_the_weights():
    given = having(constant("DTYPE", "float32"))
    assert "weights" in (Precision().refuse_spelling(Precision.spellings[-3], given) or "")
    found = way(Precision(), "bf16", given)
    assert isinstance(found, Change)
    assert isinstance(found.spelling, Patch)


def test_switches_of_the_source_name_values_of_the_knob():
    given = having(constant("COMPILE", False))
    assert [CompileMode().resolve(value, given) for value in (True, False)] == ["default", "off"]
    assert [Precision().resolve(value, given) for value in (True, False)] == ["bf16", "fp32"]


def test_a_script_that_accumulates_by_a_constant_is_offered_it():
    run = replace(CPU_RUN, own_accumulation=True, backward_per_step=4.0, loss_scale=0.25)
    run = replace(run, values={"accumulation": 4})
    given = having(constant("ACCUM", 4), run=run)
    assert Accumulation().refuse(given) is None
    found = way(Accumulation(), 8, given)
    assert isinstance(found, Change)
    assert found.spelling.names == ("ACCUM",)
    assert Accumulation().refuse(having(constant("ACCUM", 2), run=run)) is not None
    undivided = replace(run, loss_scale=1.0)
    assert "does not divide" in (Accumulation().refuse(having(constant("ACCUM", 4), run=undivided)) or "")


def test_a_framework_that_owns_accumulation_is_not_passed_by():
    run = replace(CPU_RUN, owners=("lightning",), owner_settings={"lightning.counts_batches": True})
    given = having(constant("trainer.accumulate_grad_batches", 1), run=run)
    assert "counts batches" in (Accumulation().refuse(given) or "")
    _, (refusal,) = choose(Config({"accumulation": 2}), given, builtin())
    assert refusal.knob == "accumulation"


def test_the_size_of_a_batch_is_read_off_the_constants_where_no_option_says_it():
    assert given_batch_size(having(constant()).script, ()) == 32
    assert given_batch_size(having(constant(), constant("eval.batch_size", 64)).script, ()) == 0
    assert given_batch_size(having(constant("lr", 64)).script, ()) == 0
    option = ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int", default=8)
    assert given_batch_size(having(constant(), flags=(option,)).script, ()) == 8


def test_a_script_whose_batch_is_unknown_says_what_would_make_it_known():
    unseen = replace(CPU_RUN, loader=None, samples_source="input")
    reason = BatchSize().refuse(having(run=unseen)) or ""
    assert "an option or a constant called batch_size" in reason
    reason = BatchSize().refuse(having(constant(), constant("val.batch_size", 64), run=unseen)) or ""
    assert "BATCH_SIZE (train.py:3) and val.batch_size (train.py:3)" in reason
    assert "--set BATCH_SIZE=A,B" in reason
