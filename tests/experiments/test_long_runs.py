"""Short windows of a long run: what is held, and what is too short to say."""

from __future__ import annotations

import random
from typing import Any

import long_runs


def long_run(periods: list[float], asides: list[float] | None = None) -> Any:
    kept = {"steps": [round(p / long_runs.TENS_US) for p in periods]}
    if asides is not None:
        kept["asides"] = [round(a / long_runs.TENS_US) for a in asides]
    return long_runs.LongRun(kept)


def test_windows_of_a_steady_run_hold_the_rate_of_the_whole() -> None:
    draw = random.Random(3)
    periods = [0.05 * (1.0 + 0.1 * draw.gauss(0.0, 1.0)) for _ in range(2400)]
    found = long_runs.held(long_run(periods), 4.0, draws=25)
    assert found is not None
    assert found[1] == 25
    assert found[0] >= 21


def test_windows_of_a_run_that_wanders_do_not() -> None:
    periods = [0.05 if k // 400 % 2 else 0.08 for k in range(2400)]
    found = long_runs.held(long_run(periods), 4.0, draws=15)
    assert found is not None
    assert found[0] <= 5


def test_a_run_that_is_hardly_a_window_long_says_nothing() -> None:
    assert long_runs.held(long_run([0.05] * 110), 4.0, draws=1) is None
    assert long_runs.held_together(long_run([0.05] * 110), 4.0, 3, means=1, draws=1) is None


def test_evaluations_are_no_part_of_the_rate_that_windows_are_held_against() -> None:
    draw = random.Random(5)
    asides = [1.5 if k % 60 == 59 else 0.0 for k in range(2400)]
    periods = [0.05 * (1 + 0.05 * draw.gauss(0, 1)) + aside for aside in asides]
    hits, draws = long_runs.held(long_run(periods, asides), 4.0, draws=60)
    assert hits >= 0.85 * draws
    # A window of four seconds holds one evaluation or two, which says nothing of how many there are.
    seen = long_runs.process.run(
        (long_runs.process.Step(period_s=p, aside_s=a) for p, a in zip(periods, asides, strict=True)),
        long_runs.process.fidelity(10.0),
    )
    truth = long_runs.process.BATCH / 0.05
    assert abs(seen.measurement.throughput.value / truth - 1) < 0.03


def test_the_mean_of_several_windows_holds_a_run_that_wanders() -> None:
    draw = random.Random(7)
    rate, periods = 0.05, []
    for _ in range(60):
        rate = 0.05 + 0.8 * (rate - 0.05) + 0.004 * draw.gauss(0.0, 1.0)
        periods += [rate * (1.0 + 0.03 * draw.gauss(0.0, 1.0)) for _ in range(100)]
    run = long_run(periods)
    one, _ = long_runs.held(run, 4.0, draws=60)
    assert one <= 30
    hits, means = long_runs.held_together(run, 4.0, 5, means=300, draws=60)
    assert 0.88 * means <= hits <= 0.99 * means
