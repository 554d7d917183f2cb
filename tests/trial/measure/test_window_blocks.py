"""Blocks that are formed as a window grows are those of the whole window."""

from __future__ import annotations

import random

import pytest

from autotune.statistics.intervals import form_blocks
from autotune.trial.measure.window_blocks import Row, WindowBlocks

BEGIN_NS = 7_000_000_000


def steps(seed: int, count: int) -> list[Row]:
    """Steps of 2 to 400 ms, with waits and samples of their own."""
    draw, now, found = random.Random(seed), BEGIN_NS, list[Row]()
    for _ in range(count):
        period = int(draw.choice((2e6, 3e7, 4e8)) * draw.uniform(0.8, 1.2))
        now += period
        found.append((now, int(period * draw.random()), draw.randint(1, 64), draw.choice((0, 0, 8)), 0))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_they_are_those_that_the_whole_window_has(seed: int) -> None:
    draw = random.Random(f"looks {seed}")
    rows = steps(seed, draw.randint(1, 300))
    least_s, most_workers = draw.choice((0.05, 0.25)), draw.choice((1, 1, 2, 4))
    forming, seen = WindowBlocks(BEGIN_NS, least_s, most_workers), 0
    while seen < len(rows):
        seen = min(len(rows), seen + draw.randint(1, 60))
        shown = rows[:seen]
        assert forming.knows(shown)
        begins, blocks = forming.of(shown)
        ends_s = [(row[0] - BEGIN_NS) / 1e9 for row in shown]
        whole = form_blocks(
            [0.0, *ends_s[:-1]],
            ends_s,
            [row[2] for row in shown],
            [row[1] / 1e9 for row in shown],
            [False] * seen,
            min_block_s=least_s,
            min_steps=most_workers,
        )
        assert [(b.samples, b.steps, b.clean) for b in blocks] == [
            (b.samples, b.steps, b.clean) for b in whole
        ]
        for mine, other in zip(blocks, whole, strict=True):
            assert mine.seconds == pytest.approx(other.seconds, rel=1e-9)
            assert mine.wait_s == pytest.approx(other.wait_s, rel=1e-9)
        firsts = [sum(b.steps for b in blocks[:k]) for k in range(len(blocks))]
        assert begins == tuple(shown[k - 1][0] if k else BEGIN_NS for k in firsts)


@pytest.mark.parametrize("mark", [1, 2, 3 | 8])
def test_a_step_that_evaluates_or_compiles_is_reported_for_good(mark: int) -> None:
    rows = steps(0, 50)
    rows[20] = (*rows[20][:3], mark, 0)
    forming = WindowBlocks(BEGIN_NS, 0.25, 1)
    assert forming.knows(rows[:20])
    assert not forming.knows(rows[:21])
    assert not forming.knows(rows)
