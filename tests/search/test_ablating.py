"""A winner is taken apart where that fits, and what is left is confirmed."""

from __future__ import annotations

import pytest
from search_world import World, simulate, spec, usual_space

from autotune.core.ablation import ablated, variants
from autotune.core.config import Config
from autotune.core.pick import answer
from autotune.core.trial import Stage
from autotune.search.stages import Staged

SPACE = usual_space(training=False)
SPEED = {
    ("precision", "bf16"): 1.6,
    ("threads", 4): 1.15,
    ("channels_last", True): 1.004,
    ("fused_optimizer", True): 1.003,
    ("threads", 1): 0.8,
    ("batch_size", 8): 0.7,
    ("batch_size", 16): 0.9,
}


@pytest.mark.slow  # a whole long search
def test_a_long_search_takes_its_winner_apart_and_keeps_what_pays() -> None:
    world = World(space=SPACE, speed=SPEED, input_s=0.0, noise=0.01)
    study = simulate(Staged(), world, spec(seconds=2400.0))
    winner = ablated(study)
    assert winner is not None
    runs = [t for t in study.trials if t.stage is Stage.ABLATE]
    line = {winner, *variants(study, winner).values()} - {Config()}
    for group in {t.group for t in runs}:
        assert {t.config for t in runs if t.group == group} == line
    assert len({t.config for t in runs if t.group == 1 and t.number == runs[0].number}) == 1
    begins = {min((t for t in runs if t.group == g), key=lambda t: t.number).config for g in (1, 2, 3)}
    assert len(begins) > 1
    best = answer(study).best.config
    assert {"precision", "threads"} <= set(best)
    assert world.rate(best) > 0.97 * world.oracle()


def test_a_short_search_takes_nothing_apart() -> None:
    world = World(space=SPACE, speed=SPEED, noise=0.01)
    study = simulate(Staged(), world, spec(seconds=180.0))
    assert ablated(study) is None
    assert answer(study).is_better


def test_a_limit_of_trials_is_kept() -> None:
    world = World(space=SPACE, speed=SPEED, noise=0.01)
    for limit in (1, 3, 9, 12, 40):
        study = simulate(Staged(), world, spec(seconds=7200.0, trials=limit))
        assert len(study.trials) <= limit
        assert answer(study).is_better is (limit >= 9)
