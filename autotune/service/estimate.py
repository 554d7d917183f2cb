"""Estimated gain and cost of a search, from finished searches of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.service.states import SearchState

if TYPE_CHECKING:
    from autotune.service.store import Database

_FEWEST = 5
"""Finished searches below which no range is given."""


def estimate(
    database: Database, project: str, budget_s: float, slots: int, price_per_hour: float | None
) -> dict[str, Any]:
    """Return the estimated gain and cost of a new search, as JSON-ready data.

    Args:
        database: Database of the service.
        project: Project whose searches count.
        budget_s: Budget of the search, in seconds.
        slots: Slots of the search.
        price_per_hour: Price of one slot.

    Returns:
        ``cost``: upper bound, None without a price. ``searches``: number of searches behind the range.
        ``ahead``: searches before it in the queue. ``speedup``: quartiles of their claimed gains, 1.0 for a
        search without a claim; None with fewer than five.
    """
    done = database.searches(project=project, states=[SearchState.SUCCEEDED], limit=200)
    gains = sorted(
        (row.answer or {}).get("speedup", 1.0) if (row.answer or {}).get("outcome") == "faster" else 1.0
        for row in done
    )
    quartiles = None
    if len(gains) >= _FEWEST:
        quartiles = [gains[round(q * (len(gains) - 1))] for q in (0.25, 0.5, 0.75)]
    return {
        "budget_s": budget_s,
        "slots": slots,
        "cost": None if price_per_hour is None else budget_s / 3600 * slots * price_per_hour,
        "searches": len(gains),
        "ahead": len(database.searches(states=[SearchState.QUEUED], limit=10_000)),
        "speedup": quartiles,
    }
