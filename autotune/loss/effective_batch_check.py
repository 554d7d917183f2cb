"""Check that a run has the script's own steps, if a config changes only the micro-batches. Pure.

Another micro-batch at the same effective batch must be the same training. But scripts derive learning rates
from their batch option, and some do not divide the loss by their accumulation option. Facts of the process
decide. The same holds for a worker option that also changes the order of samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.model.trial import Failure, FailureKind

if TYPE_CHECKING:
    from autotune.model.facts import LoaderFacts, OptimizerFacts, RunFacts
    from autotune.model.study import Study
    from autotune.model.trial import Trial

MICRO: Final = "batch_size"
FACTOR: Final = "accumulation"
PROCESSES: Final = "processes"
_EFFECTIVE: Final = "effective_batch"
_WORKERS: Final = "num_workers"
_OUTLIVE: Final = "persistent_workers"
MOVES_OTHERS: Final = "moves_others"
"""`status` in the evidence of a delivery that changes more than its knob, for every value."""
OWN_WAYS: Final = ("flag", "constant")
"""Deliveries by which the script itself takes a value, and may derive others from it."""
ALIKE_FRAC: Final = 0.05
"""Relative difference up to which figures count as equal: a schedule may be rounded to batches."""
_SCALES_APART: Final = 1.25
"""Ratio from which losses are scaled for another number of micro-batches, or a step has other samples."""


def unlike_step(study: Study, trial: Trial, run: RunFacts | None) -> Failure | None:
    """Return why the steps of this trial differ from the script's own, at the same effective batch.

    Args:
        study: Its facts are those of the script's own run.
        trial: Its config and deliveries.
        run: Facts of its process.
    """
    own = study.facts.run if study.facts is not None else None
    config = trial.config
    if own is None or run is None:
        return None
    hows = {change.knob: change.spelling.how for change in trial.changes or ()}
    workers_by_own = hows.get(_WORKERS) in OWN_WAYS and _OUTLIVE not in config
    if workers_by_own and (reordered := _reordered(own.loader, run.loader)):
        return _failure(trial, _WORKERS, hows[_WORKERS], reordered)
    if not {MICRO, FACTOR, PROCESSES} & set(config):
        return None
    # A declared knob may be the learning rate itself.
    if any(spec.name in config for spec in study.spec.space.declared):
        return None
    if hows.get(FACTOR) in OWN_WAYS:
        compiles = config.get("compile_mode", "off") != "off"
        if scaled := _scaled_loss(own, run, config.get(FACTOR), compiles=compiles):
            return _failure(trial, FACTOR, hows[FACTOR], scaled)
    # Which of them the script derives other values from is not known if the number of processes differs.
    by_own = (knob for knob in (MICRO, FACTOR) if knob in config and hows.get(knob) in OWN_WAYS)
    taken = PROCESSES if PROCESSES in config else next(by_own, "")
    wanted = config.get(_EFFECTIVE, own.effective_batch)
    if taken and (other := _other_batch(run.effective_batch, wanted) or _other_training(own, run)):
        return _failure(trial, taken, hows.get(taken, ""), other)
    moved = "" if _EFFECTIVE in config else _moved(own.optimizer, run.optimizer)
    if not moved:
        return None
    knob = taken or next(knob for knob in (MICRO, FACTOR) if knob in config)
    return _failure(trial, knob, hows.get(knob, ""), moved)


def _failure(trial: Trial, knob: str, how: str, why: str) -> Failure:
    return Failure(
        kind=FailureKind.CONFIG_REJECTED,
        message=f"{knob}={trial.config.get(knob)} does not act alone: {why}",
        evidence={"knob": knob, "how": how, "status": MOVES_OTHERS},
    )


def _reordered(own: LoaderFacts | None, now: LoaderFacts | None) -> str:
    """Return why a worker option changes the order of samples, if the script's order is random."""
    if own is None or now is None or not own.shuffles or own.persistent_workers:
        return ""
    if not now.persistent_workers:
        return ""
    return "with it the script keeps its workers between passes, so later passes draw other random numbers"


def _moved(own: OptimizerFacts | None, now: OptimizerFacts | None) -> str:
    if own is None or now is None or own.name != now.name:
        return ""
    for what, before, after in (
        ("learning rate", own.rates, now.rates),
        ("weight decay", own.decays, now.decays),
    ):
        if len(before) != len(after):
            continue
        for old, new in zip(before, after, strict=True):
            if abs(new - old) > ALIKE_FRAC * max(abs(old), abs(new)):
                return (
                    f"the script moves its {what} from {old:.4g} to {new:.4g} with it, "
                    f"at the same effective batch"
                )
    return ""


def _other_batch(now: int | None, wanted: object) -> str:
    """Return why a step has another number of samples than required: some scripts derive it."""
    if (
        not isinstance(wanted, int)
        or not wanted
        or not now
        or 1 / _SCALES_APART < now / wanted < _SCALES_APART
    ):
        return ""
    return f"a step is over {now} samples with it instead of {wanted}"


def _other_training(own: RunFacts, run: RunFacts) -> str:
    """Return why the batch size also changes the model or the dataset."""
    before, now = own.model, run.model
    if before is not None and now is not None and before.name == now.name:
        counts = before.parameters, now.parameters
        if all(counts) and counts[0] != counts[1]:
            return f"the model has {counts[1]:,} parameters with it instead of {counts[0]:,}"
    samples = tuple(None if facts.loader is None else facts.loader.dataset_length for facts in (own, run))
    if all(samples) and samples[0] != samples[1]:
        return f"the dataset has {samples[1]:,} samples with it instead of {samples[0]:,}"
    return ""


def _scaled_loss(own: RunFacts, run: RunFacts, parts: object, *, compiles: bool) -> str:
    """Return why the micro-batches do not add up to the gradient of the script's own step."""
    own_parts = own.values.get(FACTOR, 1) if own.own_accumulation else 1
    if not isinstance(parts, int) or not isinstance(own_parts, int):
        return ""
    if own.reduction == "sum" and run.reduction != "sum" and not compiles:
        return "the loss is a sum over the batch, and it was not observed that micro-batches are still summed"
    if own.loss_scale is None or run.loss_scale is None:
        return ""
    before, now = own.loss_scale * own_parts, run.loss_scale * parts
    if before <= 0 or 1 / _SCALES_APART < now / before < _SCALES_APART:
        return ""
    return (
        f"the script multiplies the losses of {parts} parts by {run.loss_scale:.4g}, so their gradient is "
        f"{now / before:.3g} times that of its own step"
    )
