"""Objectives of a search, and their constraints. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ENERGY = "energy"
"""Value of `StudySpec.objective`: a config that is not faster than the script is no pick for energy."""
OBJECTIVES = ("throughput", "memory", ENERGY, "cost")
"""Objectives of picks. Equal loss is no objective, as every recommended config needs it."""
SEARCHED = ("throughput", ENERGY, "cost")
"""Objectives of a search."""
WANTED = {
    "memory": "the least peak memory of all that is faster than your script",
    ENERGY: "the least energy per sample of all that is faster than your script",
    "cost": "the least money per sample, which at one price is the fastest",
}
"""Description of picks by objectives other than throughput."""


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
