"""Which configs are worth no trial: asked before, out of memory, or with values that never worked."""

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
"""Distinct configs with a value that must have failed, none having worked, before it is left out."""
FITS = 0.5
"""Least probability of fitting into memory at which a config is tried."""


@dataclass(frozen=True, slots=True)
class Feasible:
    """Built by `Feasible.of` for one study at one moment."""

    space: SearchSpace
    asked: frozenset[Config]
    memory: MemoryModel
    failed: dict[tuple[str, Value], int]
    worked: dict[tuple[str, Value], int]
    quarantined: frozenset[tuple[str, Value]]
    doubted: frozenset[tuple[str, Value]] = frozenset()
    """Values that failed for certain in earlier studies of the script, and were not seen working since."""

    @classmethod
    def of(cls, study: Study, space: SearchSpace, *, separates: bool = True) -> Feasible:
        """Read the study.

        Args:
            study: As of now.
            space: Of the study.
            separates: A value is out as well that never worked, where a config that crashed with it and
                other changes ran through without it.
        """
        failed: dict[tuple[str, Value], set[Config]] = {}
        worked: dict[tuple[str, Value], set[Config]] = {}
        refused: set[tuple[str, Value]] = set()
        for trial in study.told():
            refused |= _refused(trial)
            side = worked if trial.measurement else failed if _blames(trial) else None
            if side is None:
                continue
            for item in trial.config.items():
                side.setdefault(item, set()).add(trial.config)
        out = {i for i, configs in failed.items() if len(configs) >= QUARANTINE and i not in worked}
        if separates:
            ran = {t.config for t in study.told() if t.measurement}
            # A run that took too long may have had too little time: it is no proof by itself.
            blamed = [t for t in study.told() if _blames(t)]
            crashed = [t for t in blamed if t.failure and t.failure.kind.family is Family.CRASH]
            # A start goes on from the best so far, and its value is tried by itself before it is to blame.
            alone = {i for t in study.told() if is_single(space, t.config) for i in t.config.items()}
            late = {t.config for t in crashed if t.stage is not Stage.INITIAL}
            every = {t.config for t in crashed}
            out |= {i for i in failed if i not in worked and _without(i, every if i in alone else late, ran)}
        return cls(
            space=space,
            asked=frozenset(t.config for t in study.trials),
            memory=MemoryModel.of(study, space),
            failed={i: len(c) for i, c in failed.items()},
            worked={i: len(c) for i, c in worked.items()},
            # What did not act by one way may have acted by the next.
            quarantined=frozenset(out | (refused - worked.keys())),
            doubted=frozenset(beliefs(study).doubted - worked.keys()),
        )

    def allows(self, config: Config) -> bool:
        """In the space, never asked, free of quarantined values, likely to fit."""
        return (
            config not in self.asked
            and not any(item in self.quarantined for item in config.items())
            and self.space.contains(config)
            and self.memory.fits(config) >= FITS
        )

    def works(self, config: Config) -> float:
        """Probability that the config runs through, memory included."""
        chance = self.memory.fits(config)
        for item in config.items():
            # Failed elsewhere: it comes later, and is not left out.
            bad = self.failed.get(item, 0) + (QUARANTINE if item in self.doubted else 0)
            if bad:
                good = self.worked.get(item, 0) + 0.35
                chance *= good / (good + 0.45 * bad)
        return chance

    def is_doubted(self, config: Config) -> bool:
        """It holds a value that failed for certain in an earlier study."""
        return any(item in self.doubted for item in config.items())


def is_single(space: SearchSpace, config: Config) -> bool:
    """It changes one knob, beside what a rule sets with it."""
    free = [k for k in config if k not in space.dimensions or not space.dimensions[k].derived]
    return len(free) == 1


def suspect(study: Study, feasible: Feasible) -> Config | None:
    """What failed last and how it is tried again: without the value that is least proven; None without one.

    A single change is its own suspect, and what ran out of memory is no riddle.
    """
    failed = [t for t in study.told() if t.failure is not None and _blames(t) and not t.group]
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
    """One of these with several changes ran through with all of them but this one."""
    changes = [set(c.items()) for c in crashed if len(c) > 1 and item in c.items()]
    return any(config - {item} == set(other.items()) for config in changes for other in ran)


def _blames(trial: Trial) -> bool:
    failure = trial.failure
    return failure is not None and failure.kind.teaches and failure.kind.family is not Family.OOM


def _refused(trial: Trial) -> set[tuple[str, Value]]:
    """The value that a run proved not to take effect."""
    failure = trial.failure
    if failure is None or failure.kind is not FailureKind.CONFIG_REJECTED:
        return set()
    knob = failure.evidence.get("knob")
    if isinstance(knob, str) and knob in trial.config:
        return {(knob, trial.config[knob])}
    return set()
