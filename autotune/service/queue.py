"""Scheduling of queued searches: the next to start, and why the others wait. Pure functions over rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHARE_S: Final = 24 * 3600.0
"""Seconds over which use counts for the fair share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued or running search.

    Args:
        id: Identifier of the search.
        slots: Capacity that it takes: its GPUs, or 1 without GPUs.
    """

    id: str
    project: str
    user: str
    priority: int
    created_s: float
    gpus: int
    is_preemptible: bool = False

    @property
    def slots(self) -> int:
        """Capacity that it takes while it runs."""
        return max(1, self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Quotas of a project; None means no limit."""

    weight: float = 1.0
    max_running: int | None = None
    max_running_per_user: int | None = None
    max_gpus: int | None = None
    max_slot_s_per_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Current decision of the queue.

    Args:
        start: Searches to start, in order.
        preempt: Running searches to preempt so that one with a higher priority can start.
        reasons: Why each queued search waits, in words.
        positions: Place of each search in the queue, from 1.
    """

    start: tuple[str, ...]
    preempt: tuple[str, ...]
    reasons: Mapping[str, str]
    positions: Mapping[str, int]


def ordered(
    queued: Sequence[Waiting], used_s: Mapping[tuple[str, str], float], limits: Mapping[str, Limits]
) -> list[Waiting]:
    """Return the queue: highest priority first, then the least used share, then the oldest.

    A share is the use of a project in the last 24 hours, in slot-seconds, over its weight. Within a project
    the user with the least use comes first. Each placed search counts as an hour of use for those after it,
    so that projects alternate.

    Args:
        queued: Waiting searches.
        used_s: Slot-seconds used in the last `SHARE_S`, by (project, user).
        limits: Quotas by project.
    """
    by_project: Counter[str] = Counter()
    by_user: Counter[tuple[str, str]] = Counter()
    for (project, user), seconds in used_s.items():
        by_project[project] += seconds  # type: ignore[assignment]
        by_user[project, user] += seconds  # type: ignore[assignment]
    left, placed = list(queued), list[Waiting]()
    while left:
        first = min(
            left,
            key=lambda one: (
                -one.priority,
                by_project[one.project] / limits.get(one.project, Limits()).weight,
                by_user[one.project, one.user],
                one.created_s,
                one.id,
            ),
        )
        left.remove(first)
        placed.append(first)
        by_project[first.project] += 3600 * first.slots
        by_user[first.project, first.user] += 3600 * first.slots
    return placed


def decide(
    queued: Sequence[Waiting],
    running: Sequence[Waiting],
    used_s: Mapping[tuple[str, str], float],
    limits: Mapping[str, Limits],
    capacity: int,
) -> Decision:
    """Return the searches to start now, those to preempt for them, and why the rest waits.

    Args:
        queued: Waiting searches.
        running: Searches that hold capacity.
        used_s: As for `ordered`.
        limits: Quotas by project.
        capacity: Slots of the cluster: its GPUs, or the number of parallel searches.
    """
    order = ordered(queued, used_s, limits)
    held, start, preempt, reasons = list(running), list[str](), list[str](), dict[str, str]()
    for place, one in enumerate(order):
        quota = _quota(one, held, used_s, limits.get(one.project, Limits()))
        if quota:
            reasons[one.id] = quota
            continue
        if one.slots > capacity:
            reasons[one.id] = f"it needs {one.slots} slots, and the service has {capacity}"
            continue
        free = capacity - sum(other.slots for other in held)
        if one.slots <= free:
            start.append(one.id)
            held.append(one)
            continue
        victims = _victims(one, [r for r in running if r.id not in preempt], one.slots - free)
        preempt += [victim.id for victim in victims]
        ahead = place - len(start)
        waits = f"{ahead} {'search' if ahead == 1 else 'searches'} ahead; " if ahead > 0 else ""
        reasons[one.id] = f"{waits}{capacity - max(free, 0)} of {capacity} slots in use"
        if victims:
            reasons[one.id] += f"; {len(victims)} preemptible searches are being stopped for it"
        # Later and smaller searches must not use the capacity that this one waits for.
        held.append(one)
    positions = {one.id: n for n, one in enumerate((o for o in order if o.id not in start), 1)}
    return Decision(start=tuple(start), preempt=tuple(preempt), reasons=reasons, positions=positions)


def _quota(
    one: Waiting, held: Sequence[Waiting], used_s: Mapping[tuple[str, str], float], limits: Limits
) -> str:
    """Return the quota that blocks it; empty for none."""
    mine = [other for other in held if other.project == one.project]
    own = [other for other in mine if other.user == one.user]
    if limits.max_running is not None and len(mine) >= limits.max_running:
        return f"project {one.project} is at its quota of {limits.max_running} running searches"
    if limits.max_running_per_user is not None and len(own) >= limits.max_running_per_user:
        return f"{one.user} is at the quota of {limits.max_running_per_user} running searches per user"
    gpus = sum(other.gpus for other in mine)
    if limits.max_gpus is not None and gpus + one.gpus > limits.max_gpus:
        return f"project {one.project} is at its quota of {limits.max_gpus} GPUs"
    used = sum(seconds for (project, _), seconds in used_s.items() if project == one.project)
    if limits.max_slot_s_per_day is not None and used >= limits.max_slot_s_per_day:
        return f"project {one.project} has used its {limits.max_slot_s_per_day / 3600:.1f} slot-hours of 24 h"
    return ""


def _victims(one: Waiting, running: Sequence[Waiting], slots: int) -> list[Waiting]:
    """Return preemptible searches of lower priority that free this many slots, or none."""
    free, chosen = 0, list[Waiting]()
    candidates = [r for r in running if r.is_preemptible and r.priority < one.priority]
    for other in sorted(candidates, key=lambda r: (r.priority, -r.created_s)):
        if free >= slots:
            break
        chosen.append(other)
        free += other.slots
    return chosen if free >= slots else []
