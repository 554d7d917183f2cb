"""Whether more runs could still clear a loss that the runs so far leave unclear."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import loss_trace

from autotune.loss.loss_guard import LossVerdict, judge
from autotune.loss.non_inferiority import USUAL_RUNS
from autotune.model.measurement import LossPoint

Traces = dict[int, tuple[LossPoint, ...]]
BASE: Traces = {seed: loss_trace(seed=seed) for seed in range(14)}


def shifted(shifts: list[float]) -> Traces:
    """The baseline's own runs, each that much worse in every point."""
    return {
        seed: tuple(replace(p, loss=p.loss + shift) for p in BASE[seed]) for seed, shift in enumerate(shifts)
    }


def judged(shares: list[float]) -> LossVerdict:
    """Differences in units of the margin that the baseline's runs give."""
    known = judge(shifted([0.01, -0.01]), BASE, changes_rng_streams=False).margin
    assert known > 0
    return judge(shifted([share * known for share in shares]), BASE, changes_rng_streams=False)


def test_few_runs_that_differ_much_may_still_be_cleared_by_more() -> None:
    verdict = judged([1.2, -1.0, 0.1])
    assert verdict.verdict == "unclear"
    assert verdict.can_clear
    assert "More runs would tell" in verdict.reason


def test_what_lies_near_the_margin_in_every_run_is_not_cleared_by_more() -> None:
    verdict = judged([1.0, 1.02, 0.98, 1.01])
    assert verdict.verdict == "unclear"
    assert not verdict.can_clear
    assert "unlikely" in verdict.reason


def test_many_runs_that_differ_much_leave_too_few_to_come() -> None:
    wide = [3.0, -2.4] * (USUAL_RUNS // 2 - 1)
    assert judged(wide[:4]).can_clear
    late = judged(wide)
    assert late.verdict == "unclear"
    assert not late.can_clear


@pytest.mark.parametrize("shares", [[0.1, 0.12, 0.08, 0.1], [3.0, 3.1, 2.9, 3.0]])
def test_what_is_clear_is_not_called_hopeless(shares: list[float]) -> None:
    verdict = judged(shares)
    assert verdict.verdict != "unclear"
    assert verdict.can_clear


def test_a_loss_that_does_not_fall_clears_nothing() -> None:
    flat = {s: loss_trace(seed=s, stuck=True) for s in range(6)}
    rising = {
        s: tuple(replace(p, loss=p.loss + 1e-4 * p.samples) for p in trace) for s, trace in flat.items()
    }
    slower = {s: tuple(replace(p, loss=p.loss + 0.01 * s) for p in trace) for s, trace in rising.items()}
    verdict = judge({s: slower[s] for s in range(4)}, rising, changes_rng_streams=False)
    assert verdict.verdict == "unclear"
    assert not verdict.can_clear


def test_traces_that_are_too_short_stay_so_and_runs_that_are_missing_may_come() -> None:
    short = {s: trace[:3] for s, trace in BASE.items()}
    assert judge({0: short[0]}, BASE, changes_rng_streams=False).can_clear
    assert not judge({s: short[s] for s in range(3)}, BASE, changes_rng_streams=False).can_clear
    assert not judge(
        {s: BASE[s] for s in range(3)}, {s: short[s] for s in range(4)}, changes_rng_streams=False
    ).can_clear
    assert judge({}, BASE, changes_rng_streams=False).can_clear
