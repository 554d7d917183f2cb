"""What is wanted, and within which bounds. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Goal(Enum):
    """Direction of an objective."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One axis of the Pareto front: ``throughput``, ``peak_memory`` or ``loss``."""

    metric: str
    goal: Goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """An upper bound on a metric: ``peak_memory`` in bytes, ``joules_per_sample``."""

    metric: str
    at_most: float


DEFAULT_OBJECTIVES = (
    Objective(metric="throughput", goal=Goal.MAXIMIZE),
    Objective(metric="peak_memory", goal=Goal.MINIMIZE),
    Objective(metric="loss", goal=Goal.MINIMIZE),
)
