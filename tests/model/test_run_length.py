"""The length of the real run: reported, read off the script's options, or unknown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import study_fakes
from session_fakes import RUN_FACTS, facts, spec

from autotune.model.facts import LoaderFacts, ScriptFacts, ScriptFlag
from autotune.model.measurement import Contamination, Estimate
from autotune.model.run_length import is_short, planned_steps, useful_repeats
from autotune.model.study import Study
from autotune.model.trial import Stage, Trial

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
def test_the_length_follows_what_was_reported_before_what_is_found(made: Study, steps: int | None) -> None:
    assert planned_steps(made) == steps


def test_a_script_that_accumulates_makes_fewer_steps_than_batches() -> None:
    made = study(EPOCHS)
    assert made.facts is not None
    assert made.facts.run is not None
    run = replace(made.facts.run, own_accumulation=True, backward_per_step=4.0)
    assert planned_steps(replace(made, facts=replace(made.facts, run=run))) == 2500


def short_run(
    steps: int, width: float, *, ended: str = "script_end", flags: tuple[str, ...] = ("short",)
) -> Trial:
    made = study_fakes.measured(0, study_fakes.BASE, 100.0, Stage.BASELINE)
    assert made.measurement is not None
    rate = Estimate(value=100.0, low=100.0 - 50 * width, high=100.0 + 50 * width, n=steps, unit="samples/s")
    contamination = Contamination(flags=flags)
    found = replace(made.measurement, throughput=rate, steps=steps, ended=ended, contamination=contamination)
    return replace(made, outcome=found)


def of_runs(*runs: Trial) -> Study:
    return Study(spec=spec(), trials=runs)


def test_a_script_is_short_where_every_run_of_it_ended_before_its_warm_up() -> None:
    assert is_short(of_runs(short_run(4, 0.5)))
    assert not is_short(of_runs())
    assert not is_short(of_runs(short_run(4, 0.5, flags=())))
    assert not is_short(of_runs(short_run(4, 0.5, ended="limit"))), "its time was over, not the script"
    assert not is_short(of_runs(short_run(4, 0.5), short_run(4, 0.5, flags=())))


@pytest.mark.parametrize(
    ("steps", "width", "repeats"),
    [(4, 0.5, 3), (6, 0.5, 2), (1, math.inf, 5), (30, 0.5, 1), (4, 0.05, 1), (4, 0.14, 2), (2, 3.0, 5)],
)
def test_so_many_processes_of_a_short_script_tell_what_one_long_run_reports(
    steps: int, width: float, repeats: int
) -> None:
    assert useful_repeats(of_runs(short_run(steps, width), short_run(steps, width))) == repeats


def test_the_length_of_a_short_script_without_options_is_what_it_ran() -> None:
    run = short_run(4, 0.5)
    assert run.measurement is not None
    run = replace(run, outcome=replace(run.measurement, warmup_steps=1))
    assert planned_steps(replace(of_runs(run), facts=study().facts)) == 5
    longer = of_runs(short_run(40, 0.5, flags=()))
    assert planned_steps(replace(longer, facts=study().facts)) is None


def test_one_process_of_a_longer_script_is_enough() -> None:
    assert useful_repeats(of_runs(short_run(40, 0.5, flags=()))) == 1
    assert useful_repeats(of_runs()) == 1
