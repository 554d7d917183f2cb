"""Configs that are no longer recommended because one of their runs failed. Pure; standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.model.trial import Family

if TYPE_CHECKING:
    from autotune.model.config import Config
    from autotune.model.study import Study
    from autotune.model.trial import Trial


CUT_SHORT: Final = 2.0
"""A run that was left less than this many times what its config has taken was not given the time to fail."""


def broken(study: Study) -> dict[Config, Trial]:
    """Return config -> the first run that excludes it, however fast the others were.

    That is any run with a non-finite loss, and any paired run with a failure that the config can cause, as it
    could end a training. A crash that did not recur was replaced by its repeat. A run cut by the end of the
    budget is no evidence about its config. The unchanged script counts like any other.

    Args:
        study: As of now.
    """
    found: dict[Config, Trial] = {}
    for trial in study.finished():
        failure = trial.failure
        if failure is None or not failure.kind.teaches or trial.config in found:
            continue
        is_diverged = failure.kind.family is Family.DIVERGED
        if is_diverged or (trial.stage.is_paired and not _was_cut_short(study, trial)):
            found[trial.config] = trial
    return found


def _was_cut_short(study: Study, trial: Trial) -> bool:
    if trial.failure is None or trial.failure.kind.family is not Family.HANG:
        return False
    own_s = [t.own_s for t in study.of(trial.config) if t.measurement]
    # What never ran is held to what the others took.
    longest_s = max(own_s or (t.own_s for t in study.finished() if t.measurement), default=0.0)
    return trial.fidelity.deadline_s < CUT_SHORT * longest_s
