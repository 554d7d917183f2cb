"""Short windows of a long run: what is held, and what is too short to say."""

from __future__ import annotations

import random

import long_runs


def test_windows_of_a_steady_run_hold_the_rate_of_the_whole() -> None:
    draw = random.Random(3)
    periods = [0.05 * (1.0 + 0.1 * draw.gauss(0.0, 1.0)) for _ in range(2400)]
    found = long_runs.held(periods, 4.0, draws=25)
    assert found is not None
    assert found[1] == 25
    assert found[0] >= 21


def test_windows_of_a_run_that_wanders_do_not() -> None:
    periods = [0.05 if k // 400 % 2 else 0.08 for k in range(2400)]
    found = long_runs.held(periods, 4.0, draws=15)
    assert found is not None
    assert found[0] <= 5


def test_a_run_that_is_hardly_a_window_long_says_nothing() -> None:
    assert long_runs.held([0.05] * 110, 4.0, draws=1) is None


def test_evaluations_are_no_part_of_the_rate_that_windows_are_held_against() -> None:
    draw = random.Random(5)
    asides = [1.5 if k % 60 == 59 else 0.0 for k in range(2400)]
    periods = [0.05 * (1 + 0.05 * draw.gauss(0, 1)) + aside for aside in asides]
    hits, draws = long_runs.held(periods, 4.0, asides_s=asides, draws=60)
    assert hits >= 0.85 * draws
    # A window of four seconds holds one evaluation or two, which says nothing of how many there are.
    seen = long_runs.process.run(
        (long_runs.process.Step(period_s=p, aside_s=a) for p, a in zip(periods, asides, strict=True)),
        long_runs.process.fidelity(10.0),
    )
    truth = long_runs.process.BATCH / 0.05
    assert abs(seen.measurement.throughput.value / truth - 1) < 0.03
