"""Intervals keep their word, and steady state is not seen where there is none."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.statistics.intervals import (
    Block,
    doubted_start,
    form_blocks,
    is_tight,
    mean_interval,
    ratio_interval,
    ratio_of_log,
    sd_bounds,
    steady_start,
    t_quantile,
    window_estimate,
)


def test_t_quantiles_agree_with_scipy_to_six_digits() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    for p in (0.001, 0.025, 0.3, 0.5, 0.6, 0.9, 0.95, 0.975, 0.99, 0.9975, 0.9999):
        for df in (0.7, 1, 1.5, 2, 3, 4, 7.3, 10, 30, 100, 1e4, 1e8):
            expected = float(scipy_stats.t.ppf(p, df))
            assert t_quantile(p, df) == pytest.approx(expected, rel=1e-6, abs=1e-6), (p, df)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0), (0.9, float("nan"))])
def test_a_t_quantile_outside_its_range_is_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(p, df)


def test_one_value_has_a_mean_but_no_interval() -> None:
    assert mean_interval([3.0]) == (3.0, -math.inf, math.inf)
    assert ratio_interval([0.1]).high == math.inf


def test_three_pairs_that_agree_by_luck_keep_the_floor_of_their_spread() -> None:
    narrow = ratio_interval([0.2, 0.2, 0.2])
    assert narrow.relative_width == pytest.approx(0.0)
    assert ratio_interval([0.2, 0.2, 0.2], tau=0.03).relative_width > 0.1


@pytest.mark.parametrize(
    ("n", "rho", "least"), [(4, 0.0, 0.94), (10, 0.0, 0.94), (10, 0.3, 0.91), (20, 0.3, 0.91)]
)
def test_the_interval_of_a_window_covers_the_truth(n: int, rho: float, least: float) -> None:
    draw, hits, runs = random.Random(f"{n}/{rho}"), 0, 600
    for _ in range(runs):
        noise, blocks = draw.gauss(0, 1), []
        for _ in range(n):
            noise = rho * noise + math.sqrt(1 - rho**2) * draw.gauss(0, 1)
            blocks.append(Block(0.25 * (1 + 0.1 * noise), 100, 10, 0.0, True))
        estimate = window_estimate(blocks, unit="samples/s")
        hits += estimate.low <= 400 <= estimate.high
    # The standard error of the share itself is below 0.012 here.
    assert hits / runs >= least - 0.02


def test_a_window_is_a_ratio_of_sums_so_that_stalls_count() -> None:
    blocks = [Block(1.0, 100, 10, 0.0, True)] * 3 + [Block(3.0, 100, 10, 2.0, True)]
    assert window_estimate(blocks, unit="samples/s").value == pytest.approx(400 / 6)
    assert window_estimate(blocks, unit="s", per_step=True).value == pytest.approx(6 / 40)
    assert window_estimate(blocks, unit="steps/s").value == pytest.approx(40 / 6)


def test_dirty_blocks_count_only_where_there_is_nothing_else() -> None:
    clean, dirty = Block(1.0, 100, 10, 0.0, True), Block(9.0, 100, 10, 0.0, False)
    assert window_estimate([clean, dirty, clean], unit="samples/s").value == pytest.approx(100)
    assert window_estimate([dirty, dirty], unit="samples/s").value == pytest.approx(100 / 9)
    with pytest.raises(ValueError, match="no block"):
        window_estimate([], unit="samples/s")


@given(
    durations=st.lists(st.floats(0.01, 0.6), min_size=1, max_size=60),
    min_steps=st.integers(1, 5),
)
def test_blocks_lose_no_step_and_keep_their_floors(durations: list[float], min_steps: int) -> None:
    end, ends = 0.0, []
    for duration in durations:
        end += duration
        ends.append(end)
    begins = [0.0, *ends[:-1]]
    n = len(ends)
    blocks = form_blocks(begins, ends, [4] * n, [0.001] * n, [False] * n, min_steps=min_steps)
    assert sum(b.steps for b in blocks) == n
    assert sum(b.samples for b in blocks) == 4 * n
    assert sum(b.seconds for b in blocks) == pytest.approx(end)
    if len(blocks) > 1:
        assert all(b.seconds >= 0.25 - 1e-6 and b.steps >= min_steps for b in blocks)


def test_a_dirty_step_spoils_its_block_alone() -> None:
    ends = [0.25 * k for k in range(1, 9)]
    dirty = [k == 3 for k in range(8)]
    blocks = form_blocks([0.0, *ends[:-1]], ends, [1] * 8, [0.0] * 8, dirty)
    assert [b.clean for b in blocks] == [k != 3 for k in range(8)]


def test_a_steady_window_is_rarely_called_anything_else() -> None:
    """False alarms: at most 1 % with independent blocks."""
    draw, alarms, runs = random.Random(5), 0, 1000
    for _ in range(runs):
        _, label = steady_start([100 * math.exp(draw.gauss(0, 0.05)) for _ in range(16)])
        alarms += label != "steady"
    assert alarms / runs <= 0.01


def test_a_slow_start_is_cut_off() -> None:
    first, label = steady_start([50, 70, 90, 100, 101, 99, 100, 100, 102, 99, 100, 101, 100])
    assert label == "steady"
    assert 3 <= first <= 5, "and as much again by half"


def test_a_rate_that_moves_all_the_time_is_not_steady() -> None:
    _, rising = steady_start([100 + 3 * k for k in range(20)])
    assert rising != "steady"
    _, settling = steady_start([100 * (1 - 0.9 * 2 ** (-k / 8)) for k in range(20)])
    assert settling == "no_steady_state"


def test_a_few_blocks_are_taken_as_they_are() -> None:
    assert steady_start([1.0, 2.0, 3.0]) == (0, "steady")


def test_a_spread_of_few_values_is_known_as_little_as_chi_square_says() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    for df in (4, 6, 13, 50):
        low, high = sd_bounds(1.0, df)
        assert low == pytest.approx(math.sqrt(df / float(scipy_stats.chi2.ppf(0.95, df))), rel=0.03)
        assert high == pytest.approx(math.sqrt(df / float(scipy_stats.chi2.ppf(0.05, df))), rel=0.03)
    assert sd_bounds(1.0, 0) == (0.0, math.inf)
    assert sd_bounds(0.0, 3) == (0.0, 0.0)


def blocks_of(values: Sequence[float]) -> list[Block]:
    return [Block(0.25 * value, 100, 10, 0.0, True) for value in values]


def test_an_interval_that_is_narrow_by_luck_is_not_tight() -> None:
    """Who looks until it is narrow meets the few blocks that happen to be alike."""
    draw = random.Random(2)
    few = blocks_of([1.0, 1.01, 0.99, 1.012, 0.985, 1.003])
    many = blocks_of([1.0 + 0.02 * draw.gauss(0, 1) for _ in range(200)])
    for blocks, lucky, ample in ((few, 1.3, 2.0), (many, 1.0, 1.25)):
        width = window_estimate(blocks, unit="samples/s").relative_width
        assert not is_tight(blocks, 1.001 * lucky * width, unit="samples/s"), "the spread may be larger"
        assert is_tight(blocks, ample * width, unit="samples/s")
    per_step = window_estimate(many, unit="s", per_step=True).relative_width
    assert is_tight(many, 1.25 * per_step, unit="s", per_step=True)
    assert is_tight(blocks_of([1.0] * 6), 0.0, unit="samples/s"), "nothing varies"


def test_a_window_that_ends_as_soon_unchanged_tight_still_covers_the_truth() -> None:
    held, held_by_width, runs = 0, 0, 400
    for k in range(runs):
        draw = random.Random(k)
        values = [math.exp(draw.gauss(-0.001, 0.045)) for _ in range(120)]
        looks = (6, 8, 10, 13, 17, 22, 29, 38, 49, 64, 83, 108)
        tight = next((n for n in looks if is_tight(blocks_of(values[:n]), 0.05, unit="samples/s")), 0)
        narrow = next((n for n in looks if _width(values[:n]) <= 0.05), 0)
        assert tight >= narrow > 0
        found = window_estimate(blocks_of(values[:tight]), unit="samples/s", is_stopped=True)
        assert found.relative_width <= 0.05
        held += found.low <= 400 <= found.high
        found = window_estimate(blocks_of(values[:narrow]), unit="samples/s")
        held_by_width += found.low <= 400 <= found.high
    assert held / runs >= 0.94
    assert held_by_width / runs < 0.92, "as it was"


def _width(values: Sequence[float]) -> float:
    return window_estimate(blocks_of(values), unit="samples/s").relative_width


def test_a_start_that_may_be_none_is_cut_and_the_interval_holds_either_way() -> None:
    waves = [1.05, 1.04, 1.02, 1.0, 0.97, 0.96, 0.97, 1.0, 1.03]
    low, high = doubted_start(blocks_of([1.11, 1.11, 1.11, *waves]), 3)
    assert low < 0.95
    assert high >= 1.0
    whole = window_estimate(blocks_of([1.11, 1.11, 1.11, *waves]), unit="samples/s")
    left = window_estimate(blocks_of(waves), unit="samples/s")
    assert low * left.value == pytest.approx(whole.low)


def test_a_start_beyond_doubt_is_no_part_of_the_interval() -> None:
    steady = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 0.99, 1.01, 1.0, 1.02, 0.99, 0.98]
    assert doubted_start(blocks_of([2.0, 1.6, 1.3, *steady]), 3) == (1.0, 1.0)
    assert doubted_start(blocks_of(steady), 0) == (1.0, 1.0)
    assert doubted_start(blocks_of(steady), len(steady) - 1) == (1.0, 1.0), "nothing to compare it with"


def test_an_end_too_large_for_a_number_is_infinity() -> None:
    ratio = ratio_of_log(0.1, 1e100, 3)
    assert (ratio.low, ratio.high, ratio.n) == (0.0, math.inf, 3)
    assert ratio_of_log(0.0, 709.0, 3).high == pytest.approx(math.exp(709.0))
