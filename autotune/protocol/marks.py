"""What a step's mark says of its time: one rule for the trial's own stop decision and for the launcher.

Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EVALUATION, COMPILE = 1, 2
EVALUATION_OWN_COST_FRAC = 0.5
COMPILE_OWN_COST_FRAC = 0.25


def spoiled(marks: Sequence[int]) -> tuple[bool, ...]:
    """Which steps of a window hold time that is no training.

    An evaluation or a compile inside a step spoils it. Where more than half of the steps evaluate,
    or more than a quarter compile, that is no accident but a part of the step, and counts.

    Args:
        marks: `autotune.protocol.events.StepRow.mark` of every step of the window.
    """
    bits = 0
    for bit, most in ((EVALUATION, EVALUATION_OWN_COST_FRAC), (COMPILE, COMPILE_OWN_COST_FRAC)):
        if sum(1 for mark in marks if mark & bit) <= most * len(marks):
            bits |= bit
    return tuple(bool(mark & bits) for mark in marks)
