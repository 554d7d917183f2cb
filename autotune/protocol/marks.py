"""What a step's mark says of its time: one rule for the trial's own stop decision and for the launcher.

Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EVALUATION, COMPILE = 1, 2
_TOLD_APART = EVALUATION | COMPILE
LOADER = 16
EVALUATION_OWN_COST_FRAC = 0.5
COMPILE_OWN_COST_FRAC = 0.25


def evaluation_counts(marks: Sequence[int]) -> bool:
    """Return whether evaluating is what these steps do: more than half of them do it, and not by one alone.

    Where every second step evaluates, that is so in no window, whether it begins with one or not.
    """
    return sum(1 for mark in marks if mark & EVALUATION) > EVALUATION_OWN_COST_FRAC * len(marks) + 1


def compiling_counts(marks: Sequence[int]) -> bool:
    """Return whether compiling is a part of these steps: more than a quarter of them do it."""
    return sum(1 for mark in marks if mark & COMPILE) > COMPILE_OWN_COST_FRAC * len(marks)


def trained_s(
    marks: Sequence[int],
    asides_ns: Sequence[int],
    periods_s: Sequence[float],
    *,
    counts: bool | None = None,
) -> tuple[float | None, ...]:
    """How long every step of a window trained, in seconds; None where that cannot be told.

    The time of an evaluation is taken off the step it lies in; what else the end of an epoch costs
    (the loader starts again) stays in it. A step with a compile inside is set aside as a whole. Where
    evaluating is what steps do, or more than a quarter compile, that is no accident but a part of the
    step, and counts. Where no step would be left, as a few may all evaluate, every one counts whole.

    Args:
        marks: `autotune.protocol.events.StepRow.mark` of every step of the window.
        asides_ns: `autotune.protocol.events.StepRow.aside_ns` of every step.
        periods_s: The steps' periods.
        counts: Whether evaluation counts as a part of the step, where that is decided already; None:
            `evaluation_counts` decides.
    """
    if not any(mark & _TOLD_APART for mark in marks):
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
