"""Start method of loader workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.batch.accumulation import Accumulation
from autotune.knobs.batch.batch_size import BatchSize
from autotune.knobs.common import (
    LOADER,
    dealt_otherwise,
    is_by_constant,
    loader_of,
    no_loader,
    trains_on_cuda,
)
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.loader.num_workers import NumWorkers, workers_of
from autotune.knobs.loader.prefetch_factor import without_workers
from autotune.knobs.traits import Prior
from autotune.model.change import Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import ActsAt, Fields
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts

_METHODS: Final = ("fork", "forkserver", "spawn")
_WRITTEN: Final = (BatchSize(), Accumulation(), NumWorkers())
"""Knobs whose value a constant of the script may hold, which is replaced in the first process alone."""


class MpContext(Knob):
    """Start method of loader workers: a copy of the process, or a fresh one that receives the dataset.

    Only with workers. Copying a process with much memory takes time at every epoch; a fresh one imports the
    script again.

    Effect: EXACT; NUMERIC where code of the script is sent along (it may read what the main process changed
    since its import). TRAINING where a fetch changes what the dataset holds. Unit: none. Source:
    torch.utils.data docs, `multiprocessing_context`; Python docs, "multiprocessing", "Contexts and start
    methods".
    """

    name: ClassVar[str] = "mp_context"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "loader"
    spellings: ClassVar[Sequence[Spelling]] = (Keyword(LOADER, "multiprocessing_context"),)
    rank: ClassVar[int] = 260
    prior: ClassVar[Prior] = Prior(spread=0.05, is_of_loading=True)
    acts_at: ClassVar[ActsAt] = "construction"
    feeds: ClassVar[bool] = True

    def own(self, facts: Facts) -> Value | None:
        loader = loader_of(facts)
        read = facts.value(self.name)
        return read if read is not None or loader is None else loader.mp_context or None

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        values = [v for v in _METHODS if v == own or self._no(str(v), facts) is None]
        return tuple(values) if own is None or own in values else (own, *values)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in self.domain(facts) else None

    def refuse(self, facts: Facts) -> str | None:
        reasons = [self._no(value, facts) for value in _METHODS if value != (self.own(facts) or "fork")]
        given = [reason for reason in reasons if reason is not None]
        return no_loader(facts) or (given[0] if len(given) == len(reasons) else None)

    def _no(self, method: str, facts: Facts) -> str | None:
        """Return why workers must not be started by this method, as a whole sentence, or None."""
        loader = loader_of(facts)
        if method == "fork":
            if trains_on_cuda(facts) and self.own(facts) not in (None, "fork"):
                return "Workers cannot be forked from a process that has started CUDA if they use it too."
            return None
        if facts.script.import_runs:
            return (
                "Workers that are not forked import the script again, and this script trains on import:"
                ' some of its code is outside functions and of `if __name__ == "__main__"`.'
            )
        return None if loader is None else loader.unsendable or None

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        return without_workers(facts, varied)

    def effect_for(self, facts: Facts) -> Effect:
        loader = loader_of(facts)
        if dealt_otherwise(facts):
            return Effect.TRAINING
        return Effect.NUMERIC if loader is not None and loader.own_code else self.effect

    def raised(self, facts: Facts) -> str:
        if self.effect_for(facts) is self.effect:
            return ""
        sent = (
            "Code of the script is sent to the workers and may read state that has changed since its import."
        )
        return dealt_otherwise(facts) or sent

    def changes_rng_streams(self, facts: Facts) -> bool:
        loader = loader_of(facts)
        return loader is not None and loader.own_code and loader.random

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        if not workers_of(config.get("num_workers"), facts):
            return config.without(self.name)
        is_fork = config.get(self.name, "fork") == "fork"
        written = (k for k in _WRITTEN if is_by_constant(k.spellings, k.own(facts), facts.script))
        if not is_fork and any(knob.name in config for knob in written):
            return "Workers that are not forked import the script with the constants in its file."
        return config

    def patch(self, value: Value, patches: Patches) -> None:
        patches.loader.override("multiprocessing_context", value)

    def seen(self, patches: Patches) -> Value | None:
        return patches.loader.observed("multiprocessing_context")

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        return {"dataloader_multiprocessing_context": change.value} if target == ARGUMENTS else None
