"""The chance of a false win, shared out over finalists and looks."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy.stats import t as student

from autotune.compare.alpha_spending import (
    FALSE_WINS,
    LATE_LOOK_PAIRS,
    LOOK_PAIRS,
    claim_interval,
    finalist_share,
    pairs_wanted,
)
from autotune.compare.extension import MOST_CYCLES
from autotune.compare.noise_model import Scatter, pair_scatter
from autotune.statistics.intervals import ratio_from


@pytest.mark.parametrize("finalists", [1, 2, 3, 7])
def test_the_shares_of_all_finalists_add_up_to_the_whole_and_the_leaders_is_the_largest(
    finalists: int,
) -> None:
    shares = [finalist_share(place, finalists) for place in range(finalists)]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] == max(shares)


def test_the_chances_of_all_looks_add_up_to_the_whole() -> None:
    levels = []
    for pairs in (*LOOK_PAIRS, 12):
        clear = [0.5 + 0.001 * (-1) ** k for k in range(pairs)]
        found, is_early = claim_interval(clear, 1.0, pair_scatter(clear, floor=0.005))
        assert is_early is (pairs in LOOK_PAIRS)
        levels.append((1.0 - found.confidence) / 2.0)
    assert sum(levels) == pytest.approx(FALSE_WINS)
    assert levels == sorted(levels)


def test_a_ratio_that_an_interim_analysis_cannot_show_is_reported_at_the_level_of_the_last() -> None:
    pairs = [0.04, 0.08, 0.02]
    found, is_early = claim_interval(pairs, 1.0, pair_scatter(pairs, floor=0.005))
    assert not is_early
    more = [*pairs, 0.05]
    last, _ = claim_interval(more, 1.0, pair_scatter(more, floor=0.005))
    assert found.confidence == last.confidence


def test_a_study_in_which_nothing_differs_claims_a_gain_in_two_of_a_hundred_at_the_most() -> None:
    """Three finalists, each looked at whenever it may be."""
    draw, wins, studies = random.Random(3), 0, 2000
    for _ in range(studies):
        claimed = False
        for place in range(3):
            pairs, share = [draw.gauss(0.0, 0.04) for _ in range(10)], finalist_share(place, 3)
            looks = [
                n
                for n in LOOK_PAIRS
                if claim_interval(pairs[:n], share, pair_scatter(pairs[:n], floor=0.0))[1]
            ]
            end = looks[0] if looks else 10
            found, is_early = claim_interval(pairs[:end], share, pair_scatter(pairs[:end], floor=0.0))
            claimed = claimed or (found.low > 1.0 and (end == 10 or is_early))
        wins += claimed
    assert wins / studies < 0.025


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_where_confirmation_goes_on_all_looks_together_err_in_two_of_a_hundred_at_the_most(
    share: float,
) -> None:
    """Of a normal sample every number of pairs at which a claim may end it, by its own scatter."""
    studies, looks = 200_000, (*LOOK_PAIRS, *LATE_LOOK_PAIRS, MOST_CYCLES)
    pairs = np.random.default_rng(7).standard_normal((studies, MOST_CYCLES))
    claimed = np.zeros(studies, dtype=bool)
    for n in looks:
        clear = [1.0 + 0.001 * (-1) ** k for k in range(n)]
        found, is_early = claim_interval(clear, share, pair_scatter(clear, floor=0.0), goes_on=True)
        assert is_early is (n != MOST_CYCLES)
        seen = pairs[:, :n]
        limit = student.ppf((1.0 + found.confidence) / 2.0, n - 1)
        claimed |= seen.mean(axis=1) > limit * seen.std(axis=1, ddof=1) / math.sqrt(n)
    assert 0.9 * FALSE_WINS * share < claimed.mean() < FALSE_WINS * share + 0.0005


def test_a_late_look_has_a_level_of_its_own_only_where_confirmation_goes_on() -> None:
    pairs = [0.06, 0.02] * 6
    usual, ends = claim_interval(pairs, 1.0, pair_scatter(pairs, floor=0.005))
    late, looks = claim_interval(pairs, 1.0, pair_scatter(pairs, floor=0.005), goes_on=True)
    assert (ends, looks) == (False, True)
    assert late.confidence > usual.confidence
    assert late.low < usual.low
    nothing = [0.06, -0.06] * 6
    found, looks = claim_interval(nothing, 1.0, pair_scatter(nothing, floor=0.005), goes_on=True)
    assert not looks
    assert found.confidence == late.confidence


def test_as_many_pairs_as_are_wanted_show_the_gain_and_one_less_does_not() -> None:
    apart = [0.05, 0.03, 0.06, 0.01]
    wanted = pairs_wanted(apart, 0.5, Scatter(0.03, 9.0), most=12)
    assert wanted is not None
    assert wanted > 4
    mean = sum(apart) / 4
    level = 1.0 - 2.0 * FALSE_WINS * 0.5 * 0.55
    for pairs, shows in ((wanted, True), (wanted - 1, False)):
        found = ratio_from([mean] * pairs, 0.03, 9.0 + pairs - 4, confidence=level)
        assert (found.low > 1.0) is shows


def test_no_number_of_pairs_shows_what_reads_slower_or_hardly_differs() -> None:
    def wanted(pairs: list[float], floor: float) -> int | None:
        return pairs_wanted(pairs, 1.0, pair_scatter(pairs, floor=floor), most=12)

    assert wanted([-0.01, -0.02, 0.0], 0.01) is None
    assert wanted([0.05, -0.05, 0.01], 0.05) is None
    assert wanted([0.5], 0.05) is None
