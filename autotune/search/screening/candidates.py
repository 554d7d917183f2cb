"""Candidates: configs of the space that the models score; pure and seeded."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from autotune.model.config import Config

if TYPE_CHECKING:
    from autotune.model.space import Dimension
    from autotune.search.screening.state import SearchState

ENUMERABLE = 512
"""Configs in a space that is enumerated completely."""

DRAWS = 64
"""Configs drawn at random from a larger space."""


def candidate_pool(search: SearchState) -> list[Config]:
    """Return all of a small space; else neighbours of the best, the best sum, and draws; no repeats."""
    space = search.space
    if space.size_bound() <= ENUMERABLE:
        return [c for c in space.enumerate() if c not in search.feasible.proposed]
    ranked = sorted(search.model.seen, key=lambda c: (-search.model.seen[c], c.canonical()))
    found: dict[Config, None] = {}
    for config in [*ranked[:3], _climbed(search, ranked[0])]:
        found[config] = None
        found.update(dict.fromkeys(space.neighbours(config)))
    draw = random.Random(f"{search.study.spec.seed}/{search.trials}")
    for _ in range(DRAWS):
        wanted = {d.knob: draw.choice(d.values) for d in space.free()}
        config = space.complete(wanted)
        if isinstance(config, Config):
            found[config] = None
    return [c for c in found if c not in search.feasible.proposed]


def varied(search: SearchState, config: Config, dimension: Dimension) -> list[Config]:
    """Return permitted training-preserving configs that differ in one knob and its dependents.

    Args:
        search: Current state.
        config: Starting config; not included.
        dimension: Dimension of the knob.
    """
    found: list[Config] = []
    for value in dimension.values:
        other = search.space.complete({**search.space.resolved_free(config), dimension.knob: value})
        if isinstance(other, Config) and other != config and search.training_preserving(other):
            bad = any(item in search.feasible.quarantined for item in other.items())
            if not bad and search.feasible.memory.fits(other) >= 0.5:
                found.append(other)
    return found


def _climbed(search: SearchState, config: Config) -> Config:
    """Climb by the model from this config, knob by knob."""
    for _ in range(2):
        for dimension in search.space.free():
            options = [config, *varied(search, config, dimension)]
            config = max(options, key=lambda c: (search.model.predict(c)[0], c.canonical()))
    return config
