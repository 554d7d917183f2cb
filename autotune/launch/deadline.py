"""Deadlines of trials, less the time spent waiting for devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.model.trial import Assignment, Segment

LOCK_SHARE = 0.5
"""Largest share of a trial's time spent waiting for devices. With less left, the trial would time out."""

AGAIN_SHARE = 0.9
"""The same before a second run in another isolation mode, which is better late than never."""


def whole_deadline_s(assignment: Assignment) -> float:
    """Return the time allowed for all segments together."""
    return sum(segment.fidelity.deadline_s for segment in assignment.segments)


def shortened(assignment: Assignment, waited_s: float, most: float = LOCK_SHARE) -> Assignment:
    """Return the assignment with its time reduced by the waiting time, so that the budget holds.

    Args:
        assignment: Not started, or about to run again.
        waited_s: Waiting time, as for devices.
        most: Largest share of the assignment's time that is taken off.
    """
    if waited_s < 1.0:
        return assignment
    share = 1.0 - min(most, waited_s / whole_deadline_s(assignment))

    def cut(segment: Segment) -> Segment:
        deadline_s = share * segment.fidelity.deadline_s
        setup_s = min(segment.fidelity.setup_s, deadline_s)
        return replace(segment, fidelity=replace(segment.fidelity, deadline_s=deadline_s, setup_s=setup_s))

    return replace(assignment, segments=tuple(map(cut, assignment.segments)))
