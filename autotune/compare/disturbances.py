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
"""Flag of a run beside which others used more CPU than beside the quietest run."""

STOPPED: Final = "stopped"
"""Flag of a run whose process was stopped inside its window; that time is excluded."""

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
"""Flag of a run that affects its figure -> text for users."""

OTHERS: Final = frozenset({"cpu_contended", NEIGHBOUR, "foreign_gpu"})
"""Flags of a run beside which others used its CPUs or its accelerator."""

STEADY_RATIO: Final = 1.25
"""Largest ratio of two runs of the script from which a gain can be concluded.

On idle machines fresh processes differ by up to 1.1, beside other users by 2 and more.
"""

STEADY_WIDTH: Final = 0.25
"""Relative width of a window's interval up to which one run of the script suffices."""

CLOCKS_APART: Final = 1.05
"""Ratio of the clocks of a pair above which the clock contributes to their difference."""

T = TypeVar("T")
_CLOCK: Final = "sm_clock_mhz"
_BASE = Config()


def crowds(study: Study) -> Callable[[float], bool]:
    """Return whether a run beside so many cores of other processes' work was disturbed.

    With one trial at a time, any load above that of a quiet machine disturbs. Trials that run at once load
    the machine for each other, so only more load than beside the quietest run disturbs.
    """
    cpus = study.facts.host.cpus if study.facts is not None else 0
    most = quiet_cores(cpus) if _runs_alone(study) else math.inf
    quietest = min((foreign_cores(t) for t in study.trials if t.measurement is not None), default=math.inf)
    return lambda cores: cores > most or (cores > quietest and not alike(cores, quietest, cpus))


def is_disturbed(study: Study, trial: Trial) -> bool:
    """Return whether others used the CPUs or accelerator of a measured run; False without a measurement."""
    return _judge(study)(trial)


def without_disturbed(study: Study) -> Study:
    """Return the study without its disturbed runs."""
    is_bad = _judge(study)
    clean = tuple(t for t in study.trials if not is_bad(t))
    return study if len(clean) == len(study.trials) else replace(study, trials=clean)


def undisturbed(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials without disturbed runs of configs that also have an undisturbed run.

    A config with disturbed runs only keeps them, with their marks.

    Args:
        study: Current study.
        trials: Trials of it; those without a measurement are retained.
    """
    return [trial for trial, _ in _undisturbed([(t, None) for t in trials], _judge(study))]


def undisturbed_values(study: Study, values: Sequence[tuple[Trial, float]]) -> list[tuple[Trial, float]]:
    """`undisturbed` for runs that already have a value each."""
    return _undisturbed(values, _judge(study))


def only_disturbed(study: Study) -> frozenset[Config]:
    """Return configs with disturbed screening runs only, once the load has ended: each is due for a repeat.

    Empty while the latest measured run was disturbed as well: a repeat would have the same load, and a
    load on all runs cancels in pairs.
    """
    measured = [t for t in study.finished() if t.measurement is not None]
    is_bad = _judge(study)
    latest = max(measured, key=lambda t: (t.finished_s, t.number), default=None)
    if latest is None or is_bad(latest):
        return frozenset()
    screened = [t for t in measured if not t.stage.is_paired]
    return frozenset(t.config for t in screened) - frozenset(t.config for t in screened if not is_bad(t))


def baseline_is_steady(study: Study) -> bool:
    """Return whether the script's own rate is steady enough for ratios to it.

    Its last two undisturbed runs agree within `STEADY_RATIO`; a single one has a narrow interval and no mark.
    Under a lasting load its disturbed runs count, as all others have the same load.
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
    """Return whether trials of this study run one at a time, on a machine that the driver observes."""
    spec, facts = study.spec, study.facts
    at_once = len(facts.host.devices) if facts is not None and spec.driver == "ray" else 1
    return not spec.ray_address and spec.concurrency <= 1 and (spec.concurrency == 1 or at_once <= 1)


def _judge(study: Study) -> Callable[[Trial], bool]:
    """Return `is_disturbed` for many runs of one study."""
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
        study: Current study.
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

    The fastest config beside other users need not be the fastest on an idle machine: fewer threads, or
    threads that sleep while they wait, lose less there. The pairs are valid for the load of their time only.
    """
    paired = study.finished(Stage.CONFIRM)
    compared = paired if any(t.config == config for t in paired) else study.finished()
    runs = [t for t in compared if t.config.is_baseline or t.config == config]
    runs = [t for t in runs if t.measurement is not None]
    return 2 * sum(is_disturbed(study, t) for t in runs) > len(runs)


def clocks_apart(study: Study, configs: Sequence[Config]) -> list[str]:
    """Return a sentence for each config whose pairs ran at different accelerator clocks.

    A clock reduced by the config's power draw is an effect of the config; one reduced by earlier heat is not.
    Readings cannot distinguish them, so no pair is excluded.

    Args:
        study: Current study.
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
        ratios = [clock / own for clock, own in halves if clock > 0 and own > 0]
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
    """Return a note on runs in another unit than the script's; empty without any."""
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
