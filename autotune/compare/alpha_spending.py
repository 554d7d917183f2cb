"""Alpha spending: the family-wise error rate of a study over finalists and interim analyses. Pure.

A study claims a false gain with a probability of at most `FALSE_WINS`, whichever finalist wins and whenever
confirmation ends. The levels of all tests add up to it. The leader of the screening gets half of it. Of each
finalist's share the last analysis gets most, since most searches end there. An interim analysis ends
confirmation only if the gain is clear at its own, stricter level.

If confirmation is extended beyond the usual pairs, three analyses replace the last one. They share most of
their pairs, so their errors coincide often. Their levels therefore add up to more than that of the last,
while their joint error rate is within `FALSE_WINS` (tests/compare/test_alpha_spending.py).
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from autotune.statistics.intervals import ratio_from, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.compare.noise_model import Scatter
    from autotune.model.measurement import Estimate

FALSE_WINS: Final = 0.02
"""Family-wise error rate per study: the probability of claiming a gain where there is none."""

FEWEST_PAIRS: Final = 2
"""Fewest pairs of confirmation runs for a claim (decision 96)."""

LOOK_PAIRS: Final = (3, 5, 8)
"""Interim analyses: numbers of pairs after which a claim may end the confirmation. The end of the budget or
of the rounds is one more analysis. Other ends make no claim and spend no alpha."""

LATE_LOOK_PAIRS: Final = (12, 20)
"""Interim analyses of an extended confirmation; its end is one more analysis."""

_LOOK_SHARES: Final[dict[int, float]] = dict(zip(LOOK_PAIRS, (0.1, 0.15, 0.2), strict=True))
_LAST_SHARE: Final = 1.0 - sum(_LOOK_SHARES.values())
_LATE_SHARE: Final = 0.27
"""Share of each late analysis, and of the last one of an extended confirmation."""
_LEADER_SHARE: Final = 0.5


def finalist_share(place: int, finalists: int) -> float:
    """Return the share of the family-wise error rate that one finalist may spend.

    Args:
        place: 0 for the leader of the screening.
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
    """Return the interval of a claim, and whether an interim analysis may end confirmation with it.

    At an interim analysis the interval has the level of that analysis if it excludes 1, since confirmation
    may end because of it. Otherwise it has the level of the last analysis.

    Args:
        log_ratios: ln(candidate / baseline), one per pair.
        share: From `finalist_share`.
        scatter: From `autotune.compare.noise_model.pair_scatter`.
        goes_on: Whether confirmation is extended (`autotune.compare.extension.goes_on`).
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
    """Return the pairs with which the present gain would be claimed at the last analysis.

    Args:
        log_ratios: ln(candidate / baseline), one per pair; at least two.
        share: From `finalist_share`.
        scatter: From `autotune.compare.noise_model.pair_scatter`; each further pair adds one degree of
            freedom.
        most: Upper bound, at most the usual pairs.

    Returns:
        None if it takes more than `most`, or without a gain.
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
