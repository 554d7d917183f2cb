"""Which points no other point beats. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from autotune.core.objective import Goal

K = TypeVar("K", bound=Hashable)


def dominates(a: Sequence[float], b: Sequence[float], goals: Sequence[Goal] = ()) -> bool:
    """Whether `a` is nowhere worse than `b` and somewhere better.

    Args:
        a: One point.
        b: The other.
        goals: Direction of each axis; empty means that more is better everywhere.

    Raises:
        ValueError: The points, or the points and `goals`, differ in length.
    """
    if len(a) != len(b) or (goals and len(goals) != len(a)):
        message = f"points of {len(a)} and {len(b)} axes with {len(goals)} goals"
        raise ValueError(message)
    signs = [-1.0 if goal is Goal.MINIMIZE else 1.0 for goal in goals] or [1.0] * len(a)
    gains = [sign * (x - y) if x != y else 0.0 for sign, x, y in zip(signs, a, b, strict=True)]
    return all(gain >= 0.0 for gain in gains) and any(gain > 0.0 for gain in gains)


def front(points: Mapping[K, tuple[float, ...]], goals: Sequence[Goal]) -> list[K]:
    """Keys of the points that no other dominates, best on the first axis first.

    Equal points all stay. What is missing on an axis is the caller's business.
    """
    kept = [
        key
        for key, point in points.items()
        if not any(dominates(other, point, goals) for name, other in points.items() if name != key)
    ]
    if not goals:
        return kept
    sign = 1.0 if goals[0] is Goal.MINIMIZE else -1.0
    return sorted(kept, key=lambda key: sign * points[key][0])
