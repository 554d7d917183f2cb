"""Training time of steps by their marks: one rule for the trial's stop decision and the launcher.

Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EVALUATION, COMPILE = 1, 2
_DISTINCT = EVALUATION | COMPILE
LOADER = 16
EVALUATION_OWN_COST_FRAC = 0.5
COMPILE_OWN_COST_FRAC = 0.25


def evaluation_counts(marks: Sequence[int]) -> bool:
    """Return whether evaluation is part of these steps: more than half of them, and more than one, evaluate.

    If every second step evaluates, this holds for no window, whatever its first step.
    """
    return sum(1 for mark in marks if mark & EVALUATION) > EVALUATION_OWN_COST_FRAC * len(marks) + 1


def compiling_counts(marks: Sequence[int]) -> bool:
    """Return whether compiling is part of these steps: more than a quarter of them compile."""
    return sum(1 for mark in marks if mark & COMPILE) > COMPILE_OWN_COST_FRAC * len(marks)


def trained_s(
    marks: Sequence[int],
    asides_ns: Sequence[int],
    periods_s: Sequence[float],
    *,
    counts: bool | None = None,
) -> tuple[float | None, ...]:
    """Return the training time of every step of a window, in seconds; None for a step set aside.

    The time of an evaluation is subtracted from its step; other costs of an epoch's end (a loader restart)
    stay in it. A step with a compile inside is set aside. If most steps evaluate, or more than a quarter
    compile, that is part of the steps and counts. If no step would be left, as all of a few may evaluate,
    each counts whole.

    Args:
        marks: `autotune.protocol.events.StepRow.mark` of every step of the window.
        asides_ns: `autotune.protocol.events.StepRow.aside_ns` of every step.
        periods_s: The steps' periods.
        counts: Whether evaluation counts as part of the step, if that is already decided; None:
            `evaluation_counts` decides.
    """
    if not any(mark & _DISTINCT for mark in marks):
        return tuple(periods_s)
    evaluates = not (evaluation_counts(marks) if counts is None else counts)
    compiles = not compiling_counts(marks)
    found: list[float | None] = []
    for mark, aside_ns, period_s in zip(marks, asides_ns, periods_s, strict=True):
        if compiles and mark & COMPILE:
            found.append(None)
        elif evaluates and mark & EVALUATION:
            rest_s = period_s - aside_ns / 1e9
            found.append(rest_s if aside_ns >= 0 and rest_s > 0 else None)
        else:
            found.append(period_s)
    return tuple(periods_s if all(seconds is None for seconds in found) else found)
