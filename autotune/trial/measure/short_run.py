"""Which steps of a run are timed where there is no room for the usual warm-up and window. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.statistics import intervals
from autotune.trial.runtime.state import ALLOCATOR, COMPILE, EVALUATION, LOADER, NEW_SHAPE, ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.trial.measure.window_blocks import Row

FIRST_STEPS = 2
"""Steps at the start of a process that say nothing of the others: memory, kernels and workers are new."""
_DROPPED_FRAC = 0.25
_MOST_DROPPED = 6
"""After so many steps the usual warm-up lets a window open, too."""
_FEWEST_SLOW = 3
SLOW_S = 1.0
"""Seconds that slow steps last together before they are believed. Kernels that are chosen on first use, and
short disturbances, make a dozen quick steps slow."""
_SLOW_FRAC = 0.5
"""Of the time of all steps that are alike: more of it was slow than was not."""
_BEYOND_DOUBT = 2.0
_UNLIKE = EVALUATION | COMPILE | LOADER | NEW_SHAPE | ALLOCATOR | ROLLOUT
"""Marks of steps that are slow for a reason of their own."""


def first_timed(marks: Sequence[int]) -> int:
    """Index of the first step that is timed; all after it are, too.

    The first quarter of the steps is dropped, at least one and at most six, and so is what precedes the
    last compile. Whole epochs are timed where at least half of the steps remain: the start of a loader
    then counts once an epoch, as it does in the training.

    Args:
        marks: `autotune.protocol.events.StepRow.mark` of every step of the run.
    """
    count = len(marks)
    first = min(max(1, int(_DROPPED_FRAC * count)), _MOST_DROPPED)
    compiled = [index for index in range(first, count - 1) if marks[index] & COMPILE]
    first = compiled[-1] + 1 if compiled else first
    starts = (index for index in range(first, count) if marks[index] & LOADER)
    epoch = next(starts, first)
    return epoch if 2 * epoch <= count else first


def slow_steps(steps: Sequence[tuple[Row, float]], bar: float, *, long_s: float) -> int:
    """How many of the last steps show beyond doubt a rate below a bar; 0 where they do not.

    Args:
        steps: All steps so far that are timed, with their periods in seconds.
        bar: Samples per second.
        long_s: Two steps that last so long together are enough; three are, else.
    """
    blocks: list[intervals.Block] = []
    for row, period_s in reversed(steps):
        if not _is_alike(row, period_s) or row[2] >= bar * period_s:
            break
        blocks.append(intervals.Block(seconds=period_s, samples=row[2], steps=1, wait_s=0.0, clean=True))
    slow_s = sum(block.seconds for block in blocks)
    whole_s = sum(period_s for row, period_s in steps if _is_alike(row, period_s))
    if slow_s < max(SLOW_S, _SLOW_FRAC * whole_s) or len(blocks) < (2 if slow_s >= long_s else _FEWEST_SLOW):
        return 0
    rate = intervals.window_estimate(blocks[::-1], unit="samples/s")
    return len(blocks) if rate.value + _BEYOND_DOUBT * (rate.high - rate.value) < bar else 0


def _is_alike(row: Row, period_s: float) -> bool:
    """Whether the duration of a step has no reason of its own, such as a compile or an evaluation."""
    return not row[3] & _UNLIKE and period_s > 0.0 and row[2] > 0
