"""Ceilings: the most that a knob family can gain for a script, by how its first runs spent their time. Pure.

A loop waits for data and it computes. Amdahl's law bounds what either part can gain: without the wait a step
takes `1 - wait` of its time, and without the computing `wait` of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.core.families import families_of
from autotune.core.rates import baseline_runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.core.facts import LoaderFacts
    from autotune.core.study import Study
    from autotune.core.trial import Trial

PROVABLE: Final = 1.02
"""A gain below this is within what runs of one configuration differ by on a quiet machine
(experiments/noise_aa)."""

_LOADING: Final = frozenset({"loader"})
_COMPUTING: Final = frozenset({"precision", "compile", "layout", "optimizer", "kernels", "memory"})


class Ceiling(NamedTuple):
    """The most that a part of a step can gain.

    Args:
        part: ``loading`` or ``computing``.
        ratio: Of the throughput without that part to the baseline's; infinite where nothing bounds it.
        families: Knob families that act on this part alone.
    """

    part: str
    ratio: float
    families: frozenset[str]

    @property
    def text(self) -> str:
        """For people: ``loading: at most 1.08x``."""
        if math.isinf(self.ratio):
            return f"{self.part}: no ceiling"
        return f"{self.part}: at most {self.ratio:.2f}x"


def ceilings(study: Study) -> tuple[Ceiling, ...]:
    """What the baseline's runs bound, empty before one was measured.

    Worker processes that take cores from the training slow its computing down. Without cores to spare nothing
    therefore bounds what another number of workers gains.
    """
    return _bounds(study, baseline_runs(study))


def _bounds(study: Study, trials: Iterable[Trial]) -> tuple[Ceiling, ...]:
    """Of loading and of computing, by how these runs spent their time; empty where that is not known."""
    runs = [t.measurement for t in trials if t.measurement is not None]
    facts = study.facts
    if not runs or facts is None or facts.run is None:
        return ()
    # The largest wait seen bounds loading, the smallest bounds computing: neither may rule out too much.
    waits = [min(1.0, max(0.0, m.data_wait_frac)) for m in runs]
    loader, model = facts.run.loader, facts.run.model
    device = "" if model is None else model.device
    loading = _over(1.0 - max(waits))
    if loader is None:
        loading = 1.0
    elif _workers_take_cores(loader, facts.host.cpus, facts.run.threads, device):
        loading = math.inf
    return (
        Ceiling("loading", loading, _LOADING),
        Ceiling("computing", _over(min(waits)), _COMPUTING),
    )


def hopeless(study: Study) -> frozenset[str]:
    """Knob families whose ceiling is below what can be proved, beside every configuration that was measured.

    Where computing has become faster loading takes a larger share of a step, and the other way round.
    """
    if not ceilings(study) or study.space is None:
        return frozenset()
    told, space = study.told(), study.space
    loading, _ = _bounds(study, (t for t in told if not families_of(space, t.config) & _LOADING))
    _, computing = _bounds(study, told)
    return frozenset[str]().union(*(c.families for c in (loading, computing) if c.ratio < PROVABLE))


def _over(share: float) -> float:
    return 1.0 / share if share > 0.0 else math.inf


def _workers_take_cores(loader: LoaderFacts, cpus: int, threads: int | None, device: str) -> bool:
    if loader.num_workers == 0:
        return False
    computing = (threads or cpus) if device == "cpu" else 1
    return computing + loader.num_workers > cpus
