"""Samplers without a library: brute force and coordinate descent. Pure."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from autotune.compare.amortised_rate import objective_values
from autotune.model.config import Config
from autotune.search.strategy import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.model.space import Dimension, SearchSpace
    from autotune.model.study import Study

_SWEEPS = 8


class BruteForce(Sampler):
    """Every config of the space once, in the order of the space: the last knob varies fastest."""

    def propose(
        self, study: Study, space: SearchSpace, count_seed: int, may: Callable[[Config], bool] | None = None
    ) -> Config | None:
        """See `Sampler.propose`; None if all were proposed or may not be run."""
        proposed = {t.config for t in study.trials}
        return next((c for c in space.enumerate() if c not in proposed and (may is None or may(c))), None)


class CoordinateDescent(Sampler):
    """Descent along one knob at a time from the fastest config; the seed sets the order of knobs.

    It ends after a sweep over all knobs that found nothing faster. Its path is derived from the study for
    every proposal: the first config without a trial is the proposal.
    """

    def propose(
        self, study: Study, space: SearchSpace, count_seed: int, may: Callable[[Config], bool] | None = None
    ) -> Config | None:
        """See `Sampler.propose`; None at the end of the descent."""
        proposed, rates = {t.config for t in study.trials}, objective_values(study)
        knobs = list(space.free())
        random.Random(study.spec.seed).shuffle(knobs)
        here = Config()
        for _ in range(_SWEEPS):
            before = here
            for knob in knobs:
                line = _line(space, here, knob)
                new = next((c for c in line if c not in proposed and (may is None or may(c))), None)
                if new is not None:
                    return new
                # An earlier config remains unless another one is faster; failures have no rate.
                here = max([here, *line], key=lambda c: rates.get(c, -math.inf))
            if here == before:
                return None
        return None


def _line(space: SearchSpace, config: Config, dimension: Dimension) -> list[Config]:
    """Return the configs that differ in this knob alone, as far as rules allow."""
    wanted = space.resolved_free(config)
    found: dict[Config, None] = {}
    for value in dimension.values:
        other = space.complete({**wanted, dimension.knob: value})
        if isinstance(other, Config) and other != config:
            found[other] = None
    return list(found)
