"""The loss guard's verdicts on the configs of a study, from the losses that its runs showed. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.compare.amortised_rate import own_batch
from autotune.compare.extension import cycles_left
from autotune.loss.delayed_harm_rules import barred
from autotune.loss.loss_guard import LossVerdict, finite_and_sane, judge, scaler_skips
from autotune.loss.time_to_loss import equal_loss
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.loss.time_to_loss import EqualLoss
    from autotune.model.measurement import LossPoint, Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

FEWEST_LOSS_PAIRS: Final = 3
"""Pairs of runs below which a loss is not judged, although a rate may be claimed from two."""

_BASE = Config()
_UNJUDGED = LossVerdict(level=0, verdict="unclear", reason="The loss was not judged.")


def loss_verdict(study: Study, config: Config) -> LossVerdict:
    """Return the guard on a config: level 0 for EXACT ones, level 1 for what changes the numbers.

    An EXACT config is held to level 1 as well where the runs show it worse beyond doubt: then it
    was not exact.
    """
    runs, own = ([t.measurement for t in study.of(c) if t.measurement] for c in (config, _BASE))
    skipping = scaler_skips(runs, own)
    if skipping is not None:
        return skipping
    space = study.space
    candidate, baseline = loss_traces(study, config), loss_traces(study, _BASE)
    if not baseline:
        seen = [finite_and_sane(t) for t in candidate.values()]
        bad = next((v for v in seen if v.verdict == "fail"), None)
        return bad or LossVerdict(level=0, verdict="unclear", reason="The script shows no loss.")
    effect = space.effect(config) if space is not None else Effect.TRAINING
    changes_rng_streams = space.changes_rng_streams(config) if space is not None else True
    verdict = judge(
        candidate,
        baseline,
        changes_rng_streams=changes_rng_streams,
        effective_batch=own_batch(study),
        most_runs=len(candidate) + cycles_left(study),
    )
    if not candidate and sum(1 for t in study.of(config) if t.measurement) >= FEWEST_LOSS_PAIRS:
        verdict = replace(verdict, can_clear=False)
    if effect is not Effect.EXACT or verdict.verdict != "unclear":
        return verdict
    levels = [finite_and_sane(t) for t in candidate.values()]
    return next((v for v in levels if not v.passed), levels[0]) if levels else _UNJUDGED


def trace_steps(study: Study) -> int:
    """Optimizer steps over which all first runs of the script showed its loss, as a comparison will do."""
    traces = [t.measurement.loss for t in study.baseline if t.measurement and t.measurement.loss]
    return round(min((t[-1].samples for t in traces), default=0) / (own_batch(study) or 1.0))


def by_rule(study: Study, config: Config, loss: LossVerdict) -> LossVerdict:
    """Return the verdict, ``unclear`` if a trace could not have shown the harm."""
    if loss.verdict == "fail":
        return loss
    found = barred(study, config, judged_steps(study, config, loss))
    if found is None:
        return loss
    return replace(loss, verdict="unclear", can_clear=False, reason=found.sentence, rule=found.knob)


def judged_steps(study: Study, config: Config, loss: LossVerdict) -> int:
    """Optimizer steps over which a verdict saw the loss of a config; 0 where its confirmation showed none.

    Args:
        study: As of now.
        config: Whose runs.
        loss: The verdict on it.
    """
    if loss.level == 1 and loss.steps:
        return loss.steps
    runs = [t.measurement for t in study.of(config, Stage.CONFIRM) if t.measurement and t.measurement.loss]
    return round(min((m.loss[-1].samples for m in runs), default=0) / (own_batch(study) or 1.0))


def level_two(found: EqualLoss | None) -> LossVerdict:
    """Return the verdict from the time to equal loss, for a config that changes the training.

    Args:
        found: From `found_equal_loss`.
    """
    if found is None:
        return LossVerdict(
            level=2,
            verdict="unclear",
            # What a run did not show once, it does not show the next time.
            can_clear=False,
            reason="Its runs or the script's show too few losses, none that falls, or one that is no number, "
            "so no time to equal loss is known.",
        )
    outlook = "More runs can settle this." if found.may_clear else "More runs are unlikely to change this."
    judged = LossVerdict(
        level=2,
        verdict="unclear",
        delta=found.delta,
        margin=found.margin,
        can_clear=found.may_clear,
    )
    if not found.logs:
        reason = f"On average it did not reach the baseline's loss within its runs. {outlook}"
        return replace(judged, reason=reason)
    ratio, n = math.exp(statistics.fmean(found.logs.values())), len(found.logs)
    reads = f"It reaches the baseline's loss {ratio:.2f} times as fast, {n} {'pair' if n == 1 else 'pairs'}"
    if n < FEWEST_LOSS_PAIRS:
        return replace(judged, can_clear=True, reason=f"{reads}.")
    if found.keeps_up:
        return replace(judged, verdict="pass", reason=f"{reads}.")
    reason = (
        f"{reads}, but late in a run of the same time its loss may be above the baseline's by up to "
        f"{found.most:.2g}; the script's own noise allows {found.margin:.2g}, itself an estimate. {outlook}"
    )
    return replace(judged, reason=reason)


def found_equal_loss(
    study: Study,
    config: Config,
    cycles: Mapping[int, Mapping[Config, Trial]],
    rates: Mapping[int, Mapping[Config, float]],
) -> EqualLoss | None:
    """Return the time to equal loss, by cycle; None where a run shows no loss that could be compared.

    Args:
        study: As of now.
        config: One that changes the training.
        cycles: Of `confirmation_cycles`.
        rates: Cycle -> config -> what its runs count for, of the config and the baseline.
    """
    ours: dict[int, Sequence[LossPoint]] = {}
    theirs: dict[int, Sequence[LossPoint]] = {}
    log_rates: dict[int, float] = {}
    for group, runs in cycles.items():
        mine, base = runs.get(config), runs.get(_BASE)
        if mine is None or base is None or mine.measurement is None or base.measurement is None:
            continue
        rate, own = (
            rates[group][c] * _samples_per_count(m)
            for c, m in ((config, mine.measurement), (_BASE, base.measurement))
        )
        if min(rate, own) <= 0.0:
            return None
        ours[group], theirs[group] = mine.measurement.loss, base.measurement.loss
        log_rates[group] = math.log(rate / own)
    paired = {runs[_BASE].seed for runs in cycles.values() if _BASE in runs}
    others = [t for seed, t in loss_traces(study, _BASE).items() if seed not in paired]
    return equal_loss(ours, theirs, log_rates, others=others, most_runs=len(log_rates) + cycles_left(study))


def _samples_per_count(measurement: Measurement) -> float:
    """Return samples in what its throughput counts one by one: points of a loss are placed by samples."""
    by_steps = measurement.throughput.unit == "steps/s" and measurement.effective_batch > 0
    return measurement.effective_batch if by_steps else 1.0


def loss_traces(study: Study, config: Config) -> dict[int, Sequence[LossPoint]]:
    """Loss by seed; of several runs with one seed the longest trace."""
    found: dict[int, Sequence[LossPoint]] = {}
    for trial in study.of(config):
        trace = trial.measurement.loss if trial.measurement else ()
        if trace and (trial.seed not in found or trace[-1].samples > found[trial.seed][-1].samples):
            found[trial.seed] = trace
    return found
