"""Feasibility: excludes repeats, configs out of memory, and values that never worked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.compare.transfer import beliefs
from autotune.model.config import Config
from autotune.model.trial import FailureKind, Family, Stage
from autotune.search.models.memory_model import MemoryModel

if TYPE_CHECKING:
    from autotune.model.config import Value
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study
    from autotune.model.trial import Trial

QUARANTINE = 2
"""Distinct configs with a value that have to fail, and none to work, before the value is excluded."""
FITS = 0.5
"""Least probability of fitting into memory at which a config is tried."""


@dataclass(frozen=True, slots=True)
class Feasible:
    """Feasibility of configs of one study at one moment; built by `Feasible.of`."""

    space: SearchSpace
    proposed: frozenset[Config]
    memory: MemoryModel
    failed: dict[tuple[str, Value], int]
    worked: dict[tuple[str, Value], int]
    quarantined: frozenset[tuple[str, Value]]
    doubted: frozenset[tuple[str, Value]] = frozenset()
    """Values that certainly failed in earlier studies of the script and have not worked since."""

    @classmethod
    def of(cls, study: Study, space: SearchSpace, *, separates: bool = True) -> Feasible:
        """Read the study.

        Args:
            study: Current study.
            space: Space of the study.
            separates: Also exclude a value that never worked, if a config crashed with it and other changes
                but ran with the others alone.
        """
        failed: dict[tuple[str, Value], set[Config]] = {}
        worked: dict[tuple[str, Value], set[Config]] = {}
        refused: set[tuple[str, Value]] = set()
        for trial in study.finished():
            refused |= _refused(trial)
            side = worked if trial.measurement else failed if _blames(trial) else None
            if side is None:
                continue
            for item in trial.config.items():
                side.setdefault(item, set()).add(trial.config)
        out = {i for i, configs in failed.items() if len(configs) >= QUARANTINE and i not in worked}
        if separates:
            ran = {t.config for t in study.finished() if t.measurement}
            # A run over its time limit may have had too little time: it is no proof by itself.
            blamed = [t for t in study.finished() if _blames(t)]
            crashed = [t for t in blamed if t.failure and t.failure.kind.family is Family.CRASH]
            # A start point extends the best so far; its value is blamed only after a run by itself.
            alone = {i for t in study.finished() if is_single(space, t.config) for i in t.config.items()}
            late = {t.config for t in crashed if t.stage is not Stage.INITIAL}
            every = {t.config for t in crashed}
            out |= {i for i in failed if i not in worked and _without(i, every if i in alone else late, ran)}
        return cls(
            space=space,
            proposed=frozenset(t.config for t in study.trials),
            memory=MemoryModel.of(study, space),
            failed={i: len(c) for i, c in failed.items()},
            worked={i: len(c) for i, c in worked.items()},
            # A value without effect by one delivery may have had an effect by the next.
            quarantined=frozenset(out | (refused - worked.keys())),
            doubted=frozenset(beliefs(study).doubted - worked.keys()),
        )

    def allows(self, config: Config) -> bool:
        """Return whether it is in the space, new, free of quarantined values, and likely to fit."""
        return (
            config not in self.proposed
            and not any(item in self.quarantined for item in config.items())
            and self.space.contains(config)
            and self.memory.fits(config) >= FITS
        )

    def works(self, config: Config) -> float:
        """Return the probability that the config runs through, memory included."""
        chance = self.memory.fits(config)
        for item in config.items():
            # A value that failed elsewhere comes later but is not excluded.
            bad = self.failed.get(item, 0) + (QUARANTINE if item in self.doubted else 0)
            if bad:
                good = self.worked.get(item, 0) + 0.35
                chance *= good / (good + 0.45 * bad)
        return chance

    def is_doubted(self, config: Config) -> bool:
        """Return whether it holds a value that certainly failed in an earlier study."""
        return any(item in self.doubted for item in config.items())


def is_single(space: SearchSpace, config: Config) -> bool:
    """Return whether it changes one knob, apart from values that a rule sets with it."""
    free = [k for k in config if k not in space.dimensions or not space.dimensions[k].derived]
    return len(free) == 1


def suspect(study: Study, feasible: Feasible) -> Config | None:
    """Return the last failed config without its least proven value; None without one.

    A single change is its own suspect, and an out-of-memory failure needs no explanation.
    """
    failed = [t for t in study.finished() if t.failure is not None and _blames(t) and not t.group]
    if not failed:
        return None
    config = failed[-1].config
    unproven = [i for i in config.items() if i not in feasible.worked and i not in feasible.quarantined]
    if len(config) < 2 or not unproven:
        return None
    knob, _ = max(unproven, key=lambda i: (feasible.failed.get(i, 0), str(i)))
    wanted = feasible.space.resolved_free(config)
    smaller = feasible.space.complete({k: v for k, v in wanted.items() if k != knob})
    return smaller if isinstance(smaller, Config) and smaller else None


def _without(item: tuple[str, Value], crashed: set[Config], ran: set[Config]) -> bool:
    """Return whether one of these configs with several changes ran with all of them but this one."""
    changes = [set(c.items()) for c in crashed if len(c) > 1 and item in c.items()]
    return any(config - {item} == set(other.items()) for config in changes for other in ran)


def _blames(trial: Trial) -> bool:
    failure = trial.failure
    return failure is not None and failure.kind.teaches and failure.kind.family is not Family.OOM


def _refused(trial: Trial) -> set[tuple[str, Value]]:
    """Return the value that a run proved to have no effect."""
    failure = trial.failure
    if failure is None or failure.kind is not FailureKind.CONFIG_REJECTED:
        return set()
    knob = failure.evidence.get("knob")
    if isinstance(knob, str) and knob in trial.config:
        return {(knob, trial.config[knob])}
    return set()
