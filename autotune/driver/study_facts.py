"""A study as plain data for the service and its page: stage, trials, best so far, answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.model.config import config_text
from autotune.report.view.bottleneck_text import why_lines
from autotune.report.view.summary import best_other, headline, speedup_of

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study
    from autotune.model.trial import Trial


def study_facts(study: Study, answer: Answer | None = None) -> dict[str, Any]:
    """Return the state of a study.

    Args:
        study: The study.
        answer: Answer of a finished search; None while it runs.

    Returns:
        ``study``, ``trials``, ``failed``, ``elapsed_s``, ``headline``; ``stage`` while a trial runs;
        if known ``outcome``, ``held_back`` (the script's bottleneck), ``config``, ``speedup`` and
        ``interval`` (its ends, None where unbounded).
    """
    ended = study.finished()
    facts: dict[str, Any] = {
        "study": study.spec.study_id,
        "trials": len(ended),
        "failed": sum(trial.failure is not None for trial in ended),
        "elapsed_s": round(study.elapsed_s),
        "headline": headline(study, answer, interval=True),
    }
    if not study.stopped and study.open_trials:
        facts["stage"] = study.open_trials[-1].stage.value
    if answer is not None:
        facts["outcome"] = answer.outcome.value
        facts["held_back"] = why_lines(study, answer)[:3]
        if (pick := answer.best if answer.is_better else answer.likely) is not None:
            facts |= _gain(pick.speedup, config_text(pick.config))
    elif (best := best_other(study)) is not None and (ratio := speedup_of(study, best[1])) is not None:
        facts |= _gain(ratio, config_text(best[1].config))
    return facts


def trial_facts(study: Study, trial: Trial) -> dict[str, Any]:
    """Return a trial that has ended: number, attempt, stage, config, and its figure or failure."""
    facts: dict[str, Any] = {
        "number": trial.number,
        "attempt": trial.attempt,
        "stage": trial.stage.value,
        "config": config_text(trial.config),
        "seconds": round(trial.seconds, 1),
    }
    if trial.failure is not None:
        return {**facts, "failure": trial.failure.kind.words, "message": trial.failure.message[:500]}
    ratio = speedup_of(study, trial)
    return {**facts, **(_gain(ratio, facts["config"]) if ratio is not None else {})}


def _gain(ratio: Estimate, config: str) -> dict[str, Any]:
    ends = (ratio.low, ratio.high)
    return {
        "config": config,
        "speedup": round(ratio.value, 4),
        "interval": [round(end, 4) if math.isfinite(end) else None for end in ends],
    }
