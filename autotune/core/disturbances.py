"""What was recorded beside the figures of a comparison, said in sentences. Pure; standard library only.

A figure keeps its marks: that others took the CPU, that no steady state came, that clocks were held down.
No mark takes a run out of a claim by itself; whoever reads the claim has to know how many of its runs carry
one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.core.config import Config
from autotune.core.cycles import alike_cycles, in_own_unit, own_unit
from autotune.core.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.core.measurement import Measurement
    from autotune.core.study import Study
    from autotune.core.trial import Trial

NEIGHBOUR: Final = "neighbour"
"""Flag of a run beside which others used more CPU than beside the quietest, if it was repeated or not."""

MARKS: Final = {
    "cpu_contended": "others took CPU from it",
    NEIGHBOUR: "others used the CPUs beside it",
    "cpu_throttled": "the quota of CPU time was used up",
    "foreign_gpu": "others used the accelerator",
    "gpu_shared": "others had memory on the accelerator",
    "throttled": "clocks were held down",
    "ecc_errors": "memory errors of the device",
    "drifting": "it drifted",
    "no_steady_state": "no steady state",
    "bursty": "uneven steps",
    "recompiled": "compiling inside the window",
    "compiled_late": "compiling after the window",
    "alloc_cliff": "the allocator ran short",
    "from_queue": "every batch was loaded before it",
    "short": "only a few steps were timed",
    "unsettled": "the loader's queue had not settled",
}
"""Flags of a run that bear on its figure, in words."""

OTHERS: Final = frozenset({"cpu_contended", NEIGHBOUR, "foreign_gpu"})
"""Flags of a run that say that others used what it ran on."""

CLOCKS_APART: Final = 1.05
"""Two halves of a pair at clocks further apart than this differ by the clock as well."""

_CLOCK: Final = "sm_clock_mhz"
_BASE = Config()


def is_disturbed(study: Study, trial: Trial) -> bool:  # noqa: ARG001
    """Whether others used what a measured run ran on; False for one that was not measured."""
    return trial.measurement is not None and not OTHERS.isdisjoint(_flags(trial))


def without_disturbed(study: Study) -> Study:
    """Return the study without its disturbed runs."""
    calm = tuple(t for t in study.trials if not is_disturbed(study, t))
    return study if len(calm) == len(study.trials) else replace(study, trials=calm)


def marked_runs(study: Study, configs: Sequence[Config]) -> list[str]:
    """How many confirmation runs of the script and of these carry a mark; empty where none does.

    Args:
        study: As of now.
        configs: What a claim, or its absence, is about.
    """
    runs = in_own_unit(study, study.told(Stage.CONFIRM))
    runs = [t for t in runs if t.group > 0 and (t.config.is_baseline or t.config in configs)]
    found = [[flag for flag in MARKS if flag in _flags(t)] for t in runs]
    marked = sum(1 for flags in found if flags)
    if not marked:
        return []
    counts = {flag: sum(flag in flags for flags in found) for flag in MARKS}
    what = ", ".join(f"{MARKS[flag]} ({count})" for flag, count in counts.items() if count)
    whose = " and ".join(["your script", *(config.text() for config in configs)])
    verb = "carries a mark" if marked == 1 else "carry marks"
    return [f"{marked} of {len(runs)} confirmation runs of {whose} {verb}: {what}."]


def is_crowded(study: Study, config: Config) -> bool:
    """Whether others used the machine beside most confirmation runs of the script and of this config.

    What is fastest beside others need not be what is fastest alone: threads that sleep while they wait, or
    fewer of them, lose little then. The pairs are right of the machine as it was, and say nothing of it idle.
    """
    runs = [t for t in study.told(Stage.CONFIRM) if t.config.is_baseline or t.config == config]
    runs = [t for t in runs if t.measurement is not None]
    return 2 * sum(is_disturbed(study, t) for t in runs) > len(runs)


def clocks_apart(study: Study, configs: Sequence[Config]) -> list[str]:
    """Where the halves of pairs ran at other clocks of the accelerator, a sentence for each config.

    A clock that is lower because the config draws more power is its own doing, one that is lower because
    the device was hot is not, and the reading cannot tell them apart. So nothing is set aside.

    Args:
        study: As of now.
        configs: What a claim, or its absence, is about.
    """
    cycles = alike_cycles(study, Stage.CONFIRM, _BASE)
    told: list[str] = []
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
            told.append(
                f"In {len(apart)} of {len(ratios)} pairs the accelerator's clock was more than 5 % apart "
                f"between your script and {config.text()} (furthest: {most:.2f} times your script's): a part "
                "of what they differ by may be the clock's."
            )
    return told


def left_out(study: Study) -> list[str]:
    """Runs whose throughput counts something else than the script's, and which compare with nothing."""
    measured = [t for t in study.told() if t.measurement is not None]
    count = len(measured) - len(in_own_unit(study, measured))
    if not count:
        return []
    runs = "1 run is" if count == 1 else f"{count} runs are"
    return [f"{runs} left out: not counted in {own_unit(study)}, as the first run of your script was."]


def _flags(trial: Trial) -> Iterable[str]:
    return trial.measurement.contamination.flags if trial.measurement is not None else ()


def _clock(measurement: Measurement | None) -> float:
    return 0.0 if measurement is None else measurement.extra.get(_CLOCK, 0.0)
