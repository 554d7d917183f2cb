"""Knob families, and which of them apply to a script. Pure.

A family groups knobs that act on the same part of a training step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.model.config import Config
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection

    from autotune.model.space import SearchSpace

FAMILIES: Final = (
    "precision",
    "loader",
    "transfer",
    "compile",
    "threads",
    "layout",
    "batch",
    "optimizer",
    "kernels",
    "memory",
    "communication",
    "wrapper",
    "own",
)
"""Every family; ``own`` is that of knobs which a user declared."""

DECISIVE: Final = frozenset(
    {"precision", "loader", "compile", "threads", "layout", "batch", "communication", "own"}
)
"""Families that have brought gains of 10 % and more on recorded scripts (experiments/grids), and
``communication`` by published figures (docs/distributed.md). The others bring a few per cent at the most, and
"nothing is faster" does not wait for them."""


def families_of(space: SearchSpace, config: Config) -> frozenset[str]:
    """Return families of the knobs that a config changes."""
    return frozenset(space.dimensions[k].family for k in config if k in space.dimensions)


def applicable(space: SearchSpace) -> frozenset[str]:
    """Decisive families with at least one free knob that does not change the training."""
    return frozenset(
        d.family for d in space.free() if d.family in DECISIVE and d.effect is not Effect.TRAINING
    )


def without(space: SearchSpace, families: Collection[str]) -> SearchSpace:
    """Return the space without the knobs of these families; unchanged where no other is free."""
    dimensions = {
        name: replace(d, values=()) if d.family in families and name not in space.fixed else d
        for name, d in space.dimensions.items()
    }
    smaller = replace(space, dimensions=dimensions)
    if not families or not smaller.free():
        return space
    kept = [
        {k: v for k, v in c.items() if k not in space.dimensions or dimensions[k].values}
        for c in space.starts
    ]
    starts = (smaller.complete(values) for values in kept)
    return replace(smaller, starts=tuple(dict.fromkeys(c for c in starts if isinstance(c, Config) and c)))
