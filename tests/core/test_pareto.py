"""The front holds what nothing beats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.objective import Goal
from autotune.core.pareto import dominates, front

UP, DOWN = Goal.MAXIMIZE, Goal.MINIMIZE


def test_better_on_one_axis_and_equal_on_the_other_dominates() -> None:
    assert dominates((2, 1), (1, 1), (UP, DOWN))
    assert not dominates((2, 2), (1, 1), (UP, DOWN))
    assert not dominates((1, 1), (1, 1), (UP, DOWN))


def test_points_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="axes"):
        dominates((1,), (1, 2))


def test_the_front_begins_with_the_best_of_the_first_axis() -> None:
    points = {"slow": (1.0, 1.0), "fast": (3.0, 5.0), "bad": (1.0, 6.0), "middle": (2.0, 2.0)}
    assert front(points, (UP, DOWN)) == ["fast", "middle", "slow"]


@given(
    st.dictionaries(st.integers(), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20)
)
def test_every_point_outside_the_front_is_beaten_by_one_inside(points: dict[int, tuple[int, int]]) -> None:
    plain = {key: (float(a), float(b)) for key, (a, b) in points.items()}
    kept = front(plain, (UP, DOWN))
    assert kept
    for key, point in plain.items():
        beaten = any(dominates(plain[k], point, (UP, DOWN)) for k in kept)
        assert beaten != (key in kept)
