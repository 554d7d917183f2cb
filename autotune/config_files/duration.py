"""Durations as people type them: ``90m``, ``1h30m``, ``2h``, ``1d``."""

from __future__ import annotations

import durationpy

from autotune.errors import InvalidBudget

_EXAMPLES = "examples: 90m, 1h30m, 2h, 1d"


def duration_s(text: str) -> float:
    """Return a duration in seconds.

    Args:
        text: Numbers with units; spaces do not count.

    Raises:
        InvalidBudget: No unit, no duration, or not positive.
    """
    compact = "".join(text.split())
    if compact.replace(".", "", 1).isdecimal():
        raise InvalidBudget(f'"{text}" has no unit', hint=f'write "{compact}s" or "2h"')
    try:
        seconds = float(durationpy.from_str(compact).total_seconds())
    except (durationpy.DurationError, OverflowError, ValueError) as error:
        raise InvalidBudget(f'"{text}" is no duration', hint=_EXAMPLES) from error
    if seconds <= 0:
        raise InvalidBudget(f'"{text}" is not positive', hint=_EXAMPLES)
    return seconds
