"""The time to equal loss: what learns otherwise is timed right, and what never gets there is not claimed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from search_world import loss_trace

from autotune.compare.alpha_spending import claim_interval
from autotune.compare.loss_verdicts import level_two
from autotune.compare.noise_model import pair_scatter
from autotune.loss.time_to_loss import EqualLoss, equal_loss
from autotune.model.measurement import LossPoint
from autotune.statistics.intervals import ratio_interval

Level = Callable[[float], float]
Trace = tuple[LossPoint, ...]
STEPS, BATCH, SEED_SD = 80, 32, 0.03


def steep(k: float) -> float:
    return 0.3 + 2.0 * math.exp(-k / 40.0)


def flat(k: float) -> float:
    """Hardly falls any more from the middle of the run on."""
    return 0.3 + 2.0 * math.exp(-k / 12.0)


def powerful(k: float) -> float:
    return 0.3 + 2.0 * (1.0 + k / 3.0) ** -0.7


CURVES = pytest.mark.parametrize("level", [steep, flat, powerful])


def run(level: Level, draw: random.Random, steps: int, shift: float, batch_sd: float = 0.05) -> Trace:
    """A run whose loss drifts from the curve by what its seed brings, and shakes by its batches."""
    points: list[LossPoint] = []
    for k in range(1, steps + 1):
        loss = level(k) + shift * k / STEPS + draw.gauss(0.0, batch_sd) * level(k) / 2
        points.append(LossPoint(samples=k * BATCH, loss=loss, t_s=0.05 * k))
    return tuple(points)


def pairs(level: Level, ours: Level, draw: random.Random, rate: float = 1.0, n: int = 10) -> EqualLoss:
    """Of a config with this curve, half as many samples more, and so much of the script's rate."""
    candidate: dict[int, Trace] = {}
    baseline: dict[int, Trace] = {}
    for pair in range(n):
        shift = draw.gauss(0.0, SEED_SD)
        own = 0.5 * shift + math.sqrt(0.75) * draw.gauss(0.0, SEED_SD)
        baseline[pair] = run(level, draw, STEPS, shift)
        candidate[pair] = run(ours, draw, 3 * STEPS // 2, own)
    found = equal_loss(candidate, baseline, dict.fromkeys(range(n), math.log(rate)), most_runs=n)
    assert found is not None
    return found


def claims(found: EqualLoss) -> bool:
    """By the last look, without noise of the machine."""
    if not found.logs or not found.keeps_up:
        return False
    logs = list(found.logs.values())
    return claim_interval(logs, 1.0, pair_scatter(logs, floor=0.005))[0].low > 1.0


def test_equal_losses_at_another_rate_are_as_much_sooner() -> None:
    base = {s: loss_trace(seed=s, batch_sd=0.02) for s in range(4)}
    found = equal_loss(base, base, dict.fromkeys(base, math.log(2.0)))
    assert found is not None
    assert sorted(found.logs) == [0, 1, 2, 3]
    assert list(found.logs.values()) == pytest.approx([math.log(2.0)] * 4, abs=1e-6)
    assert found.keeps_up


@CURVES
@pytest.mark.parametrize("learns", [0.6, 0.75, 1.0, 1.3])
def test_what_learns_otherwise_per_sample_is_timed_by_its_curve(level: Level, learns: float) -> None:
    quiet = {k: run(level, random.Random(k), STEPS, 0.0, batch_sd=0.0) for k in range(3)}
    other = {k: run(lambda s: level(s * learns), random.Random(k), 120, 0.0, batch_sd=0.0) for k in range(3)}
    found = equal_loss(other, quiet, dict.fromkeys(range(3), 0.0))
    assert found is not None
    assert [math.exp(v) for v in found.logs.values()] == pytest.approx([learns] * 3, rel=0.03)


@CURVES
def test_the_interval_holds_the_truth_as_often_as_it_says(level: Level) -> None:
    held = 0
    for k in range(60):
        found = pairs(level, lambda s: level(s * 0.9), random.Random(f"{level.__name__}/{k}"))
        reported = ratio_interval(list(found.logs.values()), confidence=0.95)
        held += reported.low <= 0.9 <= reported.high
    assert held >= 53


@CURVES
def test_a_single_run_that_misses_bars_no_config_that_learns_the_same(level: Level) -> None:
    shown = [pairs(level, level, random.Random(k), 2.0) for k in range(40)]
    # Where nothing falls any more, ten pairs do not always show that a loss is the same.
    assert sum(map(claims, shown)) >= (24 if level is flat else 38)


@CURVES
@pytest.mark.parametrize("margins", [1.0, 2.0, 4.0])
def test_a_plateau_above_the_scripts_loss_is_not_claimed_at_twice_the_rate(
    level: Level, margins: float
) -> None:
    """The script's seeds differ by `SEED_SD` at the end of its run; the part compared is before."""
    late = sum(map(level, range(53, 65))) / 12 + margins * SEED_SD
    claimed = sum(
        claims(pairs(level, lambda s: max(level(s), late), random.Random(k), 2.0)) for k in range(60)
    )
    assert claimed <= (3 if margins == 1.0 else 0)


@CURVES
@pytest.mark.parametrize("rate", [1.2, 1.5, 2.0])
def test_a_higher_rate_that_learns_less_for_it_is_not_claimed(level: Level, rate: float) -> None:
    learns = 0.9 / rate
    claimed = sum(
        claims(pairs(level, lambda s: level(s * learns), random.Random(k), rate)) for k in range(60)
    )
    assert claimed <= 1


def test_a_loss_that_never_falls_reaches_nothing() -> None:
    base = {s: loss_trace(seed=s, batch_sd=0.02) for s in range(4)}
    stuck = {s: loss_trace(seed=s, stuck=True) for s in base}
    found = equal_loss(stuck, base, dict.fromkeys(base, math.log(4.0)))
    assert found is not None
    assert not found.logs
    assert not found.keeps_up
    assert not found.may_clear
    rising = {s: tuple(replace(p, loss=4.0 - p.loss) for p in t) for s, t in base.items()}
    assert equal_loss(base, rising, dict.fromkeys(base, math.log(4.0))) is None


def test_one_run_that_learns_nothing_is_not_averaged_away() -> None:
    base = {k: run(steep, random.Random(k), STEPS, 0.0) for k in range(10)}
    ours = {k: run(steep, random.Random(-k), 120, 0.0) for k in base}
    rates = dict.fromkeys(base, math.log(2.0))
    whole = equal_loss(ours, base, rates)
    lost = equal_loss({**ours, 3: run(lambda _: 2.3, random.Random(3), 120, 0.0)}, base, rates)
    assert whole is not None
    assert lost is not None
    assert claims(whole)
    assert not claims(lost)


def test_a_script_whose_loss_only_shakes_is_not_outrun_by_rate() -> None:
    claimed = 0
    for k in range(60):
        draw = random.Random(k)
        base, ours = ({p: run(lambda _: 2.3, draw, n, 0.0) for p in range(10)} for n in (STEPS, 120))
        found = equal_loss(ours, base, dict.fromkeys(base, math.log(2.0)))
        claimed += found is not None and claims(found)
    assert claimed <= 2


def test_a_run_that_ended_early_bars_the_config_for_good() -> None:
    base = {s: loss_trace(seed=s, batch_sd=0.02) for s in range(4)}
    found = equal_loss({**base, 2: base[2][:20]}, base, dict.fromkeys(base, math.log(2.0)), most_runs=12)
    assert found is not None
    assert (found.logs, found.may_clear) == ({}, False)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("bad", ["nan", "short", "none"])
def test_a_loss_that_is_no_number_or_too_short_reports_nothing(side: int, bad: str) -> None:
    base = {s: loss_trace(seed=s, batch_sd=0.02) for s in range(4)}
    nan = (*base[2][:30], replace(base[2][30], loss=math.nan), *base[2][31:])
    sides = [base, base]
    sides[side] = {**base, 2: {"nan": nan, "short": base[2][:5], "none": ()}[bad]}
    assert equal_loss(sides[0], sides[1], dict.fromkeys(base, math.log(2.0))) is None
    assert equal_loss({}, base, {}) is None


def test_a_script_run_that_is_much_shorter_takes_its_pair_along() -> None:
    base = {s: loss_trace(seed=s, batch_sd=0.02) for s in range(4)}
    found = equal_loss(base, {**base, 2: base[2][:20]}, dict.fromkeys(base, math.log(2.0)))
    assert found is not None
    assert sorted(found.logs) == [0, 1, 3]


def test_runs_of_the_script_that_are_in_no_pair_tell_its_noise_better() -> None:
    base = {k: run(steep, random.Random(k), STEPS, 0.01 * k) for k in range(3)}
    more = [run(steep, random.Random(k), STEPS, 0.3 * k) for k in (3, 4)]
    rates = dict.fromkeys(base, 0.0)
    few, many = (equal_loss(base, base, rates, others=others) for others in ((), more))
    assert few is not None
    assert many is not None
    assert many.margin > 2.0 * few.margin
    short = [t[:40] for t in more]
    assert equal_loss(base, base, rates, others=short) == few


def test_a_look_before_the_last_asks_for_more() -> None:
    found = [pairs(flat, flat, random.Random(k), n=5) for k in range(40)]
    early, late = (sum(f.keeps_up_early for f in found), sum(f.keeps_up for f in found))
    assert early < late
    assert all(f.keeps_up for f in found if f.keeps_up_early)


def test_every_end_of_it_has_a_sentence_that_says_so() -> None:
    passed = EqualLoss(
        logs={k: math.log(1.5) for k in range(5)},
        delta=-0.1,
        most=-0.05,
        margin=0.02,
        keeps_up=True,
        keeps_up_early=True,
        may_clear=True,
    )
    verdict = level_two(passed)
    assert (verdict.level, verdict.verdict, verdict.delta, verdict.margin) == (2, "pass", -0.1, 0.02)
    assert verdict.reason == "It reaches the baseline's loss 1.50 times as fast, 5 pairs."
    behind = replace(passed, keeps_up=False, most=0.034, may_clear=False)
    verdict = level_two(behind)
    assert (verdict.verdict, verdict.can_clear) == ("unclear", False)
    assert verdict.reason == (
        "It reaches the baseline's loss 1.50 times as fast, 5 pairs, but late in a run of the same time its "
        "loss may be above the baseline's by up to 0.034; the script's own noise allows 0.02, itself an "
        "estimate. More runs are unlikely to change this."
    )
    first = level_two(replace(passed, logs={1: 0.1}, keeps_up=False, most=math.inf))
    assert (first.verdict, first.can_clear) == ("unclear", True)
    assert first.reason == "It reaches the baseline's loss 1.11 times as fast, 1 pair."
    missed = level_two(replace(behind, logs={}, may_clear=True))
    assert (missed.verdict, missed.can_clear) == ("unclear", True)
    assert missed.reason.startswith("On average it did not reach the baseline's loss within its runs.")
    unseen = level_two(None)
    assert (unseen.verdict, unseen.can_clear) == ("unclear", False)
    assert "too few losses" in unseen.reason
