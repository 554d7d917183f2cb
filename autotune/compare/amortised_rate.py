"""What a run counts for: its rate over the planned run, or what energy buys if that is searched for. Pure."""

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
from autotune.model.trial import Stage
from autotune.statistics.window_means import mean_of_windows, relative_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Config
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

_SCREENING = (Stage.BASELINE, Stage.START, Stage.REFINE, Stage.SENTINEL)
_IN_CYCLES = (Stage.CONFIRM, Stage.ABLATE)


def screened(study: Study) -> dict[Config, float]:
    """Mean amortised throughput by config, from baseline and screening runs; see `undisturbed`."""
    return {config: statistics.fmean(values) for config, values in screened_runs(study).items()}


def screened_runs(study: Study) -> dict[Config, list[float]]:
    """What `screened` are the means of, run by run."""
    return _runs_of(study, _SCREENING)


def paired_runs(study: Study) -> dict[Config, list[float]]:
    """The same of the runs of confirmation and ablation."""
    return _runs_of(study, _IN_CYCLES)


def _runs_of(study: Study, stages: Sequence[Stage]) -> dict[Config, list[float]]:
    rates: dict[Config, list[float]] = {}
    for trial in undisturbed(study, in_own_unit(study, study.told(*stages))):
        if trial.measurement is not None:
            rates.setdefault(trial.config, []).append(amortised(study, trial.measurement))
    return rates


def merits(study: Study) -> dict[Config, float]:
    """What a search ranks by: `screened`, or samples per joule where energy is its objective."""
    return {config: statistics.fmean(values) for config, values in merit_runs(study).items()}


def merit_runs(study: Study) -> dict[Config, tuple[float, ...]]:
    """What `merits` are the means of, run by run, in the order in which they were asked for."""
    found: dict[Config, list[float]] = {}
    for trial, value in merits_by_trial(study):
        found.setdefault(trial.config, []).append(value)
    return {config: tuple(values) for config, values in found.items()}


def all_merit_runs(study: Study) -> tuple[dict[Config, tuple[float, ...]], ...]:
    """`merit_runs`, and the same of confirmation and ablation, as `merits_by_trial` has them."""
    found: tuple[dict[Config, tuple[float, ...]], ...] = ({}, {})
    for trial, value in merits_by_trial(study, in_cycles=True):
        runs = found[trial.stage in _IN_CYCLES]
        runs[trial.config] = (*runs.get(trial.config, ()), value)
    return found


def merits_by_trial(study: Study, *, in_cycles: bool = False) -> list[tuple[Trial, float]]:
    """What each measured run counts for in `merits`, in the order in which they were asked for.

    A disturbed screening run is left out as soon as its config has an undisturbed one.

    Args:
        study: As of now.
        in_cycles: Those of confirmation and ablation as well, all charged alike; samples/s or samples/J, the
            latter at what the machine did while screening: by how much it has changed since is told by the
            script's own runs.
    """
    screening = undisturbed_values(study, _charged_once(study, _SCREENING))
    if not in_cycles:
        return screening
    # Both halves of a pair had the same load or the pair does not count, so cycles are judged by themselves.
    charged = _charged_once(study, (*_SCREENING, *_IN_CYCLES))
    kept = {t.number for t, _ in screening}
    charged = [(t, value) for t, value in charged if t.stage in _IN_CYCLES or t.number in kept]
    own: tuple[list[float], list[float]] = ([], [])
    for trial, value in charged:
        if trial.config.is_baseline and value > 0.0:
            own[trial.stage in _IN_CYCLES].append(math.log(value))
    slower = math.exp(-change_between(*own))
    return [(t, value * slower if t.stage in _IN_CYCLES else value) for t, value in charged]


def _charged_once(study: Study, stages: Sequence[Stage]) -> list[tuple[Trial, float]]:
    """What each measured run of these stages counts for, with the longest compile of its config.

    What ran once pays all of it: a full cache is no gain.
    """
    told = in_own_unit(study, study.told(*stages))
    measured = [(t, t.measurement) for t in told if t.measurement is not None]
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


def merit(study: Study, measurement: Measurement) -> float:
    """What one run counts for in `merits`; 0 where nothing counted its energy."""
    if study.spec.objective != ENERGY:
        return amortised(study, measurement)
    return samples_per_joule(measurement) or 0.0


def amortised(study: Study, measurement: Measurement) -> float:
    """Samples per second over the planned run, whose length in samples is the same for every config."""
    steps = planned_steps(study)
    # To look for the script's own batch is to go through all runs, and a search asks this of each of them.
    own = own_batch(study) if steps else 0.0
    if steps and own and measurement.effective_batch > 0:
        steps = max(1, round(steps * own / measurement.effective_batch))
    return measurement.amortised(steps) * over_epochs(study, measurement)


def baseline_runs(study: Study) -> list[Trial]:
    """Measured runs of the unchanged script, of every stage, in its own unit; see `undisturbed`."""
    return undisturbed(study, (t for t in in_own_unit(study, study.told()) if t.config.is_baseline))


def own_batch(study: Study) -> float:
    """Samples in an optimizer step of the unchanged script; 0 where no run of it told."""
    for trial in baseline_runs(study):
        if trial.measurement and trial.measurement.effective_batch > 0:
            return trial.measurement.effective_batch
    return 0.0


def rate_unit(study: Study) -> str:
    """Unit of the rates of a study, ``samples/s`` before anything was measured."""
    return own_unit(study) or "samples/s"


def mean_rate(runs: Sequence[tuple[float, Estimate]], unit: str) -> Estimate:
    """Mean of several runs with its interval, which does not reach below 0.

    Args:
        runs: The rate that each counts for and what its own window said, of which the relative width is
            used; at least one.
        unit: Of `rate_unit`.
    """
    errors = [rate * relative_error(window) for rate, window in runs]
    mean, low, high = mean_of_windows([rate for rate, _ in runs], errors)
    return Estimate(value=mean, low=max(0.0, low), high=high, n=len(runs), unit=unit)
