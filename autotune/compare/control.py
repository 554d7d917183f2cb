"""The A/A control of a study: its baseline against itself, and the bar for a gain. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING

from autotune.compare.alpha_spending import FALSE_WINS
from autotune.compare.amortised_rate import amortised
from autotune.compare.disturbances import is_disturbed
from autotune.compare.rounds import confirmation_cycles
from autotune.model.config import Config
from autotune.statistics.intervals import ratio_interval
from autotune.statistics.spread import LEAST_SPREAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.measurement import Estimate
    from autotune.model.study import Study

_BASE = Config()
_FEWEST_CONTROLS = 4
_FEWEST_PAIRS = 3
"""Pairs of baseline runs that raise the bar: their interval uses no prior, so two are too few."""


def control(study: Study) -> Estimate | None:
    """Return the baseline against itself: consecutive confirmation runs paired; None with fewer than four."""
    cycles = confirmation_cycles(study)
    runs = [cycles[g][_BASE] for g in sorted(cycles) if _BASE in cycles[g]]
    return against_itself([amortised(study, t.measurement) for t in runs if t.measurement])


def against_itself(rates: Sequence[float]) -> Estimate | None:
    """Return the ratio of consecutive runs of one config, in alternating order; None with fewer than four."""
    if len(rates) < _FEWEST_CONTROLS or min(rates) <= 0:
        return None
    logs: list[float] = []
    for index in range(0, len(rates) - 1, 2):
        sign = 1.0 if index % 4 == 0 else -1.0
        logs.append(sign * math.log(rates[index + 1] / rates[index]))
    return ratio_interval(logs, confidence=1.0 - FALSE_WINS, tau=LEAST_SPREAD)


def self_difference(study: Study) -> float:
    """Return the factor by which two consecutive confirmation runs of the unchanged script typically differ.

    Root mean square of the ln ratios of consecutive runs: a slow drift changes them little, and from three
    ratios on their mean is subtracted as well. Disturbed runs are excluded if two others remain. At least the
    deviation of `control`; 1.0 with fewer than two runs.
    """
    cycles = confirmation_cycles(study)
    runs = [cycles[g][_BASE] for g in sorted(cycles) if _BASE in cycles[g]]
    clean = [t for t in runs if not is_disturbed(study, t)]
    measured = [t.measurement for t in (clean if len(clean) > 1 else runs) if t.measurement]
    logs = [math.log(rate) for m in measured if (rate := amortised(study, m)) > 0]
    steps = [after - before for before, after in itertools.pairwise(logs)]
    drift = statistics.fmean(steps) if len(steps) > 2 else 0.0
    typical = math.sqrt(statistics.fmean((s - drift) ** 2 for s in steps)) if steps else 0.0
    identical = control(study)
    shown = abs(math.log(identical.value)) if identical is not None else 0.0
    return math.exp(max(typical, shown))


def weakness(study: Study, speedup: Estimate) -> str:
    """Return ``weak: your script differs from itself by 1.25x`` if that reaches the claim; else empty."""
    found = self_difference(study)
    is_weak = speedup.n > 0 and found >= speedup.value
    return f"weak: your script differs from itself by {found:.2f}x" if is_weak else ""


def claim_bar(identical: Estimate | None) -> float:
    """Return the ratio that a lower bound must exceed: 1.00, or the script's difference from itself.

    Args:
        identical: From `control`.
    """
    if identical is None or identical.n < _FEWEST_PAIRS or identical.low <= 1.0 <= identical.high:
        return 1.0
    return max(identical.high, 1.0 / identical.low) if identical.low > 0 else math.inf
