"""Why the baseline was not measured: the budget ended its first run, or the script failed. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from autotune.model.trial import FailureKind

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial

_WITHOUT_TORCH: Final = frozenset({"jax", "keras", "mxnet", "onnxruntime", "paddle", "tensorflow"})
"""Libraries that train or infer without an optimizer of PyTorch; Keras may do either."""
_LONGER: Final = 2.0
"""A run that was ended is believed to take this many times as long; its length is not known."""
_RUNS_WANTED: Final = 4
"""Runs that a first answer needs: the script twice, and a candidate twice."""


def other_libraries(study: Study) -> list[str]:
    """Imports of the script that train without an optimizer of PyTorch."""
    imports = study.facts.script.imports if study.facts is not None else ()
    return sorted(_WITHOUT_TORCH & set(imports))


def ended_by_budget(study: Study, trial: Trial) -> bool:
    """Whether a failed baseline run only met its deadline, which is a share of the budget.

    Such a failure does not say that the script fails. A script of another library makes no step that could be
    seen, however long it runs, so its deadline is not the cause.
    """
    failure = trial.failure
    if failure is None:
        return False
    is_seen = failure.evidence.get("steps") != 0
    if failure.kind is FailureKind.TIMEOUT_PROGRESS:
        # The limit for the first step of a baseline is the deadline of the run.
        at_deadline = trial.fidelity.setup_s >= trial.fidelity.deadline_s
        return not is_seen and at_deadline and not other_libraries(study)
    if failure.kind is FailureKind.TIMEOUT_TOTAL:
        return is_seen or not other_libraries(study)
    return "deadline_s" in failure.evidence


def ran_s(trial: Trial) -> float:
    """Seconds after which a run was ended."""
    return trial.seconds or trial.fidelity.deadline_s


def budget_wanted(seconds: float) -> str:
    """A budget that measures the script, as it is typed: ``6m``.

    Args:
        seconds: That were not enough for one run.
    """
    return f"{math.ceil(_RUNS_WANTED * _LONGER * seconds / 60.0)}m"
