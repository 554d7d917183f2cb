"""Reasons for an unmeasured baseline: the budget ended its first run, or the script failed. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from autotune.model.trial import FailureKind

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial

_WITHOUT_TORCH: Final = frozenset({"jax", "keras", "mxnet", "onnxruntime", "paddle", "tensorflow"})
"""Libraries that train or infer without a PyTorch optimizer; Keras may do either."""
_LONGER: Final = 2.0
"""Assumed length of a run that was ended early, as a multiple of its duration so far."""
_RUNS_REQUIRED: Final = 4
"""Runs for a first answer: the script twice, and a candidate twice."""


def other_libraries(study: Study) -> list[str]:
    """Return the script's imports that train without a PyTorch optimizer."""
    imports = study.facts.script.imports if study.facts is not None else ()
    return sorted(_WITHOUT_TORCH & set(imports))


def ended_by_budget(study: Study, trial: Trial) -> bool:
    """Return whether a failed baseline run only reached its deadline, which is a share of the budget.

    Such a failure does not mean that the script fails. A script of another library has no visible steps,
    however long it runs, so its deadline is not the cause.
    """
    failure = trial.failure
    if failure is None:
        return False
    has_steps = failure.evidence.get("steps") != 0
    if failure.kind is FailureKind.TIMEOUT_PROGRESS:
        # The limit for the first step of a baseline is the deadline of the run.
        at_deadline = trial.fidelity.setup_s >= trial.fidelity.deadline_s
        return not has_steps and at_deadline and not other_libraries(study)
    if failure.kind is FailureKind.TIMEOUT_TOTAL:
        return has_steps or not other_libraries(study)
    return "deadline_s" in failure.evidence


def ran_s(trial: Trial) -> float:
    """Return the seconds after which a run was ended."""
    return trial.seconds or trial.fidelity.deadline_s


def budget_wanted(seconds: float) -> str:
    """Return a budget that is long enough to measure the script, as an option value: ``6m``.

    Args:
        seconds: Duration that was too short for one run.
    """
    return f"{math.ceil(_RUNS_REQUIRED * _LONGER * seconds / 60.0)}m"
