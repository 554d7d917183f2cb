"""The length of the real run: said, read off the script's options, or unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session_fakes import RUN_FACTS, facts, spec

from autotune.core.facts import LoaderFacts, ScriptFacts, ScriptFlag
from autotune.core.run_length import planned_steps
from autotune.core.study import Study

EPOCHS = ScriptFlag(names=("--epochs", "-e"), dest="epochs", kind="int", default=20)
STEPS = ScriptFlag(names=("--max-steps",), dest="max_steps", kind="int", default=None)
LOADER = LoaderFacts(
    site="train.py:5",
    batch_size=16,
    num_workers=0,
    prefetch_factor=None,
    pin_memory=False,
    persistent_workers=False,
    length=500,
)


def study(
    *flags: ScriptFlag, args: tuple[str, ...] = (), run_steps: int | None = None, seen: bool = True
) -> Study:
    known = replace(facts(), script=ScriptFacts(path="train.py", flags=flags))
    if seen:
        known = replace(known, run=replace(RUN_FACTS, loader=LOADER))
    return Study(spec=replace(spec(), args=args, run_steps=run_steps), facts=known)


@pytest.mark.parametrize(
    ("made", "steps"),
    [
        (study(EPOCHS, run_steps=7), 7),
        (study(EPOCHS), 20 * 500),
        (study(EPOCHS, args=("--epochs", "3")), 1500),
        (study(EPOCHS, args=("--epochs=4",)), 2000),
        (study(EPOCHS, args=("-e", "2")), 1000),
        (study(EPOCHS, STEPS, args=("--max-steps", "900")), 900),
        (study(EPOCHS, args=("--epochs", "many")), None),
        (study(), None),
        (study(EPOCHS, seen=False), None),
    ],
)
def test_the_length_follows_what_was_said_before_what_is_found(made: Study, steps: int | None) -> None:
    assert planned_steps(made) == steps


def test_a_script_that_accumulates_makes_fewer_steps_than_batches() -> None:
    made = study(EPOCHS)
    assert made.facts is not None
    assert made.facts.run is not None
    run = replace(made.facts.run, own_accumulation=True, backward_per_step=4.0)
    assert planned_steps(replace(made, facts=replace(made.facts, run=run))) == 2500
