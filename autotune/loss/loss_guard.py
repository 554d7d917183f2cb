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
            reckoned for as many runs of the config as the budget has room for.
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
"""Where the stretches of a run begin over which losses are compared."""

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
    """Level 0 beside the loss: a gradient scaler that goes on skipping steps after the first 20.

    Args:
        candidate: Runs of a config.
        baseline: Runs of the unchanged script.

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
    """Level 1: is the candidate's loss not worse than the baseline's, by the script's own noise?

    Compared is the mean loss over the last two thirds of the samples that all runs saw, and over their last
    third: runs of one seed drift apart and come together again, so the longer stretch tells more; the last
    third shows what comes late. A candidate passes where the bound of the first lies within its margin and
    the difference in the second does so with three chances in four. The margin is half the spread that the
    baseline has from seed to seed, or one spread where the candidate re-deals random streams, so that its
    runs are not on the same samples. It is never more than half of what the baseline learned, so that a
    candidate which learns nothing cannot hide in a noisy script. Where seeds change nothing, the noise of the
    baseline's own curve takes the place of the spread, and its last third alone is compared.

    A few runs know neither the difference nor the spread well, so both count: the bound of 95 % is one
    of the difference less the margin (`Stretch.excess`), of 97.5 % beyond the usual runs, whose pass stands
    unless all runs show harm. Runs of one seed keep much in common even where streams are dealt anew (first
    weights, mostly the order of samples), so their paired differences are used wherever those tell more than
    two separate groups would.

    Args:
        candidate: Loss traces by seed.
        baseline: The same of the unchanged script.
        changes_rng_streams: The candidate uses random streams otherwise; nothing pairs.
        effective_batch: Samples per optimizer step, to tell steps; 0 where unknown (points count).
        most_runs: Runs of the candidate that there may be in all, for `LossVerdict.can_clear`.

    Returns:
        ``pass``, ``fail``, or ``unclear`` where the runs cannot tell; `delay_frac_upper95` says
        how many of the steps the candidate may lie behind.
    """
    if len(candidate) > FULL:
        # What the usual runs have shown stands unless all of them show harm: from here the bound is stricter.
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
    # Traces are walked several times, and a packed one makes its points anew each time.
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
    """What two stretches of the same runs say together."""
    for stretch in (long, late):
        if stretch.excess[0] > 0.0:
            told = f"The loss is worse by {stretch.delta:.4g} on average; the script's own noise allows "
            reason = f"{told}{stretch.margin.value:.4g}."
            return replace(_shown(blank, stretch), verdict="fail", reason=reason)
    inside = long.excess[1] <= 0.0
    if inside and late.ends_well and learns:
        verdict = _shown(blank, long)
        return replace(verdict, verdict="pass", reason=_told(verdict))
    # What stands against it is what is told, and what more runs would have to clear.
    against = late if inside else long
    can_clear = learns and (inside or long.may_clear) and (late.ends_well or late.may_end_well)
    tell = "More runs can settle this." if can_clear else "More runs are unlikely to change this."
    margin = against.margin
    if not learns:
        reason = (
            f"The script's own loss does not fall within {blank.steps} steps, so losses cannot be compared."
        )
    elif inside:
        reason = (
            f"By the end the loss may be worse, by {against.delta:.4g} as it reads; the script's own noise "
            f"allows {margin.value:.4g}. {tell}"
        )
    elif against.high <= margin.value:
        reason = (
            f"The loss may be worse by up to {against.high:.4g}; the script's own noise allows "
            f"{margin.value:.4g} by {runs} runs, too few for a precise value: it may be as low as "
            f"{margin.low:.4g}. {tell}"
        )
    else:
        reason = (
            f"The loss may be worse by up to {against.high:.4g}; the script's own noise allows "
            f"{margin.value:.4g}. {tell}"
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


def _told(verdict: LossVerdict) -> str:
    behind = f"at most {verdict.delay_frac_upper95:.1%} of {verdict.steps} steps behind"
    return f"The loss is not inferior: {behind}, inside the script's own noise of {verdict.noise_frac:.1%}."
