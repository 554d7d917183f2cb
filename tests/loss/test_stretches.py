"""Runs of one seed that drift apart and come together, harm that comes late, and cycles for a loss alone."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from study_fakes import measured, spec, study

from autotune.compare.extension import MOST_CYCLES, cycles_left
from autotune.loss.loss_guard import LossVerdict, judge
from autotune.loss.non_inferiority import FULL, USUAL_RUNS
from autotune.model.config import Config
from autotune.model.measurement import LossPoint
from autotune.model.study import Budget, Study
from autotune.model.trial import Stage

Trace = tuple[LossPoint, ...]
STEPS, BATCH = 240, 32


def learning(seed: int, *, wander_sd: float = 0.0, stream: str = "", slower: float = 0.0) -> Trace:
    """A curve that begins to fall at a moment of the seed's; its clock wanders, as under rounding.

    Args:
        seed: Deals the moment and the batches.
        wander_sd: By how much of a run the clock has strayed after a tenth of it.
        stream: Deals the wandering.
        slower: Share of the steps by which progress lags.
    """
    own, shared = random.Random(f"{seed}/{stream}"), random.Random(f"{seed}")
    pace = math.exp(shared.gauss(0.0, 0.10))
    points: list[LossPoint] = []
    strayed, progress = 0.0, 0.0
    for k in range(1, STEPS + 1):
        if k % (STEPS // 10) == 1:
            strayed = 0.5 * strayed + own.gauss(0.0, wander_sd)
        progress = k * pace * (1.0 - slower) * math.exp(strayed)
        level = 0.2 + 2.1 / (1.0 + math.exp(12.0 * (progress / STEPS - 0.45)))
        loss = level + 0.05 * shared.gauss(0.0, 1.0)
        points.append(LossPoint(samples=k * BATCH, loss=loss, t_s=0.05 * k))
    return tuple(points)


def of(seeds: range, *, wander_sd: float = 0.0, stream: str = "", slower: float = 0.0) -> dict[int, Trace]:
    return {s: learning(s, wander_sd=wander_sd, stream=stream, slower=slower) for s in seeds}


def test_runs_that_drift_apart_and_come_together_pass_where_the_last_third_alone_could_not_tell() -> None:
    passed = 0
    for group in range(20):
        seeds = range(100 * group, 100 * group + 8)
        base, own = of(seeds), of(seeds, wander_sd=0.02, stream="bf16")
        passed += judge(own, base, changes_rng_streams=False).passed
    assert passed >= 16


def test_a_run_that_lags_is_still_barred() -> None:
    barred = 0
    for group in range(10):
        seeds = range(100 * group, 100 * group + 8)
        base, own = of(seeds), of(seeds, wander_sd=0.02, stream="bf16", slower=0.15)
        barred += not judge(own, base, changes_rng_streams=False).passed
    assert barred == 10


def test_harm_that_comes_late_does_not_pass_for_a_good_start() -> None:
    base = of(range(8))
    ahead = {
        s: tuple(replace(p, loss=p.loss - (0.1 if k < STEPS * 0.6 else 0.0)) for k, p in enumerate(t))
        for s, t in base.items()
    }
    late = judge(base, base, changes_rng_streams=False)
    assert late.passed
    fine = judge(ahead, base, changes_rng_streams=False)
    assert fine.passed
    spread = judge({s: t[:-1] for s, t in base.items()}, base, changes_rng_streams=False).margin
    harmed = {
        s: tuple(
            replace(p, loss=p.loss + 3.0 * spread if k >= STEPS * 2 / 3 else p.loss) for k, p in enumerate(t)
        )
        for s, t in ahead.items()
    }
    verdict = judge(harmed, base, changes_rng_streams=False)
    assert not verdict.passed
    assert "worse" in verdict.reason


def test_a_script_whose_seeds_change_nothing_is_compared_over_its_last_third() -> None:
    base = {s: learning(0) for s in range(4)}
    early = {
        s: tuple(replace(p, loss=p.loss + (0.5 if k < STEPS / 2 else 1e-6)) for k, p in enumerate(t))
        for s, t in base.items()
    }
    assert judge(early, base, changes_rng_streams=False).passed


def test_beyond_the_usual_runs_a_stricter_bound_counts() -> None:
    def reported(runs: int) -> LossVerdict:
        seeds = range(runs)
        return judge(
            of(seeds, wander_sd=0.02, stream="x"), of(seeds), changes_rng_streams=False, most_runs=MOST_CYCLES
        )

    usual, more = reported(USUAL_RUNS + 2), reported(USUAL_RUNS + 3)
    # One run more knows more, but for the level; the bound would else have become narrower.
    assert more.delay_frac_upper95 - more.delta / more.margin * more.noise_frac > (
        usual.delay_frac_upper95 - usual.delta / usual.margin * usual.noise_frac
    ) * math.sqrt((USUAL_RUNS + 2) / (USUAL_RUNS + 3))


# Cycles for a loss alone --------------------------------------------------------------------------

NEW = Config({"a": 1})


def confirming(cycles: int, *, budget_s: float = 3600.0, trials: int | None = None) -> Study:
    runs = [
        replace(measured(2 * g + k, config, 100.0, Stage.CONFIRM), group=g, seconds=20.0)
        for g in range(1, cycles + 1)
        for k, config in enumerate((Config(), NEW))
    ]
    proposal = spec(budget=Budget(seconds=budget_s, trials=trials))
    return replace(study(), spec=proposal, trials=tuple(runs))


def test_before_any_cycle_there_are_the_usual_ones() -> None:
    assert cycles_left(replace(study(), trials=())) == USUAL_RUNS


def test_the_usual_cycles_are_reckoned_with_whatever_the_budget() -> None:
    assert cycles_left(confirming(4, budget_s=1.0)) == USUAL_RUNS - 4


@pytest.mark.parametrize("left", [0, 3, MOST_CYCLES - USUAL_RUNS])
def test_beyond_them_there_are_as_many_as_fit(left: int) -> None:
    made = confirming(USUAL_RUNS)
    ended_s = max(t.finished_s for t in made.trials)
    budget = Budget(seconds=ended_s + 40.0 * left + 5.0)
    assert cycles_left(replace(made, spec=replace(made.spec, budget=budget))) == left


def test_a_number_of_trials_bounds_them_too() -> None:
    assert cycles_left(confirming(12, trials=24 + 5)) == 2


def test_there_is_an_end_to_them() -> None:
    assert cycles_left(confirming(MOST_CYCLES, budget_s=1e9)) == 0


# A pass that stands -------------------------------------------------------------------------------


def shifted(traces: dict[int, Trace], wild: range, *, worse: float, turns: bool) -> dict[int, Trace]:
    """All but the wild runs are as their seed's to five digits; those differ, to both sides or to one."""

    def by(seed: int) -> float:
        if seed not in wild:
            return 1e-6
        return -worse if turns and seed % 2 else worse

    return {s: tuple(replace(p, loss=p.loss + by(s)) for p in t) for s, t in traces.items()}


def test_what_the_usual_runs_have_shown_stands_when_later_ones_scatter() -> None:
    base = of(range(FULL + 4))
    late = shifted(base, range(FULL, FULL + 4), worse=0.5, turns=True)
    early = shifted(base, range(4), worse=0.5, turns=True)
    assert judge(late, base, changes_rng_streams=False, most_runs=MOST_CYCLES).passed
    assert judge(early, base, changes_rng_streams=False, most_runs=MOST_CYCLES).verdict == "unclear"


def test_it_falls_when_all_runs_show_harm() -> None:
    base = of(range(2 * FULL))
    late = shifted(base, range(FULL, 2 * FULL), worse=0.5, turns=False)
    assert judge(late, base, changes_rng_streams=False, most_runs=MOST_CYCLES).verdict == "fail"
