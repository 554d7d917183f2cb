"""Which knobs a running process can be switched by, and by which ways they may otherwise travel."""

from __future__ import annotations

import pytest

from autotune.knobs.registry import builtin
from autotune.model.change import Env, Flag, Keyword, Patch
from autotune.testing.knobs import FakePatches

LIVE = {"threads", "precision", "tf32", "attention_backend", "gc_control", "set_to_none", "non_blocking"}
WAYS = (Patch(), Env("A"), Flag(("--a",)), Keyword("a.B", "c"))


def test_these_knobs_and_no_others_are_live() -> None:
    assert {name for name, knob in builtin().items() if knob.live} == LIVE


@pytest.mark.parametrize(
    ("knob", "value", "ways"),
    [
        ("threads", 2, {"patch", "env"}),
        ("precision", "bf16", {"patch"}),
        ("precision", "fp16", set()),
        ("tf32", "high", {"patch"}),
        ("attention_backend", "math", {"patch"}),
        ("gc_control", "boundary", {"patch"}),
        ("set_to_none", True, {"patch"}),
        ("set_to_none", False, set()),
        ("non_blocking", True, {"patch"}),
        ("cudnn_benchmark", True, set()),
        ("num_workers", 2, set()),
        ("compile_mode", "default", set()),
    ],
)
def test_a_value_is_live_by_the_ways_that_a_switch_stands_for(
    knob: str, value: bool | int | str, ways: set[str]
) -> None:
    assert {way.how for way in WAYS if builtin()[knob].is_live(value, way)} == ways


@pytest.mark.parametrize("name", sorted(set(builtin()) - LIVE))
def test_what_is_not_live_refuses_to_be_switched(name: str) -> None:
    with pytest.raises(NotImplementedError, match="cannot be switched"):
        builtin()[name].switch(1, FakePatches())
