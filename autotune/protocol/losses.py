"""Divergence of a loss: one rule for the trial process and its launcher.

Standard library only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BAD_LOSSES = 2
"""Number of consecutive non-finite losses; a single one is an overflow, after which training continues."""


def broken_at(losses: Sequence[float], *, ended: bool = True) -> int | None:
    """Return the index of the loss at which a run diverged, None if it did not.

    Args:
        losses: In step order.
        ended: No more follow, so that a non-finite last one counts alone.
    """
    bad = 0
    for index, loss in enumerate(losses):
        bad = 0 if math.isfinite(loss) else bad + 1
        if bad >= BAD_LOSSES or (ended and bad and index == len(losses) - 1):
            return index
    return None
