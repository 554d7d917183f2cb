"""A trend in what the unchanged script does is reported; its scatter is not."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from search_world import measurement, spec

from autotune.compare.drift import FEWEST_RUNS, change_between, drift, drifted
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Stage, Trial, TrialState

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


def study_of(rates: list[float], config: Config | None = None) -> Study:
    """Runs a minute apart at these rates."""
    runs = []
    for number, rate in enumerate(rates):
        seen = measurement(rate)
        runs.append(
            Trial(
                number=number,
                config=config or Config(),
                stage=Stage.DRIFT_CHECK,
                fidelity=FIDELITY,
                state=TrialState.FINISHED,
                outcome=seen,
                seconds=10.0,
                finished_s=60.0 * number,
            )
        )
    return replace(Study(spec=spec(seconds=3600)), trials=tuple(runs))


def scattered(draw: random.Random, end: float, runs: int = 12, noise: float = 0.02) -> list[float]:
    return [100 * end ** (i / (runs - 1)) * math.exp(draw.gauss(0, noise)) for i in range(runs)]


@pytest.mark.parametrize("end", [0.8, 0.9, 1.15])
def test_a_trend_is_found_with_its_size(end: float) -> None:
    found = drifted(study_of(scattered(random.Random(1), end)))
    assert found is not None
    assert found.value == pytest.approx(end, rel=0.05)
    assert (found.low < 1) == (end < 1)


def test_scatter_without_a_trend_is_called_drift_in_at_most_one_of_fifty() -> None:
    draw = random.Random(2)
    called = sum(drifted(study_of(scattered(draw, 1.0, noise=0.04))) is not None for _ in range(400))
    assert called <= 16


def test_the_interval_covers_the_true_drift() -> None:
    draw = random.Random(3)
    found = [drift(study_of(scattered(draw, 0.9))) for _ in range(300)]
    covered = sum(f is not None and f.low <= 0.9 <= f.high for f in found)
    assert 0.91 <= covered / 300 <= 0.985


def test_too_few_runs_and_runs_of_other_configs_say_nothing() -> None:
    falling = [100 * 0.9**i for i in range(12)]
    assert drift(study_of(falling[: FEWEST_RUNS - 1])) is None
    assert drift(study_of(falling, Config({"threads": 1}))) is None


def test_runs_that_ended_at_one_time_say_nothing() -> None:
    study = study_of([100.0] * 6)
    assert drift(replace(study, trials=tuple(replace(t, finished_s=5.0) for t in study.trials))) is None


def in_steps(study: Study, number: int) -> Study:
    """One run counted its steps in place of its samples, a batch of 32."""
    trial = study.trials[number]
    assert trial.measurement is not None
    rate = trial.measurement.throughput
    steps = replace(rate, value=rate.value / 32, low=rate.low / 32, high=rate.high / 32, unit="steps/s")
    return study.with_trial(replace(trial, outcome=replace(trial.measurement, throughput=steps)))


def test_a_run_that_counted_in_another_unit_neither_makes_nor_hides_a_drift() -> None:
    steady, falling = (study_of(scattered(random.Random(4), end, noise=0.001)) for end in (1.0, 0.8))
    for number in (6, 11):
        assert drifted(in_steps(steady, number)) is None
        found = drifted(in_steps(falling, number))
        assert found is not None
        assert found.n == 11
        assert found.value == pytest.approx(0.8, abs=0.03)


def test_a_change_counts_as_far_unchanged_more_than_scatter() -> None:
    quiet = change_between([0.0, 0.001, 0.0, 0.001] * 4, [-0.1, -0.101, -0.1, -0.101] * 4)
    assert -0.101 < quiet < -0.09
    restless = change_between([0.1, -0.1], [0.0, -0.2])
    assert -0.02 < restless < 0.0, "two runs that differ by a fifth say little of a tenth"
    assert change_between([], [0.1]) == change_between([0.1], []) == 0.0
