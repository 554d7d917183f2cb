"""The control of the script against itself on machines that change within minutes."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from study_fakes import measured, ratio, spec

from autotune.compare.control import against_itself, claim_bar, self_difference, weakness
from autotune.model.config import Config
from autotune.model.measurement import Contamination
from autotune.model.study import Study
from autotune.model.trial import Stage

SEARCHES = 2000
EVERY_MIN = 22.0 / 60.0
"""Minutes between two runs of the script in cycles."""


@pytest.mark.parametrize(
    ("sd", "minutes", "noise"),
    [(0.0, 1.0, 0.06), (0.06, 1.1, 0.057), (0.13, 1.5, 0.066), (0.126, 0.54, 0.076)],
    ids=["quiet", "a little", "much", "quickly"],
)
def test_a_machine_that_changes_within_minutes_bars_two_searches_of_a_hundred(
    sd: float, minutes: float, noise: float
) -> None:
    barred = 0
    alike = math.exp(-EVERY_MIN / minutes)
    for seed in range(SEARCHES):
        draw = random.Random(seed)
        machine, rates = draw.gauss(0.0, sd), []
        for _ in range(12):
            machine = alike * machine + draw.gauss(0.0, sd * math.sqrt(1.0 - alike**2))
            rates.append(math.exp(machine + draw.gauss(0.0, noise)))
        barred += claim_bar(against_itself(rates)) > 1.0
    assert 0.008 < barred / SEARCHES < 0.035


def confirmed(*rates: float, flagged: frozenset[int] = frozenset()) -> Study:
    """Confirmation runs of the script at these rates, one in each cycle."""
    trials = []
    for n, rate in enumerate(rates):
        trial = replace(measured(n, Config(), rate, Stage.CONFIRM), group=n + 1)
        if n in flagged:
            marked = Contamination(flags=("cpu_contended",))
            trial = replace(trial, outcome=replace(trial.outcome, contamination=marked))
        trials.append(trial)
    return Study(spec=spec(), trials=tuple(trials))


def test_two_runs_of_the_script_differ_by_their_ratio() -> None:
    assert self_difference(confirmed(100.0, 125.0)) == pytest.approx(1.25)
    assert self_difference(confirmed(125.0, 100.0, 125.0)) == pytest.approx(1.25)
    assert self_difference(confirmed(100.0)) == 1.0


def test_a_machine_that_slows_down_steadily_does_not_make_the_script_differ_from_itself() -> None:
    slower = [100.0 * 0.9**n for n in range(3)]
    assert self_difference(confirmed(*slower)) > 1.1, "two steps cannot tell drift from scatter"
    slower = [100.0 * 0.9**n for n in range(6)]
    assert self_difference(confirmed(*slower)) < 1.1


def test_a_run_beside_others_says_nothing_of_the_script_itself() -> None:
    assert self_difference(confirmed(100.0, 40.0, 101.0, flagged=frozenset({1}))) == pytest.approx(1.01)
    assert self_difference(confirmed(100.0, 40.0, flagged=frozenset({0, 1}))) == pytest.approx(2.5)


def test_a_claim_is_weak_where_the_script_differs_from_itself_by_as_much() -> None:
    study = confirmed(100.0, 125.0, 100.0)
    assert weakness(study, ratio(1.21)) == "weak: your script differs from itself by 1.25x"
    assert weakness(study, ratio(1.5)) == ""
    assert weakness(study, ratio(1.0, 0)) == "", "nothing is claimed"
