"""Changes of a file that no search has written for the script."""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs.common import LOADER
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Constant, Flag, Keyword
from autotune.model.effect import Effect
from autotune.model.facts import ScriptConstant, ScriptFlag
from autotune.space.fit_changes import fitting
from autotune.testing.knobs import CPU_RUN, SCRIPT, facts

KNOBS = builtin()
OPTION = replace(SCRIPT, flags=(ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int"),))


def by_option(value: int, delivered: str = "") -> Change:
    return Change(
        knob="batch_size", value=value, spelling=Flag(("--batch-size",)), delivered=delivered or str(value)
    )


def loader_of(size: int, option: int = 0):
    assert CPU_RUN.loader is not None
    loader = replace(CPU_RUN.loader, batch_size=size)
    return replace(CPU_RUN, loader=loader, option_batch=option, values={"batch_size": size})


def test_an_option_that_sizes_several_loaders_receives_the_value_of_its_own() -> None:
    given = facts(script=OPTION, run=loader_of(112, option=16))
    assert fitting([by_option(56)], given, KNOBS, effect=Effect.TRAINING) == ((by_option(56, "8"),), ())
    kept, refused = fitting([by_option(60)], given, KNOBS, effect=Effect.TRAINING)
    assert kept == ()
    assert refused[0].reason == "It cannot be 60: its option --batch-size cannot express 60."


def test_an_option_of_one_loader_stays_as_it_is() -> None:
    given = facts(script=OPTION, run=loader_of(32, option=32))
    assert fitting([by_option(64)], given, KNOBS, effect=Effect.TRAINING) == ((by_option(64),), ())


def test_a_batch_of_the_loader_that_misses_a_step_count_goes_by_the_constant_or_is_left_out() -> None:
    change = Change(knob="batch_size", value=64, spelling=Keyword(LOADER, "batch_size"))
    run = replace(loader_of(32), fixed_steps="OneCycleLR of 250 steps (a.py:21)")
    kept, refused = fitting([change], facts(run=run), KNOBS, effect=Effect.TRAINING)
    assert (kept, [r.knob for r in refused]) == ((), ["batch_size"])
    assert "OneCycleLR of 250 steps (a.py:21)" in refused[0].reason
    named = replace(SCRIPT, constants=(ScriptConstant(name="BATCH", value=32, file="train.py", line=3),))
    kept, refused = fitting([change], facts(script=named, run=run), KNOBS, effect=Effect.TRAINING)
    assert refused == ()
    assert isinstance(kept[0].spelling, Constant)
