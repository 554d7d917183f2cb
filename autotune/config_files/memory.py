"""Amounts of memory as people type them: ``6GiB``, ``500MB``, ``80%``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from autotune.errors import UsageError

_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z%]*)")
_UNITS: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_EXAMPLES: Final = "examples: 6GiB, 500MB, 80%"


def memory_bytes(text: str, *, total_bytes: int | None = None) -> int:
    """Return an amount of memory in bytes.

    Args:
        text: A number with a unit (``GiB`` = 1024^3 bytes, ``GB`` = 1000^3), or per cent.
        total_bytes: Base of percentages; None: this machine's memory.

    Raises:
        UsageError: No unit, an unknown unit, not positive, or more than 100 %.
    """
    compact = "".join(text.split())
    match = _AMOUNT.fullmatch(compact)
    if match is None:
        raise UsageError(f'"{text}" is not an amount of memory', hint=_EXAMPLES)
    amount, unit = float(match[1]), match[2]
    if not unit:
        raise UsageError(f'"{text}" has no unit', hint=f'write "{compact}GiB" or "{compact}MB"')
    if unit == "%":
        if not 0 < amount <= 100:
            raise UsageError(f'"{text}" is not between 0 and 100 per cent', hint=_EXAMPLES)
        return int((_machine_bytes() if total_bytes is None else total_bytes) * amount / 100)
    factor = _UNITS.get(unit.lower())
    if factor is None:
        raise UsageError(f'"{unit}" is not a unit of memory', hint=_EXAMPLES)
    if amount * factor < 1:
        raise UsageError(f'"{text}" is not positive', hint=_EXAMPLES)
    return int(amount * factor)


def _machine_bytes() -> int:
    """Memory of this machine, or of the cgroup that holds this process where that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdecimal() else whole
