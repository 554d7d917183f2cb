"""The figures of a trial that trackers receive, under the names of the MLflow metrics."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autotune.compare.disturbances import is_disturbed
from autotune.errors import UsageError
from autotune.report.view.summary import speedup_of

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial


def trial_figures(study: Study, trial: Trial) -> dict[str, float]:
    """Return the figures of a finished trial; empty for one that failed.

    ``throughput`` in samples/s, ``single_run_speedup`` over the baseline, ``peak_memory_gib``,
    ``data_wait_frac``, ``compile_s``, ``loss`` (the last one), ``disturbed`` (0 or 1).
    """
    measured = trial.measurement
    if measured is None:
        return {}
    figures = {
        "throughput": measured.throughput.value,
        "data_wait_frac": measured.data_wait_frac,
        "compile_s": measured.all_compile_s,
        "disturbed": float(is_disturbed(study, trial)),
    }
    ratio, peak = speedup_of(study, trial), measured.memory.peak_bytes
    if ratio is not None:
        figures["single_run_speedup"] = ratio.value
    if peak is not None:
        figures["peak_memory_gib"] = peak / 2**30
    if measured.loss:
        figures["loss"] = measured.loss[-1].loss
    return figures


def required(module: str, package: str) -> Any:
    """Import a module of an optional dependency.

    Raises:
        UsageError: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"{package} is not installed here", hint=f"pip install {package}") from error
