"""Does a config keep the baseline's loss? Pure; standard library only."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.loss.non_inferiority import FULL, USUAL_RUNS, Curve, Stretch
from autotune.loss.trace import FEWEST_PAIRS, FEWEST_POINTS, FEWEST_SEEDS, common_part, is_usable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.loss.trace import Traces
    from autotune.model.measurement import LossPoint, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVerdict:
    """A judgement of the loss with its evidence.

    Args:
        level: 0 finite and not diverging; 1 non-inferior to the baseline on the same samples, or
            by distribution; 2 time to equal loss.
        verdict: ``pass``, ``fail``, or ``unclear`` (too few data to tell; bars like a failure).
        delta: Mean loss difference to the baseline over the judged part, positive = worse.
        margin: Limit from the script's own noise, in units of loss.
        steps: Number of steps judged.
        delay_frac_upper95: Upper bound of the delay as a share of the steps run.
        noise_frac: The margin in the same unit.
        paired: Judged on the same samples; False: by distribution over seeds.
        reason: A sentence.
        rule: Knob whose harm no trace of this length shows; if set, the verdict is ``unclear``, and more runs
            would not settle it.
        can_clear: Whether future runs have a chance of at least one in ten to turn an ``unclear`` verdict
            into a pass. Assumes as many runs of the config as the budget allows.
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
_LONG, _LATE = 1 / 3, 2 / 3
"""Starts of the parts of a run over which losses are compared."""

_SKIPPED_FRAC = 0.05
_SCALE_SETTLES_STEPS = 20


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
    if steps >= FEWEST_POINTS:
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
    """Return a level 0 failure if a gradient scaler continues to skip steps after the first 20.

    Args:
        candidate: Runs of a config.
        baseline: Runs of the unchanged script.

    Returns:
        A failure if more than 5 % of the steps were skipped, and more than in the script itself; else None.
    """
    mine, own = _skipped_frac(candidate), _skipped_frac(baseline)
    if mine <= max(_SKIPPED_FRAC, own):
        return None
    return LossVerdict(
        level=0,
        verdict="fail",
        steps=round(sum(_guarded_steps(m) for m in candidate)),
        reason=(
            f"The gradient scaler skipped {mine:.0%} of the steps, in which nothing is learned; your "
            f"script skips {own:.0%}."
        ),
    )


def _guarded_steps(measurement: Measurement) -> float:
    """Steps over which skips were counted: from the begin of the window to the end of the run."""
    return measurement.extra.get("guarded_steps", float(measurement.steps))


def _skipped_frac(runs: Sequence[Measurement]) -> float:
    """Return share of the steps after the first ones that were skipped, at the least, over all runs."""
    skipped = steps = 0.0
    for run in runs:
        # Which of them were skipped is not known; while the scale is found, all of them may be.
        early = max(0.0, _SCALE_SETTLES_STEPS - run.extra.get("opened_at_step", float(run.warmup_steps)))
        steps += max(0.0, _guarded_steps(run) - early)
        skipped += max(0.0, run.extra.get("skipped_scaler_steps", 0.0) - early)
    return skipped / steps if steps else 0.0


def judge(
    candidate: Traces,
    baseline: Traces,
    *,
    changes_rng_streams: bool,
    effective_batch: float = 0.0,
    most_runs: int = USUAL_RUNS,
) -> LossVerdict:
    """Judge level 1: the candidate's loss is not worse than the baseline's, by the script's own noise.

    The comparison uses the mean loss over the last two thirds of the common samples, and over their last
    third. Runs of one seed diverge and converge again, so the longer part is more precise; the last third
    shows late effects. A candidate passes if the bound of the first is within its margin and the difference
    in the second is so with three chances in four. The margin is half the spread of the baseline over seeds,
    or one spread if the candidate changes random streams, so that its runs do not use the same samples. It is
    at most half of the baseline's learning progress, so that a candidate that learns nothing cannot hide in a
    noisy script. If seeds have no effect, the noise of the baseline's own curve replaces the spread, and only
    its last third is compared.

    A few runs determine neither the difference nor the spread well, so both count. The bound of 95 % is one
    of the difference less the margin (`Stretch.excess`), of 97.5 % beyond the usual runs, whose pass holds
    unless all runs show harm. Runs of one seed are similar even with changed streams (first weights, mostly
    the order of samples). So their paired differences are used if those are more precise than two separate
    groups.

    Args:
        candidate: Loss traces by seed.
        baseline: The same of the unchanged script.
        changes_rng_streams: The candidate uses other random streams, so runs are not paired.
        effective_batch: Samples per optimizer step, to compute steps; 0 if unknown (points count).
        most_runs: Largest total number of candidate runs, for `LossVerdict.can_clear`.

    Returns:
        ``pass``, ``fail``, or ``unclear`` without enough evidence; `delay_frac_upper95` is the share of steps
        by which the candidate may be late.
    """
    if len(candidate) > FULL:
        # A result of the usual runs holds unless all of them show harm: from here the bound is stricter.
        usual = sorted(candidate)[:FULL]
        known = {s: t for s, t in baseline.items() if s <= usual[-1]}
        passed = judge(
            {s: candidate[s] for s in usual},
            known,
            changes_rng_streams=changes_rng_streams,
            effective_batch=effective_batch,
        )
        if passed.passed:
            now = _judged(candidate, baseline, changes_rng_streams, effective_batch, most_runs)
            return now if now.verdict == "fail" else passed
    return _judged(candidate, baseline, changes_rng_streams, effective_batch, most_runs)


def _judged(
    candidate: Traces, baseline: Traces, changes_rng_streams: bool, effective_batch: float, most_runs: int
) -> LossVerdict:
    # Traces are traversed several times, and a packed one creates its points each time.
    candidate, baseline = ({s: tuple(t) for s, t in side.items()} for side in (candidate, baseline))
    for trace in candidate.values():
        first = finite_and_sane(trace)
        if first.verdict == "fail":
            return replace(first, level=1, paired=not changes_rng_streams)
    ours = {s: t for s, t in candidate.items() if is_usable(t)}
    theirs = {s: t for s, t in baseline.items() if is_usable(t) and all(math.isfinite(p.loss) for p in t)}
    if not ours or len(theirs) < FEWEST_PAIRS:
        # Traces that are too short stay so; runs that are missing may come.
        short = (len(candidate) >= FEWEST_SEEDS and not ours) or len(baseline) - len(theirs) >= FEWEST_SEEDS
        return LossVerdict(
            level=1,
            verdict="unclear",
            paired=not changes_rng_streams,
            reason="Too few loss values to compare.",
            can_clear=not short,
        )
    ours, theirs, end = common_part(ours, theirs, paired=not changes_rng_streams)
    begin = end * _LATE
    curve = Curve.of(theirs, begin, end)
    steps = round(end / effective_batch) if effective_batch > 0 else curve.points
    late = curve.stretch(
        ours, theirs, begin, end, changes_rng_streams=changes_rng_streams, most_runs=most_runs
    )
    if late is None:
        need = f"{FEWEST_SEEDS} seeds of each" if changes_rng_streams else f"{FEWEST_PAIRS} pairs of runs"
        return LossVerdict(
            level=1, verdict="unclear", steps=steps, paired=not changes_rng_streams,
            margin=curve.margin(theirs, begin, end, changes_rng_streams=changes_rng_streams).value,
            reason=f"Too few runs to compare the loss: {need} are needed.",
        )  # fmt: skip
    long = None
    if curve.has_seeds(theirs, begin, end):
        long = curve.stretch(
            ours, theirs, end * _LONG, end, changes_rng_streams=changes_rng_streams, most_runs=most_runs
        )
    blank = LossVerdict(level=1, verdict="unclear", steps=steps, paired=not changes_rng_streams)
    if not changes_rng_streams and late.delta == 0.0 and late.high == 0.0:
        verdict = _shown(blank, late)
        return replace(verdict, verdict="pass", reason="The loss is the same to the last digit.")
    return _decided(blank, late, late if long is None else long, learns=curve.learned > 0.0, runs=len(theirs))


def _decided(blank: LossVerdict, late: Stretch, long: Stretch, *, learns: bool, runs: int) -> LossVerdict:
    """Return the joint verdict of two parts of the same runs."""
    for stretch in (long, late):
        if stretch.excess[0] > 0.0:
            allowance = f"The loss is worse by {stretch.delta:.4g} on average; the script's own noise allows "
            reason = f"{allowance}{stretch.margin.value:.4g}."
            return replace(_shown(blank, stretch), verdict="fail", reason=reason)
    inside = long.excess[1] <= 0.0
    if inside and late.ends_well and learns:
        verdict = _shown(blank, long)
        return replace(verdict, verdict="pass", reason=_pass_reason(verdict))
    # The evidence against it is reported, and is what more runs would have to clear.
    against = late if inside else long
    can_clear = learns and (inside or long.may_clear) and (late.ends_well or late.may_end_well)
    outlook = "More runs can settle this." if can_clear else "More runs are unlikely to change this."
    margin = against.margin
    if not learns:
        reason = (
            f"The script's own loss does not fall within {blank.steps} steps, so losses cannot be compared."
        )
    elif inside:
        reason = (
            f"By the end the loss may be worse, by {against.delta:.4g} as it reads; the script's own noise "
            f"allows {margin.value:.4g}. {outlook}"
        )
    elif against.high <= margin.value:
        reason = (
            f"The loss may be worse by up to {against.high:.4g}; the script's own noise allows "
            f"{margin.value:.4g} by {runs} runs, too few for a precise value: it may be as low as "
            f"{margin.low:.4g}. {outlook}"
        )
    else:
        reason = (
            f"The loss may be worse by up to {against.high:.4g}; the script's own noise allows "
            f"{margin.value:.4g}. {outlook}"
        )
    return replace(_shown(blank, against), reason=reason, can_clear=can_clear)


def _shown(blank: LossVerdict, stretch: Stretch) -> LossVerdict:
    unit = stretch.loss_per_run
    return replace(
        blank,
        delta=stretch.delta,
        margin=stretch.margin.value,
        delay_frac_upper95=max(0.0, stretch.high) / unit if unit > 0 else 0.0,
        noise_frac=stretch.margin.value / unit if unit > 0 else 0.0,
    )


def _pass_reason(verdict: LossVerdict) -> str:
    behind = f"at most {verdict.delay_frac_upper95:.1%} of {verdict.steps} steps behind"
    return f"The loss is not inferior: {behind}, inside the script's own noise of {verdict.noise_frac:.1%}."
