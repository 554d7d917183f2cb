"""Scatter of single runs and of confirmation pairs, estimated over all configs. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING

from autotune.model.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LEAST_SPREAD = 0.005
"""Smallest standard deviation of a log ratio that is believed, however well two or three pairs agree."""

TAU_SHARE = 0.5
"""Share of `successive` that the pairs of one config are believed to scatter at the least."""

BELIEVED_SD = 0.02
"""Prior standard deviation between runs of one config, in ln rate."""

BELIEVED_RUNS = 2
"""Runs' worth of belief in `BELIEVED_SD`: its degrees of freedom."""

_BASE = Config()
_SWEEPS, _SETTLED = 50, 1e-9


def run_spread(alike: Iterable[Sequence[float]]) -> float:
    """Return the pooled standard deviation of single runs in ln rate, with `BELIEVED_SD` as two runs.

    Args:
        alike: Groups of equal runs, as ln rates; a group of one has no effect.
    """
    squares, free = BELIEVED_RUNS * BELIEVED_SD**2, float(BELIEVED_RUNS)
    for logs in alike:
        if len(logs) > 1:
            squares += (len(logs) - 1) * statistics.variance(logs)
            free += len(logs) - 1
    return math.sqrt(squares / free)


def pooled_spread(rates: Mapping[int, Mapping[Config, float]]) -> tuple[float, float]:
    """Standard deviation of a log ratio pooled over all members, and its degrees of freedom.

    Residuals of log rate = cycle + config, by least squares: what the order and the drift of the machine do
    to a whole cycle drops out. Who came late or left early counts with the cycles it was in.

    Args:
        rates: Cycle -> config -> rate; a cycle counts where it holds the baseline and another config.

    Returns:
        Both 0 with fewer than three members or two degrees of freedom.
    """
    logs = {
        (g, c): math.log(rate)
        for g, r in rates.items()
        if len(r) > 1 and r.get(_BASE, 0.0) > 0.0
        for c, rate in r.items()
        if rate > 0.0
    }
    cycles, members = {g for g, _ in logs}, {c for _, c in logs}
    df = len(logs) - len(cycles) - len(members) + 1
    if len(members) < 3 or df < 2:
        return 0.0, 0.0
    in_cycle = {g: [(c, y) for (h, c), y in logs.items() if h == g] for g in cycles}
    of_config = {c: [(g, y) for (g, d), y in logs.items() if d == c] for c in members}
    by_config = dict.fromkeys(members, 0.0)
    by_cycle: dict[int, float] = {}
    for _ in range(_SWEEPS):
        before = by_config
        by_cycle = {g: statistics.fmean(y - by_config[c] for c, y in runs) for g, runs in in_cycle.items()}
        by_config = {c: statistics.fmean(y - by_cycle[g] for g, y in runs) for c, runs in of_config.items()}
        if max(abs(by_config[c] - before[c]) for c in members) < _SETTLED:
            break
    squares = math.fsum((y - by_cycle[g] - by_config[c]) ** 2 for (g, c), y in logs.items())
    return math.sqrt(2.0 * squares / df), float(df)


def successive(rates: Mapping[int, Mapping[Config, float]]) -> float:
    """Root mean square of ln ratios of consecutive baseline runs: their spread without slow drift.

    Args:
        rates: Cycle -> config -> rate; 0 is returned where fewer than two cycles hold the baseline.
    """
    base = [rates[g][_BASE] for g in sorted(rates) if _BASE in rates[g] and rates[g][_BASE] > 0]
    steps = [math.log(b / a) for a, b in itertools.pairwise(base)]
    return math.sqrt(statistics.fmean(s * s for s in steps)) if steps else 0.0
