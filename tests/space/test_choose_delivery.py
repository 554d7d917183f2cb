"""Which way a value takes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.knobs.registry import builtin
from autotune.model.change import Env, Flag, Keyword, Patch
from autotune.model.config import Config
from autotune.model.facts import ScriptFlag
from autotune.space.choose_delivery import choose
from autotune.testing.knobs import CPU_RUN, SCRIPT, example_facts, facts

KNOBS = builtin()


def with_option(*names: str, **rest: object):
    return facts(script=replace(SCRIPT, flags=(ScriptFlag(names=names, dest="d", **rest),)))


def only(config: dict, given, **rest):
    changes, refusals = choose(Config(config), given, KNOBS, **rest)
    assert not refusals, refusals
    (change,) = changes
    return change


def test_an_option_of_the_scripts_own_comes_first_in_all_its_spellings() -> None:
    change = only({"batch_size": 64}, with_option("-b", "--batch_size", kind="int"))
    assert change.spelling == Flag(("--batch_size", "-b"))
    assert change.delivered == "64"


def test_a_way_that_was_seen_not_to_act_is_skipped() -> None:
    dead = frozenset({("batch_size", "flag")})
    change = only({"batch_size": 64}, with_option("--batch-size", kind="int"), dead=dead)
    assert isinstance(change.spelling, Keyword)
    assert change.site == "train.py:12"


def test_without_any_way_left_the_reason_names_them_all() -> None:
    dead = frozenset({("threads", "env"), ("threads", "patch")})
    changes, (refusal,) = choose(Config({"threads": 2}), facts(), KNOBS, dead=dead)
    assert not changes
    assert "environment variable" in refusal.reason
    assert "in-process patch" in refusal.reason


@pytest.mark.parametrize(
    ("kind", "value", "how"),
    [
        ("switch", True, "flag"),
        ("switch", False, "patch"),
        ("off_switch", False, "flag"),
        ("off_switch", True, "patch"),
        ("bool", False, "flag"),
        ("opaque", True, "patch"),
        ("int", True, "patch"),
        ("str", True, "patch"),
    ],
)
def test_a_switch_is_set_and_never_unset(kind, value, how) -> None:
    assert only({"channels_last": value}, with_option("--channels-last", kind=kind)).spelling.how == how


def test_a_pair_says_both() -> None:
    both = with_option("--channels-last", "--no-channels-last", kind="pair")
    assert only({"channels_last": False}, both).spelling == Flag(("--no-channels-last", "--channels-last"))
    assert only({"channels_last": True}, both).spelling == Flag(("--channels-last", "--no-channels-last"))


def test_choices_of_an_option_are_respected() -> None:
    given_ = with_option("--workers", kind="int", choices=("0", "4"))
    assert only({"num_workers": 4}, given_).spelling.how == "flag"
    assert only({"num_workers": 2}, given_).spelling.how == "keyword"


def test_an_option_that_takes_text_is_not_given_a_number() -> None:
    assert only({"num_workers": 2}, with_option("--workers", kind="str")).spelling.how == "keyword"


def test_precision_is_patched_although_an_option_exists() -> None:
    option = with_option("--dtype", kind="str", default="float32")
    assert only({"precision": "bf16"}, option).spelling == Patch()


def test_an_option_for_the_scripts_own_autocast_is_used_in_its_own_words() -> None:
    option = replace(
        with_option("--dtype", kind="str", default="float32"), run=replace(CPU_RUN, own_autocast=True)
    )
    change = only({"precision": "bf16"}, option)
    assert (change.spelling, change.delivered) == (Flag(("--dtype",)), "bfloat16")


def test_a_compile_switch_says_default_and_nothing_else() -> None:
    option = with_option("--compile", kind="switch")
    assert only({"compile_mode": "default"}, option).spelling == Flag(("--compile",))
    assert only({"compile_mode": "max-autotune"}, option).spelling == Patch()


def test_threads_go_by_the_environment() -> None:
    change = only({"threads": 2}, facts())
    assert (change.spelling, change.delivered) == (Env("OMP_NUM_THREADS"), "2")


def test_before_a_run_a_loader_is_assumed() -> None:
    assert only({"num_workers": 2}, facts(run=None)).spelling.how == "keyword"


def test_a_virtual_knob_is_neither_applied_nor_refused() -> None:
    changes, refusals = choose(Config({"effective_batch": 64, "batch_size": 64}), facts(), KNOBS)
    assert [c.knob for c in changes] == ["batch_size"]
    assert not refusals


def test_an_unknown_knob_is_refused_with_a_guess() -> None:
    _, (refusal,) = choose(Config({"num_worker": 2}), facts(), KNOBS)
    assert 'Did you mean "num_workers"?' in refusal.reason


VALUES = st.one_of(
    st.booleans(), st.integers(-5, 10**6), st.text(max_size=8), st.sampled_from(["bf16", "default", "high"])
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(KNOBS)), VALUES, max_size=6),
    st.sampled_from(range(len(example_facts()))),
    st.frozensets(
        st.tuples(st.sampled_from(sorted(KNOBS)), st.sampled_from(["flag", "env", "keyword", "patch"])),
        max_size=6,
    ),
)
def test_every_knob_ends_in_exactly_one_place(values, which, dead) -> None:
    config = Config(values)
    changes, refusals = choose(config, example_facts()[which], KNOBS, dead=dead)
    placed = [c.knob for c in changes] + [r.knob for r in refusals]
    assert len(placed) == len(set(placed))
    assert set(config) - set(placed) <= {"effective_batch"}
    assert not {(c.knob, c.spelling.how) for c in changes} & dead
