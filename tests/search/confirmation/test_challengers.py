"""What confirmation and ablation show of whom screening held for the fastest, and who comes in for it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from search_world import dimension, loss_trace, measurement, spec, tell

from autotune.answer.pick import answer
from autotune.compare.amortised_rate import all_objective_runs, objective_runs
from autotune.model.config import Config
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage
from autotune.search.feature_flags import DEFAULT, FeatureFlags
from autotune.search.stages import Staged

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
WITHOUT = replace(DEFAULT, overtakes=False)
A, B, C, AB = Config({"a": 1}), Config({"b": 1}), Config({"c": 1}), Config({"a": 1, "b": 1})
RUN_S = 7.0


def screened(rates: dict[Config, float], *names: str, baselines: tuple[float, ...] = (100.0, 104.0)) -> Study:
    """Screening that has ended: the script as often as that, every config once."""
    space = SearchSpace(dimensions={n: dimension(n, (0, 1), 0) for n in names})
    study = Study(spec=spec(seconds=900), space=space)
    for number, (config, rate) in enumerate([*((Config(), r) for r in baselines), *rates.items()]):
        stage = Stage.REFINE if config else Stage.BASELINE
        proposal = Proposal(
            stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=0 if config else number
        )
        study = tell(study, proposal, measurement(rate, loss=loss_trace(seed=number)), RUN_S)
    return study


def confirmed(
    study: Study,
    truth: dict[Config, float],
    parts: FeatureFlags = DEFAULT,
    *,
    left_s: float = 700.0,
    noise: float = 0.02,
    seed: int = 0,
) -> Study:
    """Confirmation to its end, by what is true of the configs."""
    strategy, draw = Staged(parts=parts), random.Random(seed)
    budget = replace(study.spec.budget, seconds=study.elapsed_s + RUN_S + left_s)
    study = replace(study, spec=replace(study.spec, budget=budget))
    start = Proposal(stage=Stage.CONFIRM, config=Config(), fidelity=FIDELITY, reason="x", seed=2, group=1)
    rate = truth[Config()] * math.exp(draw.gauss(0.0, noise))
    confirming = tell(study, start, measurement(rate, loss=loss_trace(seed=2)), RUN_S)
    while (proposal := strategy.ask(confirming, left_s)) is not None:
        assert len(confirming.trials) < 150
        rate = truth[proposal.config] * math.exp(draw.gauss(0.0, noise))
        trace = loss_trace(seed=proposal.seed, jitter_seed=len(confirming.trials))
        confirming = tell(confirming, proposal, measurement(rate, loss=trace), RUN_S)
        left_s -= RUN_S
    return confirming


def members(study: Study) -> list[Config]:
    """Who was confirmed, in the order they came in."""
    runs = study.finished(Stage.CONFIRM)
    return [c for c in dict.fromkeys(t.config for t in runs) if not c.is_baseline]


LUCKY = {A: 150.0, B: 120.0, AB: 106.0}
TRUTH = {Config(): 100.0, A: 103.0, B: 121.0, AB: 106.0}


def test_a_leader_that_was_lucky_is_overtaken_by_what_it_had_kept_out() -> None:
    ended = confirmed(screened(LUCKY, "a", "b"), TRUTH)
    assert members(ended)[:2] == [A, B]
    assert answer(ended).best.config == B
    left = confirmed(screened(LUCKY, "a", "b"), TRUTH, WITHOUT)
    assert B not in members(left)
    assert answer(left).best.config != B


def test_the_run_of_a_newcomer_says_why_it_is_there() -> None:
    ended = confirmed(screened(LUCKY, "a", "b"), TRUTH)
    first, *later = (t.reason for t in ended.finished(Stage.CONFIRM) if t.config == B)
    assert first.endswith("By all runs so far it may be faster than the first finalist.")
    assert all("may be faster" not in reason for reason in later)


def test_nobody_comes_in_before_the_leader_has_three_pairs() -> None:
    ended = confirmed(screened(LUCKY, "a", "b"), TRUTH)
    assert min(t.group for t in ended.finished(Stage.CONFIRM) if t.config == B) == 4


@pytest.mark.parametrize("seed", range(6))
def test_a_leader_that_holds_is_confirmed_alone(seed: int) -> None:
    rates = {A: 150.0, B: 121.0, AB: 139.0}
    truth = {Config(): 101.0, A: 150.0, B: 121.0, AB: 138.0}
    ended = confirmed(screened(rates, "a", "b"), truth, seed=seed)
    assert members(ended) == [A]


@pytest.mark.parametrize(("more", "comes"), [(14, False), (16, True)])
def test_a_newcomer_needs_time_for_five_cycles_with_who_is_there(more: int, comes: bool) -> None:
    """After three cycles of two runs; five of three runs are fifteen."""
    ended = confirmed(screened(LUCKY, "a", "b"), TRUTH, left_s=(5 + more) * RUN_S)
    assert (B in members(ended)) is comes
    if comes:
        runs = [t.config for t in ended.finished(Stage.CONFIRM)]
        assert runs.count(B) >= 5


def test_two_come_in_at_the_most() -> None:
    names = tuple("abcdef")
    rates = {Config({n: 1}): 150.0 - place for place, n in enumerate(names)}
    truth = {Config(): 100.0, **dict.fromkeys(rates, 104.0)}
    ended = confirmed(screened(rates, *names), truth, left_s=3000.0)
    assert len(members(ended)) == 3


ABC, BC, AC = Config({"a": 1, "b": 1, "c": 1}), Config({"b": 1, "c": 1}), Config({"a": 1, "c": 1})


def test_a_part_of_the_winner_that_is_faster_than_the_whole_takes_its_place() -> None:
    """A lucky run of all three had hidden that a costs eight per cent beside b and c."""
    rates = {ABC: 152.0, BC: 139.0, A: 101.0, B: 120.0, C: 101.0}
    truth = {Config(): 100.0, A: 101.0, B: 120.0, C: 101.0, AB: 137.0, BC: 149.0, AC: 102.0, ABC: 138.0}
    ended = confirmed(screened(rates, "a", "b", "c"), truth, left_s=1200.0)
    assert any(t.stage is Stage.ABLATE for t in ended.trials)
    assert answer(ended).best.config == BC
    assert answer(confirmed(screened(rates, "a", "b", "c"), truth, WITHOUT, left_s=1200.0)).best.config != BC


def test_a_winner_is_taken_apart_only_after_who_came_in_late_had_three_pairs() -> None:
    """Two changes win, and another configuration that read less is the faster."""
    rates = {AB: 160.0, A: 112.0, B: 112.0, C: 131.0}
    truth = {Config(): 100.0, A: 108.0, B: 108.0, AB: 118.0, C: 131.0, ABC: 119.0}
    ended = confirmed(screened(rates, "a", "b", "c"), truth, left_s=900.0)
    stages = [t.stage for t in ended.trials]
    began = stages.index(Stage.ABLATE) if Stage.ABLATE in stages else len(stages)
    late = [n for n, t in enumerate(ended.trials) if t.stage is Stage.CONFIRM and t.config == C]
    assert len([n for n in late if n < began]) >= 3
    assert answer(ended).best.config == C
    left = confirmed(screened(rates, "a", "b", "c"), truth, WITHOUT, left_s=900.0)
    assert any(t.stage is Stage.ABLATE and t.group == 1 for t in left.trials), "it would have been at once"


def test_what_is_slower_than_the_script_does_not_come_in_for_a_leader_that_is_as_well() -> None:
    truth = {Config(): 100.0, A: 97.0, B: 97.0, AB: 95.0}
    for seed in range(4):
        ended = confirmed(screened({A: 112.0, B: 96.0, AB: 94.0}, "a", "b"), truth, noise=0.01, seed=seed)
        assert members(ended) == [A]


def test_a_machine_that_has_slowed_down_makes_nobody_of_screening_faster() -> None:
    """All runs of the cycles are ten per cent slower, and the script's own show it."""
    rates = {A: 150.0, B: 147.0, AB: 140.0}
    truth = {Config(): 91.0, A: 135.0, B: 132.0, AB: 126.0}
    study = screened(rates, "a", "b", baselines=(100.0, 101.0, 100.5))
    ended = confirmed(study, truth, noise=0.003)
    assert members(ended) == [A]


def test_runs_of_the_cycles_are_reported_at_what_the_machine_did_while_screening() -> None:
    study = screened({A: 150.0}, "a", baselines=(100.0, 101.0, 100.0, 101.0))
    for group in range(1, 6):
        for config, rate in ((Config(), 90.0), (A, 135.0)):
            proposal = Proposal(
                stage=Stage.CONFIRM, config=config, fidelity=FIDELITY, reason="x", seed=group, group=group
            )
            study = tell(study, proposal, measurement(rate + 0.5 * (group % 2)), RUN_S)
    screening, cycles = all_objective_runs(study)
    assert screening == objective_runs(study)
    assert all(145.0 < rate < 151.0 for rate in cycles[A])
