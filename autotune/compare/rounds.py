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
    """Return measured runs by round and config, with the same share of the machine as the reference's.

    The decision depends on other processes' use of the machine, never on the figures. A pair with one half
    beside another process would compare the machine with itself. A permanent neighbour affects both halves,
    so the pair is retained, although its share depends a little on the trial.

    All runs of one config get the same compile time, the shortest of them. A new config fills its cache in
    the first round and finds it full in the others; a mean over both would describe no run.
    `autotune.compare.break_even` computes when a full compile pays back. Runs that count in another unit than
    the script's first are left out.

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
    units = (
        t.measurement.throughput.unit for t in study.finished() if t.config.is_baseline and t.measurement
    )
    return next(units, "")


def in_own_unit(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials measured in the unit of the script's own throughput.

    Args:
        study: Its first run decides; before its measurement all others count.
        trials: Any trials; failed ones are left out.
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
    return [t for t in in_own_unit(study, study.finished(stage)) if t.group > 0]


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
