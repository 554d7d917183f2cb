"""The objective value of a run: its throughput over the planned run, or samples per joule. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.compare.break_even import over_epochs
from autotune.compare.disturbances import undisturbed, undisturbed_values
from autotune.compare.drift import change_between
from autotune.compare.energy import samples_per_joule
from autotune.compare.rounds import in_own_unit, own_unit
from autotune.model.measurement import Estimate
from autotune.model.objective import ENERGY
from autotune.model.run_length import planned_steps
from autotune.model.trial import PAIRED, Stage
from autotune.statistics.window_means import mean_of_windows, relative_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Config
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

_SCREENING = (Stage.BASELINE, Stage.INITIAL, Stage.REFINE, Stage.DRIFT_CHECK)


def screened(study: Study) -> dict[Config, float]:
    """Return config -> mean amortised throughput of undisturbed baseline and screening runs."""
    return {config: statistics.fmean(values) for config, values in screened_runs(study).items()}


def screened_runs(study: Study) -> dict[Config, list[float]]:
    """Return config -> the runs behind `screened`."""
    return _runs_of(study, _SCREENING)


def paired_runs(study: Study) -> dict[Config, list[float]]:
    """Return config -> amortised throughput of its runs in confirmation and ablation."""
    return _runs_of(study, PAIRED)


def _runs_of(study: Study, stages: Sequence[Stage]) -> dict[Config, list[float]]:
    rates: dict[Config, list[float]] = {}
    for trial in undisturbed(study, in_own_unit(study, study.finished(*stages))):
        if trial.measurement is not None:
            rates.setdefault(trial.config, []).append(amortised(study, trial.measurement))
    return rates


def objective_values(study: Study) -> dict[Config, float]:
    """Return config -> objective value: `screened`, or samples per joule if energy is the objective."""
    return {config: statistics.fmean(values) for config, values in objective_runs(study).items()}


def objective_runs(study: Study) -> dict[Config, tuple[float, ...]]:
    """Return config -> the runs behind `objective_values`, in the order in which they were requested."""
    found: dict[Config, list[float]] = {}
    for trial, value in objective_values_by_trial(study):
        found.setdefault(trial.config, []).append(value)
    return {config: tuple(values) for config, values in found.items()}


def all_objective_runs(study: Study) -> tuple[dict[Config, tuple[float, ...]], ...]:
    """Return `objective_runs` of screening, and those of confirmation and ablation."""
    found: tuple[dict[Config, tuple[float, ...]], ...] = ({}, {})
    for trial, value in objective_values_by_trial(study, in_cycles=True):
        runs = found[trial.stage.is_paired]
        runs[trial.config] = (*runs.get(trial.config, ()), value)
    return found


def objective_values_by_trial(study: Study, *, in_cycles: bool = False) -> list[tuple[Trial, float]]:
    """Return the objective value of each measured run, in the order in which they were requested.

    A disturbed screening run is left out once its config has an undisturbed one.

    Args:
        study: The study so far.
        in_cycles: Include runs of confirmation and ablation. All runs of a config are then charged the same
            compile time, and later runs are scaled by the drift of the script's own runs since screening.
    """
    screening = undisturbed_values(study, _charged_once(study, _SCREENING))
    if not in_cycles:
        return screening
    # A pair counts only if both halves had the same load, so cycles need no filter of their own.
    charged = _charged_once(study, (*_SCREENING, *PAIRED))
    retained = {t.number for t, _ in screening}
    charged = [(t, value) for t, value in charged if t.stage.is_paired or t.number in retained]
    own: tuple[list[float], list[float]] = ([], [])
    for trial, value in charged:
        if trial.config.is_baseline and value > 0.0:
            own[trial.stage.is_paired].append(math.log(value))
    slower = math.exp(-change_between(*own))
    return [(t, value * slower if t.stage.is_paired else value) for t, value in charged]


def _charged_once(study: Study, stages: Sequence[Stage]) -> list[tuple[Trial, float]]:
    """Return the value of each measured run of these stages, charged with its config's longest compile.

    A warm cache is no gain: the planned run pays for the whole compile.
    """
    runs = in_own_unit(study, study.finished(*stages))
    measured = [(t, t.measurement) for t in runs if t.measurement is not None]
    longest: dict[Config, Measurement] = {}
    for trial, m in measured:
        longest[trial.config] = max(longest.get(trial.config, m), m, key=lambda one: one.all_compile_s)
    charged: list[tuple[Trial, float]] = []
    for trial, m in measured:
        alike, most = m, longest[trial.config]
        if m.all_compile_s != most.all_compile_s:
            alike = replace(m, compile_s=most.compile_s, late_compile_s=most.late_compile_s)
        value = samples_per_joule(m) if study.spec.objective == ENERGY else amortised(study, alike)
        if value is not None:
            charged.append((trial, value))
    return charged


def objective_value(study: Study, measurement: Measurement) -> float:
    """Return the objective value of one run; 0 if its energy was not counted."""
    if study.spec.objective != ENERGY:
        return amortised(study, measurement)
    return samples_per_joule(measurement) or 0.0


def amortised(study: Study, measurement: Measurement) -> float:
    """Return samples/s over the planned run, whose length in samples is the same for all configs."""
    steps = planned_steps(study)
    # `own_batch` goes through all runs, and this function is called for each of them.
    own = own_batch(study) if steps else 0.0
    if steps and own and measurement.effective_batch > 0:
        steps = max(1, round(steps * own / measurement.effective_batch))
    return measurement.amortised(steps) * over_epochs(study, measurement)


def baseline_runs(study: Study) -> list[Trial]:
    """Return the undisturbed measured runs of the unchanged script in all stages, in its own unit."""
    return undisturbed(study, (t for t in in_own_unit(study, study.finished()) if t.config.is_baseline))


def own_batch(study: Study) -> float:
    """Return the samples per optimizer step of the unchanged script; 0 if unknown."""
    for trial in baseline_runs(study):
        if trial.measurement and trial.measurement.effective_batch > 0:
            return trial.measurement.effective_batch
    return 0.0


def rate_unit(study: Study) -> str:
    """Return the unit of a study's rates; ``samples/s`` before a measurement."""
    return own_unit(study) or "samples/s"


def mean_rate(runs: Sequence[tuple[float, Estimate]], unit: str) -> Estimate:
    """Return the mean of several runs with its interval, clipped at 0.

    Args:
        runs: The rate of each run, and the estimate from its window, for the relative width; at least one.
        unit: From `rate_unit`.
    """
    errors = [rate * relative_error(window) for rate, window in runs]
    mean, low, high = mean_of_windows([rate for rate, _ in runs], errors)
    return Estimate(value=mean, low=max(0.0, low), high=high, n=len(runs), unit=unit)
