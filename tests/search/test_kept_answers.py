"""Answers that are kept are those that would be made anew: a search asks for the same runs either way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import World, dimension, simulate, spec

from autotune.answer.pick import answer
from autotune.compare.comparison import _compared, compare
from autotune.model.effect import Effect
from autotune.model.identity_cache import IdentityCache
from autotune.model.space import SearchSpace
from autotune.model.trial import Stage
from autotune.search.stages import Staged

DIMENSIONS = (
    dimension("precision", ("fp32", "bf16"), "fp32", effect=Effect.NUMERIC),
    dimension("channels_last", (False, True), False, effect=Effect.NUMERIC),
    dimension("threads", (1, 2, 4), 2, ordinal=True),
)
WORLD = World(
    space=SearchSpace(dimensions={d.knob: d for d in DIMENSIONS}),
    speed={("precision", "bf16"): 1.4, ("channels_last", True): 1.1, ("threads", 1): 0.7},
)


@pytest.mark.thorough
def test_a_search_asks_for_the_same_runs_with_and_without_what_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = simulate(Staged(), WORLD, spec(seconds=240.0))
    assert sum(t.stage is Stage.CONFIRM for t in kept.trials) > 6
    for count in range(4, len(kept.trials) + 1, 3):
        part = replace(kept, trials=kept.trials[:count])
        found = compare(part)
        assert found == _compared(part)
        found.clear()
        assert compare(part) == _compared(part), "what a caller does to its list is its own"
    monkeypatch.setattr(IdentityCache, "get", lambda _self, _key, make: make())
    fresh = simulate(Staged(), WORLD, spec(seconds=240.0))
    assert [(t.stage, t.config, t.seed, t.group, t.reason) for t in fresh.trials] == [
        (t.stage, t.config, t.seed, t.group, t.reason) for t in kept.trials
    ]
    assert answer(fresh).best == answer(kept).best
