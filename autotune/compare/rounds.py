"""Cycles of fresh runs that are compared with one another: which of them had the same machine. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.model.config import Config
from autotune.model.machine_load import quiet_cores
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

ALIKE_SHARE: Final = 0.5
"""Or by at most this share of the larger one: a neighbour who is there all the time gets less CPU beside
the hungrier of two configs."""


def alike_cycles(study: Study, stage: Stage, reference: Config) -> dict[int, dict[Config, Trial]]:
    """Measured runs by cycle and config, those that had the machine to the same extent as the reference's.

    Decided by what other processes used, as seen from outside, and never by the figures: a pair of
    which one half ran beside somebody else's work compares the machine with itself. Where a
    neighbour is there all the time, both halves have it and the pair stays, although what the
    neighbour gets depends a little on what runs beside it.

    All runs of one config carry the same compile, the shortest that any of them had: a config that had never
    run before fills its cache in the first cycle and finds it full in the others, and a mean over both
    is true of no run. When a full compile has paid back is `autotune.compare.break_even`'s to say. Runs that
    count in another unit than the script's first are left out.

    Args:
        study: As of now.
        stage: Confirmation, or ablation.
        reference: The config that every other one of a cycle is compared with.
    """
    found: dict[int, dict[Config, Trial]] = {}
    for trial in _charged_alike(_measured(study, stage)):
        found.setdefault(trial.group, {})[trial.config] = trial
    cpus = study.facts.host.cpus if study.facts is not None else 0
    return {g: kept for g, runs in found.items() if (kept := _alike(runs, reference, cpus))}


def confirmation_cycles(study: Study) -> dict[int, dict[Config, Trial]]:
    """`alike_cycles` of confirmation, where every config is compared with the unchanged script."""
    return alike_cycles(study, Stage.CONFIRM, Config())


def disturbed_pairs(study: Study, stage: Stage, reference: Config) -> int:
    """Pairs that were set aside because something else used the machine in one half of them."""
    measured = _measured(study, stage)
    # Without its reference a cycle holds no pair that could be set aside.
    whole = {t.group for t in measured if t.config == reference}
    pairs = sum(1 for t in measured if t.group in whole and t.config != reference)
    return pairs - sum(max(0, len(runs) - 1) for runs in alike_cycles(study, stage, reference).values())


def own_unit(study: Study) -> str:
    """Unit of the script's first measured throughput, ``samples/s`` or ``steps/s``; empty before that."""
    units = (t.measurement.throughput.unit for t in study.told() if t.config.is_baseline and t.measurement)
    return next(units, "")


def in_own_unit(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """Those that were measured in the unit of the script's own throughput, in which alone they compare.

    Args:
        study: Whose first run decides; before it was measured all others count.
        trials: Any of it; failed ones are left out.
    """
    unit = own_unit(study)
    return [t for t in trials if t.measurement and (not unit or t.measurement.throughput.unit == unit)]


def foreign_cores(trial: Trial) -> float:
    """Cores that other processes used during a trial, 0 where that was not measured."""
    measured = trial.measurement
    return (measured.contamination.foreign_cpu_frac or 0.0) if measured is not None else 0.0


def alike(cores: float, other: float, cpus: int) -> bool:
    """Return whether two runs beside so many cores of other processes' work had the same machine.

    Args:
        cores: What others used during one run.
        other: During the other.
        cpus: Of the machine; 0 where unknown.
    """
    most = max(quiet_cores(cpus), ALIKE_SHARE * max(cores, other))
    return abs(cores - other) <= most


def _measured(study: Study, stage: Stage) -> list[Trial]:
    return [t for t in in_own_unit(study, study.told(stage)) if t.group > 0]


def _charged_alike(trials: Sequence[Trial]) -> list[Trial]:
    """Return the same runs, those of one config with the shortest compile that any of them had."""
    least: dict[Config, Measurement] = {}
    for trial in trials:
        measured = trial.measurement
        if measured is not None:
            known = least.setdefault(trial.config, measured)
            least[trial.config] = min(known, measured, key=lambda m: m.all_compile_s)
    charged: list[Trial] = []
    for trial in trials:
        measured = trial.measurement
        if measured is None or measured.all_compile_s == least[trial.config].all_compile_s:
            charged.append(trial)
        else:
            warm = least[trial.config]
            paid = replace(measured, compile_s=warm.compile_s, late_compile_s=warm.late_compile_s)
            charged.append(replace(trial, outcome=paid))
    return charged


def _alike(runs: Mapping[Config, Trial], reference: Config, cpus: int) -> dict[Config, Trial]:
    base = runs.get(reference)
    if base is None:
        return {}
    own = foreign_cores(base)
    kept = {c: t for c, t in runs.items() if alike(foreign_cores(t), own, cpus)}
    return kept if len(kept) > 1 or len(runs) == 1 else {}
