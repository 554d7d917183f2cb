"""One stretch of a run: by how much losses differ there, and what the script's own noise allows. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.loss.trace import FEWEST_PAIRS, FEWEST_SEEDS, mean_between
from autotune.statistics.intervals import sd, sd_bounds, t_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.loss.trace import Traces

USUAL_RUNS: Final = 12
"""Runs of one config, a cycle each, after which a search asks for more of them for the loss alone."""

FULL: Final = USUAL_RUNS + 2
"""The same with runs of screening, of which two at the most are none of a cycle."""

_CONFIDENCE = 0.95
_LATE_CONFIDENCE = 0.975
"""Confidence beyond the usual runs, because of repeated analyses."""

_LIKELY = 0.75
_MARGIN_OF_SEED_SD = 0.5
_FLOAT_NOISE = 1e-5
_PIECES = 6
_EDGE = 1 / 12
_FAIR_CHANCE = 0.1


@dataclass(frozen=True, slots=True)
class Margin:
    """Limit from the script's own noise, with its lower and upper bound."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Noise of the script over a part of its run, and the permitted share of it.

    Args:
        spread: Spread of the mean losses of its runs, or of its own curve if seeds have no effect.
        df: Degrees of freedom of the spread.
        by_seeds: Whether more runs would improve it.
        least: Rounding, the lower bound of noise.
        most: Learning progress, the upper bound.
        share: Permitted share of the spread.
    """

    spread: float
    df: int
    by_seeds: bool
    least: float
    most: float
    share: float

    def margin(self, confidence: float, *, more: int = 0) -> Margin:
        """Return the margin by these runs, or with `more` further runs of the same spread."""
        df = self.df + more if self.by_seeds else self.df
        low, high = sd_bounds(self.spread, df, confidence=confidence)
        return Margin(*(min(self.most, max(self.share * s, self.least)) for s in (self.spread, low, high)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Losses of a candidate and of the script over the same stretch of their runs.

    Args:
        delta: Mean difference of the losses, positive = worse.
        low: Its lower bound, one-sided.
        high: Its upper bound.
        noise: Of the script.
        loss_per_run: By how much the script's loss would differ, were it a whole run behind.
        runs: Of the candidate.
        most_runs: As many as there may be in all.
    """

    delta: float
    low: float
    high: float
    noise: Noise
    loss_per_run: float
    runs: int
    most_runs: int

    @property
    def margin(self) -> Margin:
        """Return the limit from the script's own noise."""
        return self.noise.margin(_confidence(self.runs))

    @property
    def excess(self) -> tuple[float, float]:
        """Bounds on the difference less the margin, each one-sided, where both are estimates.

        The distances of either to its own bound are added in squares (Zou and Donner, *Construction of
        confidence limits about effect measures*, 2008).
        """
        margin, middle = self.margin, self.delta - self.margin.value
        least = middle - math.hypot(self.delta - self.low, margin.high - margin.value)
        most = middle + math.hypot(self.high - self.delta, margin.value - margin.low)
        return least, most

    @property
    def ends_well(self) -> bool:
        """The difference is more likely than not, three to one, inside the margin."""
        return self.delta + self._half(self.runs, _LIKELY) <= self.margin.value

    @property
    def may_clear(self) -> bool:
        """Return whether future runs have a fair chance to bring the bound below the margin.

        The mean of all runs may differ from the present one by the effect of future runs; their difference is
        assumed constant. Beyond the usual runs the bound is stricter, so the end of those is checked as well.
        """
        return any(self._clears_by(runs) for runs in self._ends())

    @property
    def may_end_well(self) -> bool:
        """The same of `ends_well`."""
        return any(
            self.delta - self._pull(runs) + self._half(runs, _LIKELY) <= self.margin.value
            for runs in self._ends()
        )

    def _ends(self) -> set[int]:
        most = max(self.most_runs, self.runs + 1)
        return {most, min(most, FULL)} if self.runs < FULL else {most}

    def _clears_by(self, runs: int) -> bool:
        margin = self.noise.margin(_confidence(runs), more=runs - self.runs)
        half = self._half(runs, _confidence(runs))
        excess = self.delta - self._pull(runs) - margin.value
        return excess + math.hypot(half, margin.value - margin.low) <= 0.0

    @property
    def _each(self) -> float:
        """Standard deviation of a single run's difference."""
        quantile = t_quantile(_confidence(self.runs), self.runs - 1)
        return (self.high - self.delta) / quantile * math.sqrt(self.runs)

    def _pull(self, runs: int) -> float:
        quantile = t_quantile(1.0 - _FAIR_CHANCE, self.runs - 1)
        return quantile * self._each * math.sqrt(1.0 / self.runs - 1.0 / runs)

    def _half(self, runs: int, confidence: float) -> float:
        return t_quantile(confidence, runs - 1) * self._each / math.sqrt(runs)


@dataclass(frozen=True, slots=True)
class Curve:
    """The script's own course over a stretch: what it learned, how steep it still is, how noisy."""

    learned: float
    loss_per_run: float
    noise: float
    points: int

    @classmethod
    def of(cls, traces: Traces, begin: float, end: float) -> Curve:
        """Return the curve of the last part of a run, where a straight line is a good approximation."""
        pieces = _PIECES
        edges = [begin + (end - begin) * k / pieces for k in range(pieces + 1)]
        rows = [[mean_between(t, a, b) for a, b in itertools.pairwise(edges)] for t in traces.values()]
        mean = [statistics.fmean(column) for column in zip(*rows, strict=True)]
        slope = statistics.linear_regression(range(pieces), mean).slope
        middle = (pieces - 1) / 2
        wobble = [v - statistics.fmean(mean) - slope * (k - middle) for k, v in enumerate(mean)]
        noise = math.sqrt(math.fsum(w * w for w in wobble) / (pieces - 2)) / math.sqrt(pieces)
        first = statistics.fmean(
            mean_between(t, 0.0, max(end / 10, float(t[0].samples))) for t in traces.values()
        )
        learned = first - statistics.fmean(mean)
        # Per whole run: the local slope if it exceeds its noise, else the mean slope.
        local = -slope * pieces * end / (end - begin)
        steep = -slope > 2 * noise * math.sqrt(pieces) / math.sqrt(17.5)
        return cls(
            learned=learned,
            loss_per_run=local if steep else max(learned, 0.0),
            noise=noise,
            points=min(sum(1 for p in t if p.samples <= end) for t in traces.values()),
        )

    def stretch(
        self,
        ours: Traces,
        theirs: Traces,
        begin: float,
        end: float,
        *,
        changes_rng_streams: bool,
        most_runs: int,
    ) -> Stretch | None:
        """Compare the mean losses over a stretch that may be longer than that of the curve.

        Args:
            ours: Of the candidate, by seed.
            theirs: Of the script.
            begin: In samples.
            end: The same.
            changes_rng_streams: Nothing pairs: the candidate's runs are not on the same samples.
            most_runs: Runs of the candidate that there may be in all.

        Returns:
            None where there are too few runs.
        """
        mine = {s: mean_between(t, begin, end) for s, t in ours.items()}
        base = {s: mean_between(t, begin, end) for s, t in theirs.items()}
        bounds = _by_distribution(mine, base) if changes_rng_streams else _by_pairs(mine, base, FEWEST_PAIRS)
        if bounds is None:
            return None
        delta, low, high = bounds
        return Stretch(
            delta=delta,
            low=low,
            high=high,
            noise=self._noise_of(base, changes_rng_streams=changes_rng_streams),
            loss_per_run=self._behind(theirs, begin, end),
            runs=len(mine),
            most_runs=most_runs,
        )

    def has_seeds(self, theirs: Traces, begin: float, end: float) -> bool:
        """Return whether the script's runs differ by their seeds, and not in their last digits alone."""
        base = {s: mean_between(t, begin, end) for s, t in theirs.items()}
        return sd(list(base.values())) > _resolution(base)

    def margin(self, theirs: Traces, begin: float, end: float, *, changes_rng_streams: bool) -> Margin:
        """Return the limit from the script's own noise, without runs to compare with."""
        base = {s: mean_between(t, begin, end) for s, t in theirs.items()}
        return self._noise_of(base, changes_rng_streams=changes_rng_streams).margin(_CONFIDENCE)

    def _noise_of(self, means: Mapping[int, float], *, changes_rng_streams: bool) -> Noise:
        spread, least = sd(list(means.values())), _resolution(means)
        by_seeds = spread > least or self.noise <= spread
        return Noise(
            spread=spread if by_seeds else self.noise,
            df=len(means) - 1 if by_seeds else _PIECES - 2,
            by_seeds=by_seeds,
            least=least,
            most=self.learned / 2 if self.learned > 0.0 else math.inf,
            share=1.0 if changes_rng_streams else _MARGIN_OF_SEED_SD,
        )

    def _behind(self, traces: Traces, begin: float, end: float) -> float:
        """Loss per whole run behind, by both ends of the stretch; the curve's own where it is its part."""
        width = _EDGE * end
        if end - begin <= 4 * width + 1e-9 * end:
            return self.loss_per_run
        first = statistics.fmean(mean_between(t, begin, begin + width) for t in traces.values())
        last = statistics.fmean(mean_between(t, end - width, end) for t in traces.values())
        steep = (first - last) * end / (end - begin - width)
        return steep if steep > 0.0 else self.loss_per_run


def _confidence(runs: int) -> float:
    return _CONFIDENCE if runs <= FULL else _LATE_CONFIDENCE


def _resolution(means: Mapping[int, float]) -> float:
    return _FLOAT_NOISE * max(abs(v) for v in means.values())


_Bounds = tuple[float, float, float]


def _by_pairs(ours: Mapping[int, float], theirs: Mapping[int, float], fewest: int) -> _Bounds | None:
    deltas = [ours[s] - theirs[s] for s in sorted(set(ours) & set(theirs))]
    n = len(deltas)
    if n < fewest:
        return None
    delta = statistics.fmean(deltas)
    half = t_quantile(_confidence(len(ours)), n - 1) * sd(deltas) / math.sqrt(n)
    return delta, delta - half, delta + half


def _by_distribution(ours: Mapping[int, float], theirs: Mapping[int, float]) -> _Bounds | None:
    """Return the bounds for two groups of runs, by common seeds or as groups, whichever is more precise.

    A paired difference removes what runs of one seed share. If they share nothing, it is a little wider than
    that of groups (Welch, 1947); with the usual similarity it is several times narrower. The bias from using
    the narrower is small: experiments/loss_guard measures it.
    """
    a, b = list(ours.values()), list(theirs.values())
    if min(len(a), len(b)) < FEWEST_SEEDS:
        return None
    delta = statistics.fmean(a) - statistics.fmean(b)
    va, vb = sd(a) ** 2 / len(a), sd(b) ** 2 / len(b)
    half = 0.0
    if va + vb > 0.0:
        df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
        half = t_quantile(_confidence(len(ours)), df) * math.sqrt(va + vb)
    apart = delta, delta - half, delta + half
    paired = _by_pairs(ours, theirs, FEWEST_SEEDS)
    return paired if paired is not None and paired[2] - paired[1] < 2.0 * half else apart
