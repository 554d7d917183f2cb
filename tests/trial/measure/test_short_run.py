"""Which steps are timed where there is no room for a warm-up, and which show that a run is hopeless."""

from __future__ import annotations

import math
import random

import pytest

from autotune.trial.measure.short_run import first_timed, slow_steps
from autotune.trial.measure.window_blocks import Row
from autotune.trial.runtime.state import COMPILE, EVALUATION, LOADER

STARTS = LOADER | EVALUATION


@pytest.mark.parametrize(
    ("marks", "first"),
    [
        ([0, 0], 1),
        ([0, 0, 0], 1),
        ([0] * 8, 2),
        ([0] * 40, 6),
        ([LOADER, 0, 0, 0, STARTS, 0, 0, 0], 4),  # the second of two epochs
        ([LOADER, 0, STARTS, 0, STARTS, 0], 2),  # epochs of two
        ([LOADER] * 5, 1),  # epochs of one
        ([LOADER, 0, 0, 0, STARTS], 1),  # it broke off in its second epoch
        ([COMPILE, 0, 0, COMPILE, 0, 0], 4),
        ([COMPILE, 0, 0, 0, 0, COMPILE], 1),  # one in the last step is set aside there
        ([0, COMPILE], 1),
    ],
)
def test_the_first_steps_are_dropped_and_whole_epochs_are_kept(marks: list[int], first: int) -> None:
    assert first_timed(marks) == first


def steps(*periods_s: float, mark: int = 0, samples: int = 8) -> list[tuple[Row, float]]:
    rows: list[tuple[Row, float]] = []
    at = 0.0
    for period in periods_s:
        at += period
        rows.append(((int(at * 1e9), 0, samples, mark, 0), period))
    return rows


def test_three_alike_steps_far_below_the_bar_are_enough() -> None:
    assert slow_steps(steps(1.0, 1.01, 0.99), 16.0, long_s=60.0) == 3
    assert slow_steps(steps(1.0, 1.01, 0.99), 8.1, long_s=60.0) == 0, "only just below"
    assert slow_steps(steps(1.0, 1.01), 16.0, long_s=60.0) == 0
    assert slow_steps(steps(), 16.0, long_s=60.0) == 0


def test_two_steps_are_enough_where_they_last_longer_than_a_window() -> None:
    assert slow_steps(steps(30.0, 30.3), 16.0, long_s=60.0) == 2
    assert slow_steps(steps(30.0, 45.0), 0.5, long_s=60.0) == 0, "they differ too much to say"


def test_uneven_steps_and_steps_that_are_slow_for_a_reason_end_nothing() -> None:
    assert slow_steps(steps(2.0, 0.6, 4.0), 14.0, long_s=60.0) == 0
    assert slow_steps(steps(1.0, 1.0, 1.0, mark=COMPILE), 16.0, long_s=60.0) == 0
    assert slow_steps(steps(1.0, 1.0, 1.0, mark=LOADER), 16.0, long_s=60.0) == 0
    assert slow_steps(steps(1.0, 1.0, 1.0, samples=0), 16.0, long_s=60.0) == 0
    assert slow_steps([*steps(1.0, 1.0, 1.0), *steps(0.1)], 16.0, long_s=60.0) == 0, "the last is fast"


def test_only_the_slow_steps_at_the_end_count() -> None:
    assert slow_steps([*steps(0.1, 0.1), *steps(1.0, 1.0, 1.0)], 16.0, long_s=60.0) == 3


def test_a_short_disturbance_of_quick_steps_ends_nothing() -> None:
    quick, slow = [0.003] * 900, [0.1] * 8
    assert slow_steps(steps(*slow), 4000.0, long_s=60.0) == 0, "kernels may be chosen on first use"
    assert slow_steps(steps(*quick, *slow, *slow), 4000.0, long_s=60.0) == 0, "most of the time was quick"
    assert slow_steps(steps(*[0.1] * 12), 4000.0, long_s=60.0) == 12


@pytest.mark.parametrize("scatter", [0.05, 0.3, 0.5])
def test_a_run_that_is_as_fast_as_the_bar_hardly_ever_ends_by_chance(scatter: float) -> None:
    """Uneven steps at twice the rate of this bar, which is compared after each of them."""
    noise = random.Random(f"{scatter}")
    ended = 0
    for _ in range(300):
        shown = steps(*(math.exp(noise.gauss(-(scatter**2) / 2, scatter)) for _ in range(40)))
        ended += any(slow_steps(shown[max(0, k - 8) : k], 4.0, long_s=60.0) for k in range(1, 41))
    assert ended <= 3


def test_loaders_that_stall_every_few_steps_end_nothing() -> None:
    shown = steps(*([4.0, 0.1, 0.1, 0.1] * 10))
    assert not any(slow_steps(shown[max(0, k - 8) : k], 4.0, long_s=60.0) for k in range(1, 41))
