"""Ceilings: upper bounds of what a part of a step can gain, from the script's first runs. Pure.

Amdahl's law bounds the gain of loading and of computing: without the wait for data a step takes `1 - wait` of
its time, without the computing `wait` of it. Counted steps of the first run bound two parts of computing:
number formats and launch overhead (`autotune.model.roofline`, decision 103). A run that is over before a
compile could end is not made faster by it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.answer.communication import FAMILY, communication_ratio, is_dropped
from autotune.compare.amortised_rate import baseline_runs
from autotune.compare.disturbances import OTHERS, STOPPED
from autotune.model.knob_families import families_of
from autotune.model.roofline import HEADROOM, Remainder
from autotune.model.run_length import planned_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.model.facts import Facts
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

PROVABLE: Final = 1.02
"""A smaller gain is within the run-to-run noise of one configuration on a quiet machine
(experiments/noise_aa)."""

SHORTEST_COMPILE_S: Final = 3.0
"""No first compile of a training step should take less; 10 s on 2 cores (experiments/compile_floor)."""

_LARGEST: Final = 100.0
"""Ratios above this are shown as "no ceiling"."""
_LOADING: Final = frozenset({"loader"})
_COMPUTING: Final = frozenset(
    {"precision", "compile", "layout", "optimizer", "kernels", "memory", "communication", "wrapper"}
)
_SPLITTING: Final = "splitting batches"
_COMPILING: Final = "compiling"
_PRECISION: Final = "precision"
_SLOWED: Final = OTHERS | {STOPPED, "cpu_throttled", "throttled"}
"""Flags of a run that was slowed down in its window, but perhaps not while its steps were counted."""


class Ceiling(NamedTuple):
    """An upper bound of what a part of a step can gain.

    Args:
        part: ``loading``, ``computing``, ``precision``, ``launch overhead``, ``splitting batches``,
            ``compiling`` or ``communication``.
        ratio: Throughput without that part over the baseline's; infinite if unbounded.
        families: Knob families that act on this part alone.
    """

    part: str
    ratio: float
    families: frozenset[str]

    @property
    def text(self) -> str:
        """Text for the user: ``loading: at most 1.08x``."""
        if self.ratio > _LARGEST:
            return f"{self.part}: no ceiling"
        return f"{self.part}: at most {self.ratio:.2f}x"


def ceilings(study: Study) -> tuple[Ceiling, ...]:
    """Return the ceilings from the baseline's runs; empty before the first one.

    Data workers that share cores with the training slow it down. Without spare cores the gain of another
    number of workers is therefore unbounded, and counted steps bound nothing.
    """
    runs = baseline_runs(study)
    ratio = communication_ratio(study)
    exchanged = () if ratio is None else (Ceiling("communication", ratio, frozenset({FAMILY})),)
    return (
        *_of_waits(study, runs),
        *_of_counted_steps(study, runs),
        *_of_splitting(study, runs),
        *_of_compiling(study),
        *exchanged,
    )


def hopeless(study: Study) -> frozenset[str]:
    """Return the knob families whose ceiling is below `PROVABLE`, next to every measured configuration.

    Faster computing increases the share of loading in a step, and the reverse.
    """
    runs, space = baseline_runs(study), study.space
    dropped = frozenset({FAMILY}) if is_dropped(study) else frozenset[str]()
    dropped = dropped.union(*(c.families for c in _of_compiling(study)))
    if not _of_waits(study, runs) or space is None:
        return dropped
    ended = study.finished()
    loading, _ = _of_waits(study, (t for t in ended if not families_of(space, t.config) & _LOADING))
    _, computing = _of_waits(study, ended)
    parts = (loading, computing, *_of_counted_steps(study, runs, fed=True))
    return dropped.union(*(c.families for c in parts if c.ratio < PROVABLE))


def not_required(study: Study) -> frozenset[str]:
    """Return the families that "nothing is faster" does not wait for: `hopeless`, and splitting batches.

    Larger batches change the training and may still be faster, so the knobs of that family stay.
    """
    splitting = _of_splitting(study, baseline_runs(study))
    return hopeless(study).union(*({"batch"} for c in splitting if c.ratio < PROVABLE))


def _of_waits(study: Study, trials: Iterable[Trial]) -> tuple[Ceiling, ...]:
    """Return the ceilings of loading and computing from the time these runs waited; empty if unknown."""
    runs = [t.measurement for t in trials if t.measurement is not None]
    facts = study.facts
    if not runs or facts is None or facts.run is None:
        return ()
    # The largest wait bounds loading, the smallest bounds computing: the cautious choice for each.
    waits = [min(1.0, max(0.0, m.data_wait_frac)) for m in runs]
    loading = _over(1.0 - max(waits))
    if facts.run.loader is None:
        loading = 1.0
    elif _workers_take_cores(facts):
        loading = math.inf
    return (
        Ceiling("loading", loading, _LOADING),
        Ceiling("computing", _over(min(waits)), _COMPUTING),
    )


def _of_counted_steps(study: Study, trials: Iterable[Trial], *, fed: bool = False) -> list[Ceiling]:
    """Return the ceilings of number formats, if they can be changed, and of launch overhead.

    Fewer launches also move fewer bytes, so no family acts on launch overhead alone.

    Args:
        study: The study so far.
        trials: Runs of the script, some of which counted steps.
        fed: Assume that data is never late, which other configurations may achieve.
    """
    facts, space = study.facts, study.space
    if facts is None or facts.run is None:
        return []
    if facts.run.model is not None and facts.run.model.device == "cpu" and _workers_take_cores(facts):
        return []
    runs = [t.measurement for t in trials if t.measurement is not None]
    left = [
        _left(m, found, fed=fed)
        for m in runs
        if _SLOWED.isdisjoint(m.contamination.flags) and (found := Remainder.of(m.extra)) is not None
    ]
    if not left:
        return []
    is_free = space is None or any(d.family == _PRECISION for d in space.free())
    formats, starts = (max(map(_over, shares)) for shares in zip(*left, strict=True))
    found = [Ceiling(_PRECISION, formats, frozenset({_PRECISION}))] if is_free else []
    return [c for c in (*found, Ceiling("launch overhead", starts, frozenset())) if not math.isinf(c.ratio)]


def _of_splitting(study: Study, trials: Iterable[Trial]) -> list[Ceiling]:
    """Return the ceiling of more, smaller batches per optimizer step on an accelerator.

    The host starts the same work once more for each of them, and the device's work per sample does not
    decrease. A script that accumulates gradients itself may do the reverse, so it has no such ceiling.
    """
    facts = study.facts
    run = None if facts is None else facts.run
    if run is None or run.ranks > 1 or run.model is None or run.model.device == "cpu":
        return []
    if run.own_accumulation or run.backward_per_step > 1.0:
        return []
    ratios: list[float] = []
    for trial in trials:
        m = trial.measurement
        busy = None if m is None else m.extra.get("device_busy_frac")
        if m is not None and busy is not None:
            host = max(0.0, 1.0 - m.data_wait_frac - min(1.0, busy))
            ratios.append(1.0 / (1.0 + host))
    return [Ceiling(_SPLITTING, max(ratios), frozenset())] if ratios else []


def _of_compiling(study: Study) -> list[Ceiling]:
    """Return the ceiling of compiling, if the planned run is too short for any compile to pay back."""
    run_s, facts = planned_seconds(study), study.facts
    if run_s is None or run_s >= PROVABLE * SHORTEST_COMPILE_S:
        return []
    # A script that compiles may be faster without it.
    if facts is None or facts.run is None or facts.run.own_compile:
        return []
    return [Ceiling(_COMPILING, 1.0, frozenset({"compile"}))]


def _left(m: Measurement, bound: Remainder, *, fed: bool) -> tuple[float, float]:
    """Return the smallest shares of a step that remain with the fastest format, and with free launches.

    A step waits as long for data as before, however fast computing is; `fed` removes that wait from both.
    """
    # While the thread waits for a CPU, the step makes no progress.
    queued = 0.0 if bound.ops_s is None else min(0.95, m.contamination.run_queue_frac)
    step_s = m.step_time_s.value * (1.0 - queued)
    wait_s = m.data_wait_frac * step_s
    if bound.ops_s is not None and bound.outside_s is not None and bound.kernels_s is not None:
        formats_s = max(step_s - (bound.ops_s - bound.reduced_s), bound.reduced_s)
        starts_s = max(step_s - bound.outside_s, bound.kernels_s)
    else:
        busy = m.extra.get("device_busy_frac")
        busy_s = step_s - wait_s if busy is None else min(1.0, busy) * step_s
        # While the device is idle it waits for the host, which another format does not speed up.
        formats_s = step_s - busy_s + min(bound.reduced_s, busy_s / HEADROOM)
        starts_s = 0.0 if busy is None or bound.gaps_s is None else busy_s - bound.gaps_s
    off_s = wait_s if fed and wait_s < step_s else 0.0
    formats_s, starts_s = (max(wait_s, left_s) - off_s for left_s in (formats_s, starts_s))
    return min(1.0, formats_s / (step_s - off_s)), min(1.0, starts_s / (step_s - off_s))


def _over(share: float) -> float:
    return 1.0 / share if share > 0.0 else math.inf


def _workers_take_cores(facts: Facts) -> bool:
    assert facts.run is not None
    run, cpus = facts.run, facts.host.cpus
    if run.loader is None or run.loader.num_workers == 0:
        return False
    on_cpu = run.model is not None and run.model.device == "cpu"
    return run.ranks * (((run.threads or cpus) if on_cpu else 1) + run.loader.num_workers) > cpus
