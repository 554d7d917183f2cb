"""Scatter of the pairs of a confirmation, from a prior and all residuals."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from autotune.compare.noise_model import (
    LEAST_PRIOR,
    PRIOR_DF,
    Scatter,
    pair_scatter,
    prior_scatter,
    screening_gap,
    screening_logs,
)
from autotune.model.config import Config
from autotune.model.measurement import Estimate
from autotune.model.trial import Stage, Trial
from autotune.statistics.intervals import ratio_from, sd
from tests.answer.test_pick import BASE, BOTH, EXACT, Builder

PRIOR = Scatter(0.05, PRIOR_DF)


def figures(found: Scatter) -> tuple[float, float]:
    return found.sd, found.df


def test_prior_and_residuals_count_with_their_degrees_of_freedom() -> None:
    pairs = [0.30, 0.38]
    found = pair_scatter(pairs, floor=0.005, prior=PRIOR, gap=0.06)
    squares = 1 * sd(pairs) ** 2 + 0.06**2 / 1.5 + 2 * 0.05**2
    assert (found.sd, found.df) == (pytest.approx(math.sqrt(squares / 4)), 4)


def test_without_earlier_runs_a_single_pair_has_no_degree_of_freedom() -> None:
    found = pair_scatter([0.3], floor=0.005)
    assert found.df == 0
    assert ratio_from([0.3], found.sd, found.df).high == math.inf


def test_a_single_pair_with_a_prior_has_a_finite_interval() -> None:
    found = pair_scatter([0.3], floor=0.005, prior=PRIOR, gap=0.02)
    interval = ratio_from([0.3], found.sd, found.df, confidence=0.99)
    assert 0.5 < interval.low < math.exp(0.3) < interval.high < 3.0


def test_pairs_that_scatter_clearly_more_than_the_prior_drop_it() -> None:
    pairs = [0.1, 0.7, 0.4]
    assert figures(pair_scatter(pairs, floor=0.005, prior=PRIOR)) == (pytest.approx(sd(pairs)), 2)


def test_a_jump_that_two_agreeing_pairs_hide_shows_in_the_gap_to_screening() -> None:
    """Both pairs read 1.5x, screening 1.02x: the prior is dropped and the interval includes 1."""
    pairs, gap = [0.40, 0.41], 0.385
    found = pair_scatter(pairs, floor=0.005, prior=PRIOR, gap=gap)
    assert found.df == 2
    assert ratio_from(pairs, found.sd, found.df, confidence=0.989).low < 1.0
    trusted = pair_scatter(pairs, floor=0.005, prior=PRIOR, gap=0.01)
    assert ratio_from(pairs, trusted.sd, trusted.df, confidence=0.989).low > 1.0


def test_a_disturbed_screening_does_not_widen_what_three_quiet_pairs_show() -> None:
    pairs = [0.30, 0.31, 0.32]
    found = pair_scatter(pairs, floor=0.005, prior=Scatter(0.5, 2.0), gap=1.5)
    assert figures(found) == (pytest.approx(0.01), 2)


def test_two_pairs_are_too_few_to_call_screening_disturbed() -> None:
    assert pair_scatter([0.30, 0.31], floor=0.005, prior=Scatter(0.5, 2.0)).sd > 0.3


def test_the_residuals_of_other_members_count_unless_the_pairs_scatter_clearly_more() -> None:
    pooled = Scatter(0.03, 6.0)
    assert figures(pair_scatter([0.30, 0.32, 0.31], floor=0.005, pooled=pooled)) == (pytest.approx(0.03), 6)
    assert figures(pair_scatter([0.2, 0.3, 0.4], floor=0.005, pooled=pooled)) == (pytest.approx(0.1), 2)


def test_the_floor_holds_whatever_the_sources_agree_on() -> None:
    quiet = Scatter(LEAST_PRIOR, PRIOR_DF)
    assert pair_scatter([0.3, 0.3, 0.3], floor=0.04, prior=quiet, gap=0.0).sd == 0.04


def test_the_prior_grows_with_the_repeats_and_with_the_error_of_the_windows() -> None:
    def windows(half_width: float) -> list[Trial]:
        window = Estimate(value=100.0, low=100.0 - half_width, high=100.0 + half_width, n=9, unit="samples/s")
        trial = Builder().baseline().study.baseline[0]
        assert trial.measurement is not None
        return [replace(trial, outcome=replace(trial.measurement, throughput=window))]

    agreeing = {BASE: [0.0, 0.001, 0.002]}
    quiet = prior_scatter(agreeing, windows(0.1))
    assert LEAST_PRIOR <= quiet.sd < 0.03
    assert prior_scatter({BASE: [0.0, 0.2, -0.2]}, windows(0.1)).sd > 5 * quiet.sd
    # 19.6 % to either side at 95 % is a standard error of 10 %, and a pair has two windows.
    assert prior_scatter(agreeing, windows(19.6)).sd == pytest.approx(0.1 * math.sqrt(2.0), rel=0.01)
    assert prior_scatter(agreeing, windows(math.inf)).sd == quiet.sd


def test_the_gap_is_the_mean_of_the_pairs_minus_what_screening_read() -> None:
    built = Builder().baseline().screen({BOTH: 150.0}).confirm({BOTH: 200.0}, cycles=3)
    cycles = {
        g: {t.config: t for t in built.study.finished(Stage.CONFIRM) if t.group == g} for g in (1, 2, 3)
    }
    screened = screening_logs(built.study, cycles)
    found = screening_gap(BOTH, screened, cycles)
    assert found == pytest.approx(math.log(200.0 / 150.0), abs=0.05)
    assert screening_gap(Config({"threads": 3}), screened, cycles) is None


def test_the_interval_holds_the_truth_as_often_as_it_says_from_two_pairs_on() -> None:
    """Runs of one scatter; prior from four runs, as a search has at the least."""
    draw, held, studies = random.Random(11), 0, 4000
    for k in range(studies):
        run = 10 ** draw.uniform(-2.0, -0.7)
        screened = {BASE: [draw.gauss(0.0, run) for _ in range(3)], EXACT: [draw.gauss(0.0, run)]}
        pairs = [draw.gauss(0.0, run) - draw.gauss(0.0, run) for _ in range(2 + k % 4)]
        gap = sum(pairs) / len(pairs) - screened[EXACT][0] + sorted(screened[BASE])[1]
        found = pair_scatter(pairs, floor=0.005, prior=prior_scatter(screened, ()), gap=gap)
        interval = ratio_from(pairs, found.sd, found.df, confidence=0.95)
        held += interval.low <= 1.0 <= interval.high
    assert 0.93 <= held / studies <= 0.98
