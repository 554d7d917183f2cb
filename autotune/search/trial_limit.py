"""Division of a limit on the number of trials between screening and confirmation; pure."""

from __future__ import annotations

BASELINES = 2
"""Runs of the unchanged script that begin a search."""

CYCLES = 3
"""Fewest confirmation rounds that a claim needs."""


def most_members(limit: int) -> int:
    """Return the finalists that fit a number of trials beside baselines and one other run; at least one."""
    return max(1, (limit - BASELINES - 1) // CYCLES - 1)


def left_for_screening(limit: int, num_finalists: int) -> int:
    """Return the trials, baselines included, that a limit leaves to screening."""
    # As many finalists as three rounds have room for; one and the script are the least.
    members = min(num_finalists, most_members(limit))
    return max(BASELINES + 1, limit - CYCLES * (1 + max(1, members)))
