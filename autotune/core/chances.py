"""How the chance of a false win is shared out over finalists and looks at the data. Pure.

What is claimed of a study is false with a chance of at most `FALSE_WINS`, whoever is claimed and
whenever confirmation ended: the chances of all tests that may claim add up to it. The leader, by
screening, gets half of it, and the last look most of that, as a search mostly ends there; a look before
may end confirmation only where the gain is clear at that look's own, stricter level.

Where confirmation goes on beyond the usual pairs, three looks take the place of the last. They see mostly
the same pairs, so that together they err less often than one by one: their levels add up to more than that
of the last, and the chance of all looks together is what `FALSE_WINS` says (tests/core/test_chances.py).
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from autotune.core.stats import ratio_from, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.measurement import Estimate
    from autotune.core.noise_model import Scatter

FALSE_WINS: Final = 0.02
"""Chance, per study, that a gain is claimed where there is none; shared out over finalists and looks."""

FEWEST_PAIRS: Final = 2
"""Pairs of confirmation runs below which no gain in speed is claimed (decision 96)."""

LOOK_PAIRS: Final = (3, 5, 8)
"""Pairs of a config after which a search may end its confirmation because it has won; the end of the budget,
or of the cycles, is one look more. Other ends make no claim and need no allowance."""

LATE_LOOK_PAIRS: Final = (12, 20)
"""The same where confirmation goes on beyond the usual pairs; its end is one look more."""

_LOOK_SHARES: Final[dict[int, float]] = dict(zip(LOOK_PAIRS, (0.1, 0.15, 0.2), strict=True))
_LAST_SHARE: Final = 1.0 - sum(_LOOK_SHARES.values())
_LATE_SHARE: Final = 0.27
"""Of each late look and of the last one then."""
_LEADER_SHARE: Final = 0.5


def finalist_share(place: int, finalists: int) -> float:
    """Of the chance of a study, what one finalist may use.

    Args:
        place: 0 for the one that screening held for the fastest.
        finalists: How many were confirmed in all.
    """
    if finalists < 2:
        return 1.0
    return _LEADER_SHARE if place == 0 else (1.0 - _LEADER_SHARE) / (finalists - 1)


def claim_interval(
    log_ratios: Sequence[float],
    share: float,
    scatter: Scatter,
    *,
    goes_on: bool = False,
) -> tuple[Estimate, bool]:
    """The interval that a claim rests on, and whether a look before the last may end confirmation with it.

    Where the pairs are as many as at a look, and its own level is enough to tell the ratio from 1, that is
    the level of the interval: confirmation may have ended because of it.

    Args:
        log_ratios: ln(candidate / baseline), one per pair.
        share: From `finalist_share`.
        scatter: Of `autotune.core.noise_model.pair_scatter`.
        goes_on: Confirmation has room for more than the usual pairs (`autotune.core.more_cycles.goes_on`).
    """
    look = _LOOK_SHARES.get(len(log_ratios))
    if goes_on and len(log_ratios) in LATE_LOOK_PAIRS:
        look = _LATE_SHARE
    if look is not None:
        early = ratio_from(log_ratios, scatter.sd, scatter.df, confidence=_confidence(share * look))
        if early.low > 1.0 or early.high < 1.0:
            return early, True
    last = _confidence(share * (_LATE_SHARE if goes_on else _LAST_SHARE))
    return ratio_from(log_ratios, scatter.sd, scatter.df, confidence=last), False


def pairs_wanted(log_ratios: Sequence[float], share: float, scatter: Scatter, *, most: int) -> int | None:
    """Pairs with which a gain as it reads now would be claimed at the last look; None with `most` neither.

    Args:
        log_ratios: ln(candidate / baseline), one per pair; at least two.
        share: From `finalist_share`.
        scatter: Of `autotune.core.noise_model.pair_scatter`; each pair more is one degree of freedom more.
        most: So many at the most; the usual pairs or fewer.
    """
    n, mean = len(log_ratios), statistics.fmean(log_ratios)
    if n < 2 or mean <= 0.0:
        return None
    quantile = 1.0 - FALSE_WINS * share * _LAST_SHARE
    for pairs in range(n, most + 1):
        half = t_quantile(quantile, scatter.df + pairs - n) * scatter.sd / math.sqrt(pairs)
        if half < mean:
            return pairs
    return None


def _confidence(share: float) -> float:
    return 1.0 - 2.0 * FALSE_WINS * share
