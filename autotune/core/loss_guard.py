"""Does a config keep the baseline's loss? Pure; standard library only."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autotune.core.measurement import Estimate, LossPoint, Measurement
from autotune.core.stats import ratio_interval, sd, sd_bounds, t_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVerdict:
    """A judgement with its evidence.

    Args:
        level: 0 finite and not diverging; 1 non-inferior to the baseline on the same samples, or
            by distribution; 2 time to equal loss.
        verdict: ``pass``, ``fail``, or ``unclear`` (too few data to tell; bars like a failure).
        delta: Mean loss difference to the baseline over the judged part, positive = worse.
        margin: What the script's own noise allows, in units of loss.
        steps: Steps the judgement rests on.
        delay_frac_upper95: Upper bound of the delay as a share of the steps run.
        noise_frac: The margin in the same unit.
        paired: Judged on the same samples; False: by distribution over seeds.
        reason: A sentence.
        rule: Knob whose harm no trace of this length shows; where it is named the verdict is ``unclear``, and
            more runs would not settle it.
        can_clear: Runs still to come have a fair chance, one in ten at least, to let an ``unclear`` one pass;
            reckoned for `MOST_RUNS` runs of the config in all.
    """

    level: int
    verdict: str
    delta: float = 0.0
    margin: float = 0.0
    steps: int = 0
    delay_frac_upper95: float = 0.0
    noise_frac: float = 0.0
    paired: bool = True
    reason: str = ""
    rule: str = ""
    can_clear: bool = True

    @property
    def passed(self) -> bool:
        """The config may be recommended as far as the loss goes."""
        return self.verdict == "pass"


_DIVERGED_FACTOR = 2.0
_CONFIDENCE = 0.95
_MARGIN_OF_SEED_SD = 0.5
_FEWEST_PAIRS = 2
_FEWEST_SEEDS = 3
_FEWEST_POINTS = 6
_FLOAT_NOISE = 1e-5
_PIECES = 6
_LEVELS = (0.5, 0.6, 0.7, 0.8)
_SMOOTH_FRAC = 0.15
_FAIR_CHANCE = 0.1
_SKIPPED_FRAC = 0.05
_SCALE_SETTLES_STEPS = 20

MOST_RUNS: Final = 12
"""Runs of one config, a cycle each, that a search makes at the most until its loss is judged."""

Traces = Mapping[int, Sequence[LossPoint]]


def finite_and_sane(trace: Sequence[LossPoint]) -> LossVerdict:
    """Level 0: the loss is finite and has not doubled since the start.

    Initial and final value are means over a tenth (at least three points) and the last third of the
    trace, so that one hard batch is no divergence. A loss that starts at or below zero can only be
    checked for being finite. Without any loss the verdict is ``unclear``.
    """
    steps = len(trace)
    if not steps:
        return LossVerdict(level=0, verdict="unclear", reason="No loss was seen.")
    broken = next((p for p in trace if not math.isfinite(p.loss)), None)
    if broken is not None:
        return LossVerdict(
            level=0,
            verdict="fail",
            steps=steps,
            reason=f"The loss is {broken.loss} at {broken.samples} samples.",
        )
    if steps >= _FEWEST_POINTS:
        first = statistics.fmean(p.loss for p in trace[: max(3, steps // 10)])
        last = statistics.fmean(p.loss for p in trace[-max(2, steps // 3) :])
        if first > 0.0 and last > _DIVERGED_FACTOR * first:
            return LossVerdict(
                level=0,
                verdict="fail",
                delta=last - first,
                steps=steps,
                reason=f"The loss rose from {first:.4g} to {last:.4g}: it diverges.",
            )
    return LossVerdict(
        level=0, verdict="pass", steps=steps, reason="The loss is finite and does not diverge."
    )


def scaler_skips(candidate: Sequence[Measurement], baseline: Sequence[Measurement]) -> LossVerdict | None:
    """Level 0 beside the loss: a gradient scaler that goes on skipping steps after the first 20.

    Args:
        candidate: Runs of a config.
        baseline: Runs of the script as it is.

    Returns:
        A failure where more than 5 % of the steps were skipped, and more than the script skips itself; None
        where nothing speaks against it.
    """
    mine, own = _skipped_frac(candidate), _skipped_frac(baseline)
    if mine <= max(_SKIPPED_FRAC, own):
        return None
    return LossVerdict(
        level=0,
        verdict="fail",
        steps=round(sum(_guarded_steps(m) for m in candidate)),
        reason=f"The gradient scaler skipped {mine:.0%} of the steps, in which nothing is learned; the "
        f"script as it is skips {own:.0%}.",
    )


def _guarded_steps(measurement: Measurement) -> float:
    """Steps over which skips were counted: from the begin of the window to the end of the run."""
    return measurement.extra.get("guarded_steps", float(measurement.steps))


def _skipped_frac(runs: Sequence[Measurement]) -> float:
    """Share of the steps after the first ones that were skipped, at the least, over all runs."""
    skipped = steps = 0.0
    for run in runs:
        # Which of them were skipped is not known; while the scale is found, all of them may be.
        early = max(0.0, _SCALE_SETTLES_STEPS - run.extra.get("opened_at_step", float(run.warmup_steps)))
        steps += max(0.0, _guarded_steps(run) - early)
        skipped += max(0.0, run.extra.get("skipped_scaler_steps", 0.0) - early)
    return skipped / steps if steps else 0.0


def judge(candidate: Traces, baseline: Traces, *, redeals: bool, effective_batch: float = 0.0) -> LossVerdict:
    """Level 1: is the candidate's loss not worse than the baseline's, by the script's own noise?

    Compared is the mean loss over the last third of the samples that all runs saw. The margin is
    half the spread that the baseline has from seed to seed, or one spread where the candidate
    re-deals random streams, so that its runs are not on the same samples. It is never more than
    half of what the baseline learned, so that a candidate which learns nothing cannot hide in a
    noisy script. Where seeds change nothing, the noise of the baseline's own curve takes the place
    of the spread.

    A few runs know neither the difference nor the spread well, so both count: the bound of 95 % is one
    of the difference less the margin (`_excess`). Runs of one seed keep much in common even
    where streams are dealt anew (first weights, mostly the order of samples), so their paired differences are
    used wherever those tell more than two separate groups would.

    Args:
        candidate: Loss traces by seed.
        baseline: The same of the script as it is.
        redeals: The candidate uses random streams otherwise; nothing pairs.
        effective_batch: Samples per optimizer step, to tell steps; 0 where unknown (points count).

    Returns:
        ``pass``, ``fail``, or ``unclear`` where the runs cannot tell; `delay_frac_upper95` says
        how many of the steps the candidate may lie behind.
    """
    # Traces are walked several times, and a packed one makes its points anew each time.
    candidate, baseline = ({s: tuple(t) for s, t in side.items()} for side in (candidate, baseline))
    for trace in candidate.values():
        first = finite_and_sane(trace)
        if first.verdict == "fail":
            return replace(first, level=1, paired=not redeals)
    ours = {s: t for s, t in candidate.items() if _usable(t)}
    theirs = {s: t for s, t in baseline.items() if _usable(t) and all(math.isfinite(p.loss) for p in t)}
    if not ours or len(theirs) < _FEWEST_PAIRS:
        # Traces that are too short stay so; runs that are missing may come.
        short = (len(candidate) >= _FEWEST_SEEDS and not ours) or len(baseline) - len(theirs) >= _FEWEST_SEEDS
        return LossVerdict(
            level=1,
            verdict="unclear",
            paired=not redeals,
            reason="Too few loss values to compare.",
            can_clear=not short,
        )
    ours, theirs, end = _common(ours, theirs, paired=not redeals)
    curve = _Curve.of(theirs, end)
    steps = round(end / effective_batch) if effective_batch > 0 else curve.points
    mine = {s: _mean_between(t, end * 2 / 3, end) for s, t in ours.items()}
    base = {s: _mean_between(t, end * 2 / 3, end) for s, t in theirs.items()}
    share = 1.0 if redeals else _MARGIN_OF_SEED_SD
    margin = _Margin.of(base, curve, share)
    bounds = _by_distribution(mine, base) if redeals else _by_pairs(mine, base, _FEWEST_PAIRS)
    if bounds is None:
        need = f"{_FEWEST_SEEDS} seeds of each" if redeals else f"{_FEWEST_PAIRS} pairs of runs"
        return LossVerdict(
            level=1, verdict="unclear", margin=margin.value, steps=steps, paired=not redeals,
            reason=f"Too few runs to compare the loss: {need} are needed.",
        )  # fmt: skip
    delta, _, high = bounds
    unit = curve.loss_per_run
    verdict = LossVerdict(
        level=1,
        verdict="unclear",
        delta=delta,
        margin=margin.value,
        steps=steps,
        delay_frac_upper95=max(0.0, high) / unit if unit > 0 else 0.0,
        noise_frac=margin.value / unit if unit > 0 else 0.0,
        paired=not redeals,
    )
    identical = not redeals and delta == 0.0 and high == 0.0
    if identical:
        return replace(verdict, verdict="pass", reason="The loss is the same to the last digit.")
    least, most = _excess(bounds, margin)
    if most <= 0.0 < curve.learned:
        return replace(verdict, verdict="pass", reason=_told(verdict))
    if least > 0.0:
        return replace(
            verdict,
            verdict="fail",
            reason=f"The loss is worse by {delta:.4g} on average; the script's own noise allows "
            f"{margin.value:.4g}.",
        )
    later = _Margin.of(base, curve, share, more=max(MOST_RUNS, len(mine) + 1) - len(mine))
    can_clear = curve.learned > 0.0 and _may_clear(bounds, later, len(mine))
    tell = "More runs would tell." if can_clear else "More runs would hardly tell."
    if curve.learned <= 0.0:
        reason = f"The script's own loss does not fall within {steps} steps, so nothing can be told."
    elif high <= margin.value:
        reason = (
            f"The loss may be worse by up to {high:.4g}; the script's own noise allows {margin.value:.4g} by "
            f"{len(base)} runs, which know it too little: it may be no more than {margin.low:.4g}. "
            f"{tell}"
        )
    else:
        reason = (
            f"The loss may be worse by up to {high:.4g}; the script's own noise allows "
            f"{margin.value:.4g}. {tell}"
        )
    return replace(verdict, reason=reason, can_clear=can_clear)


def time_to_equal_loss(
    candidate: Traces,
    baseline: Traces,
    *,
    candidate_rate: Mapping[int, float] | None = None,
    baseline_rate: Mapping[int, float] | None = None,
    confidence: float = 0.95,
) -> Estimate | None:
    """How much sooner the candidate reaches the loss that the baseline has at 50 to 80 % of its run.

    For configs whose effective batch differs, so that equal samples mean nothing. Both curves are
    smoothed over the same number of samples. Runs pair by seed.

    Args:
        candidate: Loss traces by seed.
        baseline: The same of the script as it is.
        candidate_rate: Samples per second by seed; the time is then samples over rate. Without it
            the traces' own clock counts, compiling and pauses included.
        baseline_rate: The same of the baseline.
        confidence: Of the interval.

    Returns:
        Unit ``ratio``, above 1 where the candidate is sooner, n = pairs of runs. None where there
        is no pair, the baseline learns nothing, or a candidate run never gets there: what it did
        not reach cannot be claimed.
    """
    logs: list[float] = []
    for seed in sorted(set(candidate) & set(baseline)):
        ours, theirs = candidate[seed], baseline[seed]
        if not (_usable(ours) and _usable(theirs)):
            continue
        if not all(math.isfinite(p.loss) for p in (*ours, *theirs)):
            return None
        pair = _sooner(
            ours,
            theirs,
            candidate_rate.get(seed) if candidate_rate else None,
            baseline_rate.get(seed) if baseline_rate else None,
        )
        if pair is None:
            return None
        logs.append(pair)
    return ratio_interval(logs, confidence=confidence) if logs else None


def _sooner(
    ours: Sequence[LossPoint], theirs: Sequence[LossPoint], our_rate: float | None, their_rate: float | None
) -> float | None:
    width = _SMOOTH_FRAC * theirs[-1].samples
    smooth = _smoothed(theirs, width)
    start, end = theirs[0].samples, theirs[-1].samples
    ratios: list[float] = []
    for level in _LEVELS:
        target = min(value for at, value in smooth if at <= start + level * (end - start))
        if not target < smooth[0][1]:
            continue
        mine = _reached(_smoothed(ours, width), target)
        base = _reached(smooth, target)
        if base is None or mine is None:
            return None
        seconds = mine / our_rate if our_rate else _time_at(ours, mine)
        base_seconds = base / their_rate if their_rate else _time_at(theirs, base)
        if seconds <= 0 or base_seconds <= 0:
            return None
        ratios.append(math.log(base_seconds / seconds))
    return statistics.fmean(ratios) if len(ratios) >= 2 else None


def _smoothed(trace: Sequence[LossPoint], width: float) -> list[tuple[float, float]]:
    """Mean over the last `width` samples at each point that has that much behind it."""
    return [
        (point.samples, _mean_between(trace, max(0.0, point.samples - width), point.samples))
        for point in trace
        if point.samples >= width or point is trace[-1]
    ]


def _reached(smooth: Sequence[tuple[float, float]], target: float) -> float | None:
    before: tuple[float, float] | None = None
    for at, value in smooth:
        if value <= target:
            if before is None or before[1] <= value:
                return at
            return before[0] + (at - before[0]) * (before[1] - target) / (before[1] - value)
        before = (at, value)
    return None


def _time_at(trace: Sequence[LossPoint], samples: float) -> float:
    before = (0.0, 0.0)
    for point in trace:
        if point.samples >= samples:
            width = point.samples - before[0]
            return before[1] + (point.t_s - before[1]) * ((samples - before[0]) / width if width else 1.0)
        before = (float(point.samples), point.t_s)
    return trace[-1].t_s


def _usable(trace: Sequence[LossPoint]) -> bool:
    return len(trace) >= _FEWEST_POINTS and trace[-1].samples > 0


def _common(
    ours: Traces, theirs: Traces, *, paired: bool
) -> tuple[dict[int, Sequence[LossPoint]], dict[int, Sequence[LossPoint]], float]:
    """The runs to compare and the samples all of them reached.

    Much shorter runs are left out where enough remain, since they would cut the others.
    """
    longest = min(max(t[-1].samples for t in side.values()) for side in (ours, theirs))
    long_ours = {s: t for s, t in ours.items() if t[-1].samples >= 0.6 * longest}
    long_theirs = {s: t for s, t in theirs.items() if t[-1].samples >= 0.6 * longest}
    matched = len(set(long_ours) & set(long_theirs)) if paired else len(long_ours)
    enough = matched >= (_FEWEST_PAIRS if paired else _FEWEST_SEEDS) and len(long_theirs) >= _FEWEST_SEEDS
    if not enough:
        long_ours, long_theirs = dict(ours), dict(theirs)
    end = min(t[-1].samples for side in (long_ours, long_theirs) for t in side.values())
    return long_ours, long_theirs, float(end)


def _mean_between(trace: Sequence[LossPoint], begin: float, end: float) -> float:
    """Mean over (begin, end] on the samples axis; a point stands for the samples since the last.

    Runs on the same samples thus pair even where one trace is thinned more than the other.
    """
    weighed, weight, last = 0.0, 0.0, 0.0
    for point in trace:
        inside = min(float(point.samples), end) - max(last, begin)
        if inside > 0:
            weighed += inside * point.loss
            weight += inside
        last = float(point.samples)
    return weighed / weight if weight else trace[-1].loss


def _resolution(means: Mapping[int, float]) -> float:
    return _FLOAT_NOISE * max(abs(v) for v in means.values())


_Bounds = tuple[float, float, float]


def _by_pairs(ours: Mapping[int, float], theirs: Mapping[int, float], fewest: int) -> _Bounds | None:
    deltas = [ours[s] - theirs[s] for s in sorted(set(ours) & set(theirs))]
    n = len(deltas)
    if n < fewest:
        return None
    delta = statistics.fmean(deltas)
    half = t_quantile(_CONFIDENCE, n - 1) * sd(deltas) / math.sqrt(n)
    return delta, delta - half, delta + half


def _by_distribution(ours: Mapping[int, float], theirs: Mapping[int, float]) -> _Bounds | None:
    """Of two groups of runs, by the seeds they share or as groups, whichever tells more.

    A paired difference holds whatever runs of one seed share; with nothing shared it is a little wider than
    that of groups (Welch, 1947), with as much as is usual several times narrower. Taking the narrower
    costs little: experiments/loss_guard counts it.
    """
    a, b = list(ours.values()), list(theirs.values())
    if min(len(a), len(b)) < _FEWEST_SEEDS:
        return None
    delta = statistics.fmean(a) - statistics.fmean(b)
    va, vb = sd(a) ** 2 / len(a), sd(b) ** 2 / len(b)
    half = 0.0
    if va + vb > 0.0:
        df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
        half = t_quantile(_CONFIDENCE, df) * math.sqrt(va + vb)
    apart = delta, delta - half, delta + half
    paired = _by_pairs(ours, theirs, _FEWEST_SEEDS)
    return paired if paired is not None and paired[2] - paired[1] < 2.0 * half else apart


@dataclass(frozen=True, slots=True)
class _Margin:
    """What the script's own noise allows, and what it may be at the least and at the most."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, means: Mapping[int, float], curve: _Curve, share: float, *, more: int = 0) -> _Margin:
        """By so many runs, or as it would be if so many more had the same spread."""
        spread, df = sd(list(means.values())), len(means) - 1 + more
        if spread <= _resolution(means) and curve.noise > spread:
            spread, df = curve.noise, _PIECES - 2
        low, high = sd_bounds(spread, df, confidence=_CONFIDENCE)
        # Rounding is no noise that runs have to show, and what is learned bounds all of it.
        least, most = _resolution(means), max(0.0, curve.learned / 2)
        if curve.learned <= 0.0:
            most = math.inf
        return cls(*(min(most, max(share * s, least)) for s in (spread, low, high)))


def _excess(bounds: _Bounds, margin: _Margin) -> tuple[float, float]:
    """Bounds on the difference less the margin, each one-sided, where both are estimates.

    The distances of either to its own bound are added in squares (Zou and Donner, *Construction of confidence
    limits about effect measures*, 2008).
    """
    delta, low, high = bounds
    middle = delta - margin.value
    least = middle - math.hypot(delta - low, margin.high - margin.value)
    most = middle + math.hypot(high - delta, margin.value - margin.low)
    return least, most


def _may_clear(bounds: _Bounds, margin: _Margin, runs: int) -> bool:
    """Whether runs up to `MOST_RUNS` have a fair chance to bring the bound below this margin.

    The mean of all runs lies as far from that of these as the runs still to come may pull it; what
    they differ by is taken to stay what it is.
    """
    delta, _, high = bounds
    most = max(MOST_RUNS, runs + 1)
    each = (high - delta) / t_quantile(_CONFIDENCE, runs - 1) * math.sqrt(runs)
    pull = t_quantile(1.0 - _FAIR_CHANCE, runs - 1) * each * math.sqrt(1.0 / runs - 1.0 / most)
    half = t_quantile(_CONFIDENCE, most - 1) * each / math.sqrt(most)
    return delta - pull - margin.value + math.hypot(half, margin.value - margin.low) <= 0.0


@dataclass(frozen=True, slots=True)
class _Curve:
    """The baseline's own course: what it learned, how steep it still is, how noisy."""

    learned: float
    loss_per_run: float
    noise: float
    points: int

    @classmethod
    def of(cls, traces: Traces, end: float) -> _Curve:
        pieces = _PIECES
        edges = [end * (2 / 3 + k / (3 * pieces)) for k in range(pieces + 1)]
        rows = [[_mean_between(t, a, b) for a, b in itertools.pairwise(edges)] for t in traces.values()]
        mean = [statistics.fmean(column) for column in zip(*rows, strict=True)]
        slope = statistics.linear_regression(range(pieces), mean).slope
        middle = (pieces - 1) / 2
        wobble = [v - statistics.fmean(mean) - slope * (k - middle) for k, v in enumerate(mean)]
        noise = math.sqrt(math.fsum(w * w for w in wobble) / (pieces - 2)) / math.sqrt(pieces)
        first = statistics.fmean(
            _mean_between(t, 0.0, max(end / 10, float(t[0].samples))) for t in traces.values()
        )
        learned = first - statistics.fmean(mean)
        # Per whole run: the local slope where it stands out of its noise, else the mean slope.
        local = -slope * 3 * pieces
        steep = -slope > 2 * noise * math.sqrt(pieces) / math.sqrt(17.5)
        return cls(
            learned=learned,
            loss_per_run=local if steep else max(learned, 0.0),
            noise=noise,
            points=min(sum(1 for p in t if p.samples <= end) for t in traces.values()),
        )


def _told(verdict: LossVerdict) -> str:
    behind = f"at most {verdict.delay_frac_upper95:.1%} of {verdict.steps} steps behind"
    return f"The loss is not inferior: {behind}, inside the script's own noise of {verdict.noise_frac:.1%}."
