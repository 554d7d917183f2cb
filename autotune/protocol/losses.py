"""When a loss has broken: one rule for the trial process and for its launcher.

Standard library only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BAD_LOSSES = 2
"""So many in a row that are no numbers; a single one is a batch that overflowed, and training goes on."""


def broken_at(losses: Sequence[float], *, ended: bool = True) -> int | None:
    """Index of the loss at which a run has broken, None where it has not.

    Args:
        losses: In the order of steps.
        ended: None follows, so that the last one alone counts too: what would follow it is not known.
    """
    bad = 0
    for index, loss in enumerate(losses):
        bad = 0 if math.isfinite(loss) else bad + 1
        if bad >= BAD_LOSSES or (ended and bad and index == len(losses) - 1):
            return index
    return None
