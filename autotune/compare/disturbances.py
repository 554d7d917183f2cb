"""Disturbances recorded with the figures of a comparison, as sentences. Pure; standard library only.

A figure keeps its marks: others used the CPU, no steady state was reached, clocks were reduced. No mark
excludes a run from a claim by itself, but a claim reports how many of its runs carry one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from autotune.compare.rounds import (
    alike,
    alike_cycles,
    foreign_cores,
    in_own_unit,
    own_unit,
)
from autotune.model.config import Config
from autotune.model.machine_load import quiet_cores, summary
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

NEIGHBOUR: Final = "neighbour"
"""Flag of a run beside which others used more CPU than beside the quietest, if it was repeated or not."""

STOPPED: Final = "stopped"
"""Flag of a run whose process was stopped inside its window; that time is set aside and no training time."""

MARKS: Final = {
    "cpu_contended": "other processes took its CPU time",
    NEIGHBOUR: "other processes used the CPUs",
    "cpu_throttled": "the quota of CPU time was used up",
    "foreign_gpu": "others used the accelerator",
    "gpu_shared": "other processes had memory on the accelerator",
    "throttled": "clocks were held down",
    "ecc_errors": "memory errors of the device",
    "drifting": "it drifted",
    "no_steady_state": "no steady state",
    "bursty": "uneven steps",
    "recompiled": "compiling inside the window",
    "compiled_late": "compiling after the window",
    "alloc_cliff": "the allocator ran short",
    "from_queue": "every batch was loaded before the window",
    "short": "only a few steps were timed",
    "unsettled": "the loader's queue had not settled",
    STOPPED: "it was suspended for some of the time",
}
"""Flags of a run that bear on its figure, in words."""

OTHERS: Final = frozenset({"cpu_contended", NEIGHBOUR, "foreign_gpu"})
"""Flags of a run that say that others used what it ran on."""

STEADY_RATIO: Final = 1.25
"""Two runs of the script further apart than this say nothing about a gain. On idle machines fresh processes
differ by up to 1.1, beside a neighbour by 2 and more."""

STEADY_WIDTH: Final = 0.25
"""One run of the script is enough where the interval of its window is no wider than this share of it."""

CLOCKS_APART: Final = 1.05
"""Two halves of a pair at clocks further apart than this differ by the clock as well."""

T = TypeVar("T")
_PAIRED = (Stage.CONFIRM, Stage.ABLATE)
_CLOCK: Final = "sm_clock_mhz"
_BASE = Config()


def crowds(study: Study) -> Callable[[float], bool]:
    """Return whether a run beside so many cores of other processes' work was disturbed.

    Where trials run one at a time, whatever is above the level of a quiet machine disturbs. Where several
    run at once they are each other's neighbours, and only more than beside the quietest run does.
    """
    cpus = study.facts.host.cpus if study.facts is not None else 0
    most = quiet_cores(cpus) if _runs_alone(study) else math.inf
    quietest = min((foreign_cores(t) for t in study.trials if t.measurement is not None), default=math.inf)
    return lambda cores: cores > most or (cores > quietest and not alike(cores, quietest, cpus))


def is_disturbed(study: Study, trial: Trial) -> bool:
    """Return whether others used what a measured run ran on; False for one that was not measured."""
    return _judge(study)(trial)


def without_disturbed(study: Study) -> Study:
    """Return the study without its disturbed runs."""
    is_bad = _judge(study)
    calm = tuple(t for t in study.trials if not is_bad(t))
    return study if len(calm) == len(study.trials) else replace(study, trials=calm)


def undisturbed(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """Return the same without disturbed runs of each config of which these hold an undisturbed run.

    A config of which every run was disturbed keeps all of them: a number with its mark is better than none.

    Args:
        study: As of now.
        trials: Any of it; those without a measurement stay.
    """
    return [trial for trial, _ in _undisturbed([(t, None) for t in trials], _judge(study))]


def undisturbed_values(study: Study, values: Sequence[tuple[Trial, float]]) -> list[tuple[Trial, float]]:
    """`undisturbed` for runs that already have a value each."""
    return _undisturbed(values, _judge(study))


def only_disturbed(study: Study) -> frozenset[Config]:
    """Return configs whose every screening run was disturbed, once the load is gone; a run again is due.

    Empty while the latest measured run was disturbed as well: a repeat would meet the same load, and what
    all runs have in common cancels in pairs.
    """
    measured = [t for t in study.finished() if t.measurement is not None]
    is_bad = _judge(study)
    latest = max(measured, key=lambda t: (t.finished_s, t.number), default=None)
    if latest is None or is_bad(latest):
        return frozenset()
    screened = [t for t in measured if t.stage not in _PAIRED]
    return frozenset(t.config for t in screened) - frozenset(t.config for t in screened if not is_bad(t))


def baseline_is_steady(study: Study) -> bool:
    """Return whether the script's own rate is known well enough that a ratio to it means something.

    Its last two undisturbed runs agree within `STEADY_RATIO`; or there is one, with a narrow interval and
    without any mark. Beside a load that stays its disturbed runs count, as all others meet the same load.
    """
    if _BASE in only_disturbed(study):
        return False
    runs = undisturbed(study, (t for t in in_own_unit(study, study.finished()) if t.config.is_baseline))
    measured = [(t, t.measurement.throughput) for t in runs if t.measurement is not None]
    if len(measured) > 1:
        low, high = sorted(rate.value for _, rate in measured[-2:])
        return 0.0 < high <= STEADY_RATIO * low
    return any(
        rate.relative_width <= STEADY_WIDTH
        and MARKS.keys().isdisjoint(_flags(t))
        and not is_disturbed(study, t)
        for t, rate in measured
    )


def _runs_alone(study: Study) -> bool:
    """Return trials of this study run one at a time, on a machine that the driver sees."""
    spec, facts = study.spec, study.facts
    at_once = len(facts.host.devices) if facts is not None and spec.driver == "ray" else 1
    return not spec.ray_address and spec.concurrency <= 1 and (spec.concurrency == 1 or at_once <= 1)


def _judge(study: Study) -> Callable[[Trial], bool]:
    """`is_disturbed` for many runs of one study."""
    is_crowding = crowds(study)

    def judge(trial: Trial) -> bool:
        if trial.measurement is None:
            return False
        return not OTHERS.isdisjoint(_flags(trial)) or is_crowding(foreign_cores(trial))

    return judge


def _undisturbed(rows: Sequence[tuple[Trial, T]], is_bad: Callable[[Trial], bool]) -> list[tuple[Trial, T]]:
    clean = {t.config for t, _ in rows if t.measurement is not None and not is_bad(t)}
    return [(t, v) for t, v in rows if t.config not in clean or not is_bad(t)]


def marked_runs(study: Study, configs: Sequence[Config]) -> list[str]:
    """Return the number of marked confirmation runs of the script and these configs; empty if none are.

    Args:
        study: As of now.
        configs: Configs of the claim, or of its absence.
    """
    runs = in_own_unit(study, study.finished(Stage.CONFIRM))
    runs = [t for t in runs if t.group > 0 and (t.config.is_baseline or t.config in configs)]
    found = [[flag for flag in MARKS if flag in _flags(t)] for t in runs]
    marked = sum(1 for flags in found if flags)
    if not marked:
        return []
    counts = {flag: sum(flag in flags for flags in found) for flag in MARKS}
    what = ", ".join(f"{MARKS[flag]} ({count})" for flag, count in counts.items() if count)
    verb = "was" if marked == 1 else "were"
    return [f"{marked} of {len(runs)} confirmation runs {verb} irregular: {what}."]


def is_crowded(study: Study, config: Config) -> bool:
    """Return whether others used the machine during most runs of the script and of this config.

    What is fastest beside others need not be what is fastest alone: threads that sleep while they wait, or
    fewer of them, lose little then. The pairs are right of the machine as it was, and say nothing of it idle.
    """
    paired = study.finished(Stage.CONFIRM)
    compared = paired if any(t.config == config for t in paired) else study.finished()
    runs = [t for t in compared if t.config.is_baseline or t.config == config]
    runs = [t for t in runs if t.measurement is not None]
    return 2 * sum(is_disturbed(study, t) for t in runs) > len(runs)


def clocks_apart(study: Study, configs: Sequence[Config]) -> list[str]:
    """Return a sentence for each config whose pairs ran at different accelerator clocks.

    A clock reduced by the config's power draw is an effect of the config; one reduced by earlier heat is not.
    Readings cannot distinguish them, so no pair is set aside.

    Args:
        study: As of now.
        configs: Configs of the claim, or of its absence.
    """
    cycles = alike_cycles(study, Stage.CONFIRM, _BASE)
    texts: list[str] = []
    for config in configs:
        halves = [
            (_clock(runs[config].measurement), _clock(runs[_BASE].measurement))
            for runs in cycles.values()
            if config in runs and _BASE in runs
        ]
        ratios = [ours / theirs for ours, theirs in halves if ours > 0 and theirs > 0]
        apart = [r for r in ratios if max(r, 1.0 / r) > CLOCKS_APART]
        if apart:
            most = max(apart, key=lambda r: abs(math.log(r)))
            texts.append(
                f"In {len(apart)} of {len(ratios)} pairs the accelerator's clock was more than 5 % apart "
                f"between your script and {config.text()} (furthest: {most:.2f} times your script's): a "
                "part of the difference may come from the clock."
            )
    return texts


def busy_notes(study: Study) -> list[str]:
    """Return a sentence per process that used the machine beside a search; empty without any."""
    return summary(study.busy)


def left_out(study: Study) -> list[str]:
    """Return runs that count another unit than the script does, so that they compare with nothing."""
    measured = [t for t in study.finished() if t.measurement is not None]
    count = len(measured) - len(in_own_unit(study, measured))
    if not count:
        return []
    runs = "1 run is" if count == 1 else f"{count} runs are"
    return [f"{runs} left out: not counted in {own_unit(study)}, as the first run of your script was."]


def _flags(trial: Trial) -> Iterable[str]:
    return trial.measurement.contamination.flags if trial.measurement is not None else ()


def _clock(measurement: Measurement | None) -> float:
    return 0.0 if measurement is None else measurement.extra.get(_CLOCK, 0.0)
