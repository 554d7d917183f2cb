"""How long a trial may take in all, and what is left of it once it has waited for its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.model.trial import Assignment, Segment

LOCK_SHARE = 0.5
"""Of a trial's time: so much may pass until its devices are free. With less left it would fail for that."""

AGAIN_SHARE = 0.9
"""The same until it is run again in another mode of isolation, which is better tried late than not."""


def whole_deadline_s(assignment: Assignment) -> float:
    """What its segments and its visit may take together."""
    visit_s = 0.0 if assignment.visit is None else assignment.visit.deadline_s
    return sum(segment.fidelity.deadline_s for segment in assignment.segments) + visit_s


def shortened(assignment: Assignment, waited_s: float, most: float = LOCK_SHARE) -> Assignment:
    """The assignment without the time that has passed, as until its devices were free: the budget goes on.

    Args:
        assignment: Not begun, or to be run again.
        waited_s: That time.
        most: Largest share of its time that is taken away.
    """
    if waited_s < 1.0:
        return assignment
    share = 1.0 - min(most, waited_s / whole_deadline_s(assignment))

    def cut(segment: Segment) -> Segment:
        deadline_s = share * segment.fidelity.deadline_s
        setup_s = min(segment.fidelity.setup_s, deadline_s)
        return replace(segment, fidelity=replace(segment.fidelity, deadline_s=deadline_s, setup_s=setup_s))

    visit = assignment.visit
    visit = None if visit is None else replace(visit, limit_s=share * visit.limit_s)
    return replace(assignment, segments=tuple(map(cut, assignment.segments)), visit=visit)
