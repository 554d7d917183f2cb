"""Knobs that a user declares: what they are by themselves, what may be tried, how values are reported."""

from dataclasses import replace
from typing import ClassVar

import pytest

from autotune.knobs.declared import declared_knob, own_values
from autotune.knobs.registry import builtin, knobs_for, needs_permission
from autotune.model.change import Change, Env, Flag, Keyword
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import ScriptFlag
from autotune.model.study import DeclaredSpec, SpaceRequest
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import choose, way
from autotune.space.launch_command import build_launch
from autotune.testing.knobs import SCRIPT, KnobContract, facts

BUCKET = ScriptFlag(names=("--bucket", "-k"), dest="bucket", kind="int", default=4)


def spec(spelling=None, values=(1, 4, 8), effect=Effect.EXACT, name="mine"):
    return DeclaredSpec(name=name, effect=effect, values=values, spelling=spelling or Flag(("--bucket",)))


def script(*flags):
    return replace(SCRIPT, flags=flags)


def own(one, *flags, args=(), environ=None):
    return own_values([one], script=script(*flags), args=args, environ=environ or {}).get("mine")


def message(one, value, flag):
    """The words of the command line that say a value, or why there are none."""
    found = way(declared_knob(one), value, facts(script=script(flag)))
    if isinstance(found, str):
        return found
    return build_launch(
        script="t.py", args=(), python="python", cwd="/", env={}, changes=[found]
    ).argv  # fmt: skip


class TestOfAnOption(KnobContract):
    knob = declared_knob(spec())
    facts: ClassVar = [
        facts(script=script(BUCKET)),
        replace(facts(script=script(BUCKET)), declared={"mine": 4}),
        facts(),
        facts(run=None),
    ]


class TestOfAVariable(KnobContract):
    knob = declared_knob(spec(Env("NCCL_ALGO"), ("Ring", "Tree"), Effect.TRAINING))


def test_an_option_is_what_stands_on_the_command_line_else_its_default() -> None:
    assert own(spec(), BUCKET) == 4
    assert own(spec(), BUCKET, args=("--bucket", "8", "x")) == 8
    assert own(spec(), BUCKET, args=("-k", "1", "--bucket=16")) == 16
    assert own(spec(), BUCKET, args=("--", "--bucket", "8")) == 4
    assert own(spec(), replace(BUCKET, default=None)) is None
    assert own(spec(), BUCKET, args=("--bucket", "many")) is None
    assert own(spec()) is None


@pytest.mark.parametrize("values", [(False, True), (0, 1), ("off", "on")])
@pytest.mark.parametrize("kind", ["switch", "off_switch"])
def test_a_switch_is_on_where_it_stands(kind, values) -> None:
    switch = ScriptFlag(names=("--fuse",), dest="fuse", kind=kind)
    one = spec(Flag(("--fuse",)), values)
    assert own(one, switch) == values[0]
    assert own(one, switch, args=("--fuse",)) == values[1]
    assert message(one, values[1], switch) == ("--fuse",)
    assert "cannot express" in message(one, values[0], switch)


def test_a_pair_is_reported_either_way() -> None:
    pair = ScriptFlag(names=("--amp", "--no-amp"), dest="amp", kind="pair", default=True)
    one, other = spec(Flag(("--amp",)), (False, True)), spec(Flag(("--no-amp",)), (False, True))
    assert (own(one, pair), own(other, pair)) == (True, False)
    assert (own(one, pair, args=("--no-amp",)), own(other, pair, args=("--no-amp",))) == (False, True)
    assert (own(one, pair, args=("--amp=false",)), own(other, pair, args=("--amp=false",))) == (False, True)
    assert own(one, pair, args=("--no-amp", "--amp=true")) is True
    assert (message(one, True, pair), message(one, False, pair)) == (("--amp",), ("--no-amp",))
    assert message(other, True, pair) == ("--no-amp",)


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("str", ("a", 2), "2"),
        ("opaque", ("a", 0.5), "0.5"),
        ("opaque", ("a", True), "true"),
        ("bool", (False, True), "True"),
        ("int", (1, 2), "2"),
        ("float", (1, 2.5), "2.5"),
    ],
)
def test_values_go_over_as_they_are_written(kind, values, text) -> None:
    flag = ScriptFlag(names=("--x",), dest="x", kind=kind)
    assert message(spec(Flag(("--x",)), values), values[1], flag) == (f"--x={text}",)


def test_an_option_is_held_to_its_choices_and_its_kind() -> None:
    flag = ScriptFlag(names=("--x",), dest="x", kind="str", choices=("a", "b"))
    assert "cannot express c" in message(spec(Flag(("--x",)), ("a", "c")), "c", flag)
    assert "cannot express 0.5" in message(spec(), 0.5, BUCKET)


def test_the_users_own_spelling_is_replaced() -> None:
    found = way(declared_knob(spec()), 8, facts(script=script(BUCKET)))
    assert isinstance(found, Change)
    launch = build_launch(
        script="t.py", args=("-k", "4", "y"), python="p", cwd="/", env={}, changes=[found]
    )  # fmt: skip
    assert launch.argv == ("--bucket=8", "y")


def test_a_variable_is_what_it_is_set_to() -> None:
    one = spec(Env("MINE"), ("Ring", "Tree"))
    assert own(one) is None
    assert own(one, environ={"MINE": "Ring"}) == "Ring"
    assert own(spec(Env("MINE")), environ={"MINE": "4"}) == 4
    assert own(spec(Env("MINE"), (False, True)), environ={"MINE": "1"}) is True
    changes, _ = choose(Config({"mine": "Tree"}), facts(), {"mine": declared_knob(one)})
    launch = build_launch(script="t", args=(), python="p", cwd="/", env={"MINE": "Ring"}, changes=changes)
    assert launch.env["MINE"] == "Tree"


def test_an_option_the_script_does_not_show_is_refused_with_a_sentence() -> None:
    knob = declared_knob(spec(Flag(("--buckets",))))
    assert knob.refuse(facts(script=script(BUCKET))) == (
        'The script has no option --buckets. Did you mean "--bucket"?'
    )
    assert "No options of the script could be read" in (knob.refuse(facts()) or "")
    assert declared_knob(spec(Env("X"))).refuse(facts()) is None


def test_its_own_value_is_the_baseline_and_an_unknown_one_is_left_alone() -> None:
    request = SpaceRequest(name="t", knobs={"mine": ()}, declared=(spec(values=("asis", 1, 8)),))
    known = replace(facts(script=script(BUCKET)), declared={"mine": 4})
    space, _ = build_space(request, known, knobs_for(request))
    assert space.dimensions["mine"].values == (4, 1, 8)
    assert space.complete({"mine": 4}) == Config()
    space, _ = build_space(request, facts(script=script(BUCKET)), knobs_for(request))
    assert (space.dimensions["mine"].values, space.dimensions["mine"].own) == ((1, 8), None)
    assert space.complete({"mine": 1}) == Config({"mine": 1})


def test_only_declared_values_mean_something() -> None:
    knob, known = declared_knob(spec()), facts(script=script(BUCKET))
    assert [knob.resolve(v, known) for v in (8, "8", 8.0, 9, "x")] == [8, 8, 8, None, None]


def test_numbers_are_ordered_where_there_are_more_than_two() -> None:
    assert declared_knob(spec()).ordinal
    assert not declared_knob(spec(values=(0, 1))).ordinal
    assert not declared_knob(spec(values=("a", "b", "c"))).ordinal
    assert not declared_knob(spec(values=(False, True, 2))).ordinal


def test_a_study_knows_what_its_space_declares() -> None:
    mine, hidden = spec(), spec(name="precision", values=("a", "b"))
    request = SpaceRequest(name="t", declared=(mine,))
    assert list(knobs_for(request)) == [*builtin(), "mine"]
    assert knobs_for(SpaceRequest(name="t")) is builtin()
    auto = SpaceRequest(name="auto", candidates=(request, replace(request, declared=(hidden,))))
    assert list(knobs_for(auto)) == [*builtin(), "mine"]
    # A study may be older than a built-in knob of the name.
    assert knobs_for(auto)["precision"].domain(facts()) == ("a", "b")


def test_only_what_changes_the_training_needs_permission() -> None:
    assert needs_permission(declared_knob(spec(effect=Effect.TRAINING)))
    assert not needs_permission(declared_knob(spec()))
    locked = {name for name, knob in builtin().items() if needs_permission(knob)}
    assert locked == {name for name, knob in builtin().items() if knob.effect is Effect.TRAINING} - {
        "effective_batch"
    }


def test_a_keyword_is_left_to_the_running_script() -> None:
    one = spec(Keyword("torch.optim.AdamW", "amsgrad"), (False, True))
    assert own(one, BUCKET) is None
    found = way(declared_knob(one), True, facts())
    assert isinstance(found, Change)
    assert found.spelling.text == "torch.optim.AdamW:amsgrad"
    assert declared_knob(one).summary == "Your own knob: torch.optim.AdamW:amsgrad"
