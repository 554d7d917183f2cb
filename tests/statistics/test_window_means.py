"""Means of a few runs, whose windows say something of their own error."""

from __future__ import annotations

import math
import random

import pytest

from autotune.compare.amortised_rate import mean_rate
from autotune.model.measurement import Estimate
from autotune.statistics.intervals import mean_interval
from autotune.statistics.window_means import mean_of_windows, relative_error


def share_held(state: float, error: float, *, count: int, plain: bool = False) -> float:
    """How often the interval of `count` windows holds 1.0: each in one of two states, and off by chance."""
    draw, hits, means = random.Random(f"{state}/{error}/{count}"), 0, 4000
    for _ in range(means):
        values = [1 + draw.choice((-state, state)) + draw.gauss(0, error) for _ in range(count)]
        found = mean_interval(values) if plain else mean_of_windows(values, [error] * count)
        hits += found[1] <= 1.0 <= found[2]
    return hits / means


def test_windows_that_all_met_the_same_state_do_not_make_it_too_narrow() -> None:
    assert share_held(0.04, 0.03, count=3, plain=True) < 0.925
    assert share_held(0.04, 0.03, count=3) > 0.93


@pytest.mark.parametrize("count", [3, 5, 8])
def test_windows_that_know_their_error_keep_what_is_promised(count: int) -> None:
    assert 0.95 < share_held(0.0, 0.03, count=count) < 0.995


def test_it_is_never_narrower_than_the_spread_between_runs_has_it() -> None:
    draw = random.Random(0)
    for _ in range(200):
        values = [draw.gauss(1, 0.1) for _ in range(draw.randint(2, 9))]
        mean, low, high = mean_of_windows(values, [draw.expovariate(20) for _ in values])
        plain = mean_interval(values)
        assert mean == plain[0]
        assert low <= plain[1]
        assert high >= plain[2]


def test_without_errors_it_is_the_interval_of_the_spread() -> None:
    values = [1.0, 1.1, 1.3]
    assert mean_of_windows(values, [math.inf, math.nan, math.inf]) == mean_interval(values)
    assert mean_of_windows([2.0], [0.1]) == (2.0, -math.inf, math.inf)


def test_a_rate_takes_the_relative_width_of_its_windows() -> None:
    def window(value: float, half: float) -> Estimate:
        return Estimate(value=value, low=value - half, high=value + half, n=9, unit="samples/s")

    # Amortised rates are below those of the windows, and as uncertain as these.
    agreeing = mean_rate([(90.0, window(100.0, 10.0)), (90.0, window(100.0, 10.0))], "samples/s")
    assert relative_error(window(100.0, 10.0)) == pytest.approx(0.0510, abs=1e-4)
    assert (agreeing.value, agreeing.n) == (90.0, 2)
    assert agreeing.high - 90.0 == pytest.approx(90.0 - agreeing.low)
    assert 8.0 < agreeing.high - 90.0 < 16.0
    nothing_known = mean_rate([(90.0, window(0.0, 1.0)), (90.0, window(0.0, 1.0))], "samples/s")
    assert (nothing_known.low, nothing_known.high) == (90.0, 90.0)
