"""Ratio of the times in which two loss curves reach the same losses. Pure; standard library only.

Computed for the mean curves over all pairs, not per run. Where a curve is nearly flat, a single run may miss
the loss of another one of the same config, because of its seed.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.loss.non_inferiority import Noise
from autotune.loss.trace import is_usable
from autotune.statistics.intervals import sd, t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.loss.trace import Traces
    from autotune.model.measurement import LossPoint

BEGIN_FRAC: Final = 0.2
"""Share of the script's run from which its losses are compared; earlier steps are warm-up."""

END_FRAC: Final = 0.8
"""End of that part, which a config slower per sample must reach with half as many samples more."""

LATE_FRAC: Final = 0.65
"""From here to the end of that part a config has to keep up beyond doubt."""

CONFIDENCE: Final = 0.98
"""One-sided confidence of that; over all analyses, a loss a margin above passes in 2 of 100."""

EARLY_CONFIDENCE: Final = 0.995
"""The same of a look before the last, which may end confirmation."""

_PIECES = 6
_WHOLE_FRAC = 0.6
_SWEEP, _HALVINGS, _STEP = 0.05, 30, 0.15
_FIRST_FRAC = 0.1
_FAIR_CHANCE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualLoss:
    """Result of pairs of runs on the time to equal loss.

    Args:
        logs: ln(the script's time to its losses / the config's time to the same), by pair. Their mean is that
            of the mean curves, with the same scatter. Empty if the losses are not reached.
        delta: Excess of the config's mean loss over the script's late in the run, at the same time; in units
            of loss.
        most: Its upper bound, one-sided.
        margin: Difference between the script's own seeds there.
        keeps_up: The difference is certainly inside the margin, given the uncertainty of both.
        keeps_up_early: The same at the stricter level of an interim analysis.
        may_clear: Future runs have a fair chance to show that the losses are reached and kept up with.
    """

    logs: Mapping[int, float]
    delta: float
    most: float
    margin: float
    keeps_up: bool
    keeps_up_early: bool
    may_clear: bool


def equal_loss(
    candidate: Traces,
    baseline: Traces,
    log_rates: Mapping[int, float],
    *,
    others: Sequence[Sequence[LossPoint]] = (),
    most_runs: int = 0,
) -> EqualLoss | None:
    """Return the time ratio for the losses of the script between 20 and 80 % of its run.

    For configs with another effective batch, for which equal samples are not comparable. The config's mean
    curve is scaled along its samples until it matches the script's; a part is weighted by the slope of the
    script's curve in it. The ratio of rates over that part is the gain. A pair's deviation in loss, divided
    by the slope, is its deviation in time (the delta method).

    A config whose curve is equal at first and higher later can be scaled too. So its loss is compared after
    the time that the script takes for 65 to 80 % of its run, or at the end of its runs. It must not exceed
    the script's there by more than the difference between the script's seeds.

    Args:
        candidate: Loss traces by pair.
        baseline: The same of the unchanged script.
        log_rates: ln(rate of the config / rate of the script) by pair, in samples per second (or per joule).
        others: Runs of the script outside of pairs, which also show the difference between its seeds.
        most_runs: Largest total number of pairs, for `EqualLoss.may_clear`.

    Returns:
        None without pairs, with too short traces or a non-finite loss, or if the script learns nothing. Pairs
        with a much shorter run of the script than the longest are left out.
    """
    keys = sorted(set(candidate) & set(baseline) & set(log_rates))
    # Traces are traversed several times, and a packed one creates its points each time.
    candidate, baseline = ({k: tuple(t[k]) for k in keys} for t in (candidate, baseline))
    if not keys or not all(map(_is_sound, (*candidate.values(), *baseline.values()))):
        return None
    longest = max(t[-1].samples for t in baseline.values())
    keys = [k for k in keys if baseline[k][-1].samples >= _WHOLE_FRAC * longest]
    ours, theirs = ({k: _Summed(t[k]) for k in keys} for t in (candidate, baseline))
    both = _Curves(ours, theirs)
    if not both.learns:
        return None
    gap = both.stretch_to_go()
    rate = statistics.fmean(log_rates[k] for k in keys)
    whole = [_Summed(t) for t in others if _is_sound(t) and t[-1].samples >= END_FRAC * both.end]
    keeping = both.late(min(rate, both.longest), whole)
    # A run that ended before the script's part is over stays that short, however many more there are.
    may_clear = both.longest >= 0.0 and keeping.may_clear(most_runs)
    logs: dict[int, float] = {}
    if gap is None:
        apart = both.residuals(both.longest)
        may_clear = may_clear and statistics.fmean(apart) <= _pull(apart, most_runs)
    else:
        slope, above = both.slope(gap), both.residuals(gap)
        middle = statistics.fmean(above)
        # The slope was read off the same pairs, which costs a second degree of freedom.
        wider = math.sqrt(len(keys) / max(1, len(keys) - 1))
        for k, residual in zip(keys, above, strict=True):
            logs[k] = rate - gap + wider * (log_rates[k] - rate - (residual - middle) / slope)
    return EqualLoss(
        logs=logs,
        delta=keeping.delta,
        most=keeping.delta + keeping.half(len(keys), CONFIDENCE),
        margin=keeping.noise.margin(CONFIDENCE).value,
        keeps_up=keeping.is_shown(CONFIDENCE),
        keeps_up_early=keeping.is_shown(EARLY_CONFIDENCE),
        may_clear=may_clear,
    )


def _is_sound(trace: Sequence[LossPoint]) -> bool:
    return is_usable(trace) and all(math.isfinite(p.loss) for p in trace)


class _Summed:
    """A trace with cumulative sums for the mean over any part; a point covers the samples since the last."""

    def __init__(self, trace: Sequence[LossPoint]) -> None:
        self.at, self.sums, self.losses = [0.0], [0.0], [trace[0].loss]
        for point in trace:
            width = point.samples - self.at[-1]
            if width > 0:
                self.at.append(float(point.samples))
                self.sums.append(self.sums[-1] + width * point.loss)
                self.losses.append(point.loss)

    def mean(self, begin: float, end: float) -> float:
        """Over (begin, end] on the samples axis."""
        return (self._sum(end) - self._sum(begin)) / (end - begin)

    def _sum(self, at: float) -> float:
        k = min(bisect.bisect_left(self.at, at), len(self.at) - 1)
        return self.sums[k] - (self.at[k] - at) * self.losses[k]


class _Curves:
    """Runs of both by pair, over pieces of the script's run that are equally long by ratio."""

    def __init__(self, ours: Mapping[int, _Summed], theirs: Mapping[int, _Summed]) -> None:
        self._pairs = [(ours[k], theirs[k]) for k in ours]
        self.end = min(b.at[-1] for b in theirs.values())
        # By how much all runs of the config can be stretched, and shrunk down to a first point.
        self.longest = math.log(min(c.at[-1] for c in ours.values()) / (END_FRAC * self.end))
        first = max(c.at[1] for c in ours.values())
        self._shortest = min(self.longest, math.log(first / (BEGIN_FRAC * self.end)), 0.0)
        ratio = END_FRAC / BEGIN_FRAC
        edges = [self.end * BEGIN_FRAC * ratio ** (k / _PIECES) for k in range(_PIECES + 1)]
        self._pieces = list(itertools.pairwise(edges))
        self._step = math.log(ratio) / _PIECES
        self._curve = self._base_curve(self._pieces)
        self._weights = _falls(self._curve)

    def _base_curve(self, pieces: Sequence[tuple[float, float]]) -> list[float]:
        return [statistics.fmean(b.mean(*piece) for _, b in self._pairs) for piece in pieces]

    @property
    def learned(self) -> float:
        """By how much the script's loss falls from its first tenth to its late part."""
        first = max(_FIRST_FRAC * self.end, *(b.at[1] for _, b in self._pairs))
        begin, end = self._base_curve([(0.0, first), (LATE_FRAC * self.end, END_FRAC * self.end)])
        return begin - end

    @property
    def learns(self) -> bool:
        """The script's loss falls: over the run, and over the part that counts."""
        return self.learned > 0.0 and math.fsum(self._weights) > 0.0 and self._curve[-1] < self._curve[0]

    def residuals(self, stretch: float) -> list[float]:
        """Return each pair's weighted excess of config over script, with samples scaled by this factor."""
        factor, whole = math.exp(stretch), math.fsum(self._weights)
        return [
            math.fsum(
                w * (c.mean(factor * begin, factor * end) - b.mean(begin, end))
                for w, (begin, end) in zip(self._weights, self._pieces, strict=True)
            )
            / whole
            for c, b in self._pairs
        ]

    def _above(self, stretch: float) -> float:
        return statistics.fmean(self.residuals(stretch))

    def stretch_to_go(self) -> float | None:
        """Return ln of the samples needed per sample of the script; None if the loss is not reached.

        The last crossing: from there on it stays below.
        """
        if self._above(self.longest) > 0.0:
            return None
        below = self.longest
        while below > self._shortest:
            above = max(self._shortest, below - _SWEEP)
            if self._above(above) > 0.0:
                return _crossing(self._above, above, below)
            below = above
        return self._shortest

    def slope(self, stretch: float) -> float:
        """Loss per unit of ln stretch, the mean of both curves'; above 0 where the script's falls."""
        end = min(stretch + _STEP, self.longest)
        begin = max(end - 2.0 * _STEP, self._shortest)
        ours = (self._above(begin) - self._above(end)) / (end - begin) if end > begin else 0.0
        falls = zip(self._weights, _slopes(self._curve), strict=True)
        theirs = math.fsum(w * s for w, s in falls) / math.fsum(self._weights) / self._step
        return (max(ours, 0.0) + theirs) / 2.0

    def late(self, stretch: float, others: Sequence[_Summed]) -> _Keeping:
        """Return the evidence on the late part, with the config's runs scaled by this factor."""
        begin, end = LATE_FRAC * self.end, END_FRAC * self.end
        factor = math.exp(max(stretch, self._shortest))
        base = [b.mean(begin, end) for b in (*(b for _, b in self._pairs), *others)]
        noise = Noise(
            spread=sd(base), df=len(base) - 1, by_seeds=True, least=0.0, most=self.learned / 2.0, share=1.0
        )
        apart = [c.mean(factor * begin, factor * end) - b.mean(begin, end) for c, b in self._pairs]
        return _Keeping(apart, noise)


@dataclass(frozen=True, slots=True)
class _Keeping:
    """By how much pairs lie apart late in the run, and what the script's seeds differ by there."""

    apart: Sequence[float]
    noise: Noise

    @property
    def delta(self) -> float:
        """Mean difference, positive = worse."""
        return statistics.fmean(self.apart)

    def half(self, runs: int, confidence: float) -> float:
        """Return the distance from the mean to its bound, for this number of pairs of the same spread."""
        if len(self.apart) < 2:
            return math.inf
        return t_quantile(confidence, runs - 1) * sd(self.apart) / math.sqrt(runs)

    def is_shown(self, confidence: float) -> bool:
        """Inside the margin beyond doubt; distances to bounds add in squares, as in `Stretch.excess`."""
        return self._excess(len(self.apart), confidence) <= 0.0

    def may_clear(self, most_runs: int) -> bool:
        """Return whether it has a fair chance to be, with as many runs as there may be."""
        runs = max(most_runs, len(self.apart) + 1)
        return self._excess(runs, CONFIDENCE) <= _pull(self.apart, most_runs)

    def _excess(self, runs: int, confidence: float) -> float:
        margin = self.noise.margin(confidence, more=runs - len(self.apart))
        return self.delta - margin.value + math.hypot(self.half(runs, confidence), margin.value - margin.low)


def _pull(values: Sequence[float], most_runs: int) -> float:
    """Return the decrease of the mean by future runs that has a chance of one in ten."""
    n = len(values)
    if n < 2:
        return math.inf
    share = 1.0 / n - 1.0 / max(most_runs, n + 1)
    return t_quantile(1.0 - _FAIR_CHANCE, n - 1) * sd(values) * math.sqrt(share)


def _slopes(curve: Sequence[float]) -> list[float]:
    """Return the decrease per piece, at each piece, of a parabola through the curve."""
    middle = (len(curve) - 1) / 2
    at = [k - middle for k in range(len(curve))]
    square = statistics.fmean(t * t for t in at)
    bent = [t * t - square for t in at]
    line = math.fsum(t * y for t, y in zip(at, curve, strict=True)) / math.fsum(t * t for t in at)
    bend = math.fsum(q * y for q, y in zip(bent, curve, strict=True)) / math.fsum(q * q for q in bent)
    return [-(line + 2.0 * bend * t) for t in at]


def _falls(curve: Sequence[float]) -> list[float]:
    return [max(0.0, slope) for slope in _slopes(curve)]


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of a function that is positive at `low` and not at `high`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return high
