"""Where energy is searched for: the least of all that is faster, by pairs, and nothing without a counter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from search_world import dimension, loss_trace, measurement, spec, tell

from autotune.answer.pick import answer
from autotune.compare.amortised_rate import objective_value, objective_values, screened
from autotune.compare.comparison import compare
from autotune.compare.energy import counters, samples_per_joule
from autotune.compare.finalists import finalists
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
BASE = Config()
FAST = Config({"workers": 2})
FRUGAL = Config({"threads": 1})
SLOW = Config({"threads": 1, "workers": 2})
SPACE = SearchSpace(
    dimensions={d.knob: d for d in (dimension("workers", (0, 2), 0), dimension("threads", (1, 4), 4))}
)
WOBBLE = (0.0, 0.01, -0.012, 0.004, -0.006, 0.009)
SAMPLES = 32.0 * 40

Costs = dict[Config, tuple[float, float | None]]
"""Config -> samples/s, joules per sample."""


def run(rate: float, joules: float | None, *, seed: int = 0, key: str = "energy_gpu_j") -> Measurement:
    made = measurement(rate, loss=loss_trace(seed=seed))
    return made if joules is None else replace(made, extra={key: joules * SAMPLES})


def study(costs: Costs, *, cycles: int = 5, objective: str = "energy", key: str = "energy_gpu_j") -> Study:
    made = Study(spec=spec(objective=objective), space=SPACE)

    def add(stage: Stage, config: Config, outcome: Measurement, seed: int = 0, group: int = 0) -> None:
        nonlocal made
        proposal = Proposal(
            stage=stage, config=config, fidelity=FIDELITY, reason="test", seed=seed, group=group
        )
        made = tell(made, proposal, outcome, 7.0)

    for seed in range(2):
        add(Stage.BASELINE, BASE, run(*costs[BASE], seed=seed), seed)
    for config, (rate, joules) in costs.items():
        if not config.is_baseline:
            add(Stage.REFINE, config, run(rate, joules, key=key))
    for group in range(1, cycles + 1):
        for k, (config, (rate, joules)) in enumerate(costs.items()):
            wobble = math.exp(WOBBLE[(group + 2 * k) % len(WOBBLE)])
            spent = None if joules is None else joules * math.exp(WOBBLE[(2 * group + k) % len(WOBBLE)])
            name = "energy_gpu_j" if config.is_baseline else key
            add(Stage.CONFIRM, config, run(rate * wobble, spent, seed=group + 1, key=name), group + 1, group)
    return made


BOTH: Costs = {BASE: (100.0, 2.0), FAST: (160.0, 1.9), FRUGAL: (130.0, 1.0)}


def test_the_least_energy_wins_and_the_fastest_where_speed_is_wanted() -> None:
    found = answer(study(BOTH))
    assert found.best.config == FRUGAL
    assert found.best.speedup.value == pytest.approx(1.3, rel=0.02), "its speed is reported as ever"
    assert any(r.startswith("It takes 0.50 [0.4") and "energy per sample" in r for r in found.best.reasons)
    assert answer(study(BOTH, objective="throughput")).best.config == FAST
    assert answer(study(BOTH, objective="cost")).best.config == FAST


def test_a_saving_has_the_interval_of_pairs() -> None:
    compared = {c.config: c for c in compare(study(BOTH))}
    saving = compared[FRUGAL].saving
    assert saving is not None
    assert saving.low < 2.0 < saving.high
    assert (saving.n, saving.confidence) == (5, compared[FRUGAL].speedup.confidence)
    assert all(c.saving is None for c in compare(study(BOTH, objective="throughput")))


def test_what_is_faster_and_saves_nothing_beyond_doubt_is_no_pick() -> None:
    found = answer(study({BASE: (100.0, 2.0), FAST: (160.0, 2.0)}))
    assert not found.is_better
    assert "it is not shown to take less energy per sample than your script" in found.sentence


def test_two_pairs_show_no_saving() -> None:
    assert not answer(study(BOTH, cycles=2)).is_better


def test_without_a_counter_nothing_is_picked_and_that_is_reported() -> None:
    found = answer(study({BASE: (100.0, None), FAST: (160.0, None)}))
    assert not found.is_better
    assert any("No energy was measured" in caveat for caveat in found.caveats)


def test_runs_with_other_counters_than_the_scripts_are_not_compared() -> None:
    (compared,) = compare(study({BASE: (100.0, 2.0), FAST: (160.0, 0.1)}, key="energy_cpu_j"))
    assert compared.saving is None


def test_finalists_are_ranked_by_energy_and_none_is_slower_than_the_script() -> None:
    made = study({**BOTH, SLOW: (90.0, 0.2)}, cycles=0)
    assert finalists(made) == (FRUGAL,)
    assert objective_values(made)[SLOW] == pytest.approx(5.0)
    plain = replace(made, spec=replace(made.spec, objective="throughput"))
    assert finalists(plain) == (FAST,)
    assert objective_values(plain) == screened(plain)


def test_one_runs_merit_is_what_energy_buys() -> None:
    made = study(BOTH, cycles=0)
    counted = run(100.0, 2.0)
    assert samples_per_joule(counted) == pytest.approx(0.5)
    assert counters(counted) == {"energy_gpu_j"}
    assert objective_value(made, counted) == pytest.approx(0.5)
    assert objective_value(made, run(100.0, None)) == 0.0
    assert objective_value(
        replace(made, spec=replace(made.spec, objective="cost")), counted
    ) == pytest.approx(100.0)
    assert samples_per_joule(replace(counted, window_s=0.5)) is None


def test_a_change_of_the_training_has_to_reach_the_loss_for_less_energy() -> None:
    wild = Config({"effective_batch": 64})
    dims: Any = {**SPACE.dimensions}
    dims["effective_batch"] = dimension("effective_batch", (32, 64), 32, effect=Effect.TRAINING)
    made = replace(study({BASE: (100.0, 2.0), wild: (130.0, 1.0)}), space=replace(SPACE, dimensions=dims))
    (compared,) = compare(made)
    assert compared.saving is not None
    assert compared.saving.value == pytest.approx(2.0, rel=0.05), "both reach the loss with the same samples"
