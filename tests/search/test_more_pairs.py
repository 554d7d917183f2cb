"""Cycles beyond the usual ones for a gain that more pairs may prove, and for none that they hardly can."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from one_change import RUN_S, confirmed, cycles
from search_world import measurement

from autotune.answer.pick import answer
from autotune.compare.alpha_spending import LATE_LOOK_PAIRS
from autotune.compare.comparison import compare
from autotune.compare.extension import MOST_CYCLES, goes_on
from autotune.loss.non_inferiority import USUAL_RUNS
from autotune.model.effect import Effect
from autotune.model.measurement import Measurement
from autotune.model.study import Budget, Study
from autotune.model.trial import Proposal, Stage

SCATTER = 0.1
"""Of runs of one config, in ln rate, as on a machine that others use too."""
AFTER_USUAL_S = 2 * RUN_S * USUAL_RUNS


def searched(budget_s: float, *, gain: float, seed: int, scatter: float = SCATTER) -> Study:
    """A search from its screening on, of one change that leaves the arithmetic and gains so much."""
    draw = random.Random(seed)

    def outcome(_study: Study, proposal: Proposal) -> Measurement:
        rate = 100.0 * (1.0 + gain if proposal.config else 1.0)
        return measurement(rate * math.exp(draw.gauss(0.0, scatter)))

    return confirmed(budget_s, Effect.EXACT, outcome)


@pytest.mark.thorough
def test_a_gain_that_the_usual_pairs_cannot_prove_is_proved_where_there_is_time() -> None:
    short = [searched(AFTER_USUAL_S + 5 * RUN_S, gain=0.07, seed=seed) for seed in range(12)]
    long = [searched(3600.0, gain=0.07, seed=seed) for seed in range(12)]
    assert all(cycles(study) <= USUAL_RUNS for study in short)
    assert all(cycles(study) <= MOST_CYCLES for study in long)
    assert any(cycles(study) > USUAL_RUNS for study in long)
    proved = [sum(answer(study).is_better for study in some) for some in (short, long)]
    assert proved[1] >= proved[0] + 3


def test_a_search_ends_with_the_late_look_that_proves_its_gain() -> None:
    ended = [searched(3600.0, gain=0.09, seed=seed) for seed in range(12)]
    late = [s for s in ended if cycles(s) > USUAL_RUNS and answer(s).is_better and cycles(s) < MOST_CYCLES]
    assert late
    assert {cycles(study) for study in late} == {LATE_LOOK_PAIRS[-1]}


def test_what_hardly_has_a_chance_gets_no_more_than_the_usual_pairs() -> None:
    ended = [searched(3600.0, gain=0.0, seed=seed) for seed in range(20)]
    more = [study for study in ended if cycles(study) > USUAL_RUNS]
    assert len(more) < 10
    assert not any(answer(study).is_better for study in ended)
    for study in ended:
        (found,) = compare(study) if cycles(study) == USUAL_RUNS else (None,)
        assert found is None or found.speedup.low <= 1.0


def test_on_a_quiet_machine_nothing_is_gone_on_with() -> None:
    ended = searched(3600.0, gain=0.07, seed=0, scatter=0.003)
    assert answer(ended).is_better
    assert cycles(ended) <= USUAL_RUNS


@pytest.mark.parametrize(("more", "does"), [(7, False), (8, True)])
def test_whether_there_is_room_is_settled_when_the_usual_cycles_end(more: int, does: bool) -> None:
    long = next(s for s in (searched(3600.0, gain=0.07, seed=n) for n in range(12)) if cycles(s) > USUAL_RUNS)
    usual = replace(long, trials=tuple(t for t in long.trials if t.group <= USUAL_RUNS))
    ended_s = max(t.finished_s for t in usual.finished(Stage.CONFIRM))
    budget = Budget(seconds=ended_s + more * 2 * RUN_S + 0.5)
    for study in (usual, long):
        assert goes_on(replace(study, spec=replace(study.spec, budget=budget))) is does
    early = replace(usual, trials=tuple(t for t in usual.trials if t.group < USUAL_RUNS))
    assert not goes_on(early)
