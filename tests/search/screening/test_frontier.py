"""What a run would add to the front of speed and memory, and when a search gives it one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_world import GIB, World, dimension, measurement, simulate, spec, tell

from autotune.model.config import Config
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage
from autotune.search.feature_flags import DEFAULT
from autotune.search.models.memory_model import MemoryModel
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.screening.frontier import Frontier, area
from autotune.search.stages import Staged

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
HALF = math.log(0.5)
FAST, LEAN = Config({"fast": 1}), Config({"lean": 1})
SPACE = SearchSpace(dimensions={n: dimension(n, (0, 1), 0) for n in ("fast", "lean", "none")})


def measured(*runs: tuple[Config, float, float]) -> tuple[Study, ThroughputModel, MemoryModel]:
    study = Study(spec=spec(seconds=900), space=SPACE)
    for config, rate, gib in ((Config(), 100.0, 4.0), *runs):
        stage = Stage.REFINE if config else Stage.BASELINE
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x")
        study = tell(study, proposal, measurement(rate, peak_bytes=int(gib * GIB)), 7.0)
    model = ThroughputModel.of(study, SPACE)
    assert model is not None
    return study, model, MemoryModel.of(study, SPACE)


def test_the_area_counts_what_is_dominated_once() -> None:
    assert area([]) == 0.0
    one = area([(0.0, 0.1)])
    assert one == pytest.approx(-HALF * 0.1)
    assert area([(0.0, 0.1), (-0.1, 0.05)]) == pytest.approx(one)
    assert area([(0.0, 0.1), (-0.1, 0.3)]) == pytest.approx(one + (-0.1 - HALF) * 0.2)
    # What is slower than half the script's rate, or takes most memory of all, adds nothing.
    assert area([(0.0, 0.1), (-1.0, 5.0), (3.0, 0.0)]) == pytest.approx(one)


def test_memory_spared_at_the_top_speed_is_worth_most_and_without_counts_nothing_is() -> None:
    study, speed, memory = measured((FAST, 160.0, 4.0), (LEAN, 98.0, 2.0))
    front = Frontier(study, speed, memory, [FAST, LEAN])
    both = front.gain(Config({"fast": 1, "lean": 1}))
    assert both > 0.1
    assert front.gain(Config({"none": 1})) < 0.02
    assert front.gain(Config({"fast": 1, "none": 1})) < 0.02
    blind = replace(memory, fit=None)
    assert Frontier(study, speed, blind, [FAST, LEAN]).gain(Config({"fast": 1, "lean": 1})) == 0.0


def test_peaks_are_expected_with_and_without_a_limit() -> None:
    _, _, memory = measured((FAST, 160.0, 4.0), (LEAN, 98.0, 2.0))
    assert memory.limit_bytes is None
    peak = memory.peak_bytes(Config({"fast": 1, "lean": 1}))
    assert peak == pytest.approx(2.0 * GIB, rel=0.15)
    assert memory.fits(Config({"fast": 1})) == 1.0


class Lean(World):
    """Half the memory with `lean`, at three quarters of the speed."""

    def peak_bytes(self, config: Config) -> float:
        return GIB * (2.0 if "lean" in config else 4.0)


def test_a_search_looks_for_less_memory_where_nothing_faster_is_expected_and_only_then() -> None:
    space = SearchSpace(dimensions={n: dimension(n, (0, 1), 0) for n in ("fast", "lean", "p", "q", "r")})
    world = Lean(space=space, speed={("fast", 1): 1.6, ("lean", 1): 0.75}, noise=0.001, input_s=0.0)
    with_share, without = (
        simulate(
            Staged(parts=replace(DEFAULT, free_draws=False, from_leader=False, front_share=share)),
            world,
            spec(seconds=900),
        )
        for share in (True, False)
    )
    lean = [t for t in with_share.trials if t.reason.startswith("For less memory")]
    assert lean
    assert all("lean" in t.config for t in lean)
    assert not [t for t in without.trials if t.reason.startswith("For less memory")]
    screened_s = sum(t.seconds for t in with_share.finished(Stage.INITIAL, Stage.REFINE))
    assert sum(t.seconds for t in lean) <= 0.2 * (screened_s + 900.0)
    first = with_share.trials.index(lean[0])
    # Up to there both are the same search.
    assert [t.config for t in with_share.trials[:first]] == [t.config for t in without.trials[:first]]
