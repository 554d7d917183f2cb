"""What a limit on the number of trials leaves to screening and to confirmation; pure."""

from __future__ import annotations

BASELINES = 2
"""Runs of the unchanged script that begin a search."""

CYCLES = 3
"""Of confirmation: the fewest that a claim needs."""


def most_members(limit: int) -> int:
    """Finalists for which a number of trials has room beside baselines and one other run; at least one."""
    return max(1, (limit - BASELINES - 1) // CYCLES - 1)


def left_for_screening(limit: int, num_finalists: int) -> int:
    """Trials, the baselines among them, that a limit leaves when confirmation has what it needs."""
    # As many finalists as three cycles leave room for; one and the script are the least.
    members = min(num_finalists, most_members(limit))
    return max(BASELINES + 1, limit - CYCLES * (1 + max(1, members)))
