"""Choice of the timed steps in runs too short for the usual warm-up and window. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.statistics import intervals
from autotune.trial.runtime.state import ALLOCATOR, COMPILE, EVALUATION, LOADER, NEW_SHAPE, ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.trial.measure.window_blocks import Row

FIRST_STEPS = 2
"""Start-up steps of a process, not representative: memory, kernels and workers are new."""
_DROPPED_FRAC = 0.25
_MOST_DROPPED = 6
"""Number of steps after which the usual warm-up lets a window open, too."""
_FEWEST_SLOW = 3
SLOW_S = 1.0
"""Least total duration of slow steps as evidence.

Kernel selection on first use, and short disturbances, make a dozen quick steps slow.
"""
_SLOW_FRAC = 0.5
"""Share of the time of all comparable steps that was slow: more than half."""
_BEYOND_DOUBT = 2.0
_UNLIKE = EVALUATION | COMPILE | LOADER | NEW_SHAPE | ALLOCATOR | ROLLOUT
"""Marks of steps with a known reason to be slow."""


def first_timed(marks: Sequence[int]) -> int:
    """Return the index of the first timed step; all later ones are timed, too.

    The first quarter of the steps is dropped, at least one and at most six, and so are the steps up to the
    last compile. Whole epochs are timed if at least half of the steps remain: the start of a loader then
    counts once per epoch, as in the training.

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
    """Return how many of the last steps clearly have a rate below a bar; 0 if they do not.

    Args:
        steps: All timed steps so far, with their periods in seconds.
        bar: Samples per second.
        long_s: Total duration from which two steps are enough; else three are needed.
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
    """Return whether a step's duration has no special reason, such as a compile or an evaluation."""
    return not row[3] & _UNLIKE and period_s > 0.0 and row[2] > 0
