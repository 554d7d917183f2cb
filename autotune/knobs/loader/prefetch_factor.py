"""Batches that each loader worker keeps ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.common import LOADER, as_count, flag_variants, joined, loader_of, no_loader
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.loader.loader_keyword import LoaderKeyword
from autotune.knobs.loader.num_workers import workers_of
from autotune.knobs.traits import Prior
from autotune.model.change import Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.knobs.base import Patches
    from autotune.knobs.traits import MemoryUse
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts

_TORCH_DEFAULT: Final = 2


class PrefetchFactor(LoaderKeyword):
    """Batches that each loader worker keeps ready: more hide jitter and use memory.

    Only with workers; torch's own value is 2.

    Effect: EXACT. Unit: batches per worker. Source: torch.utils.data docs, `prefetch_factor`.
    """

    name: ClassVar[str] = "prefetch_factor"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "batches per worker"
    family: ClassVar[str] = "loader"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "dataloader_prefetch_factor"),
        flag_variants("prefetch-factor", "dataloader-prefetch-factor"),
        Keyword(LOADER, "prefetch_factor"),
    )
    rank: ClassVar[int] = 140
    prior: ClassVar[Prior] = Prior(spread=0.05, is_of_loading=True)
    memory: ClassVar[MemoryUse] = "monotone"

    def own(self, facts: Facts) -> Value | None:
        loader = loader_of(facts)
        read = facts.value(self.name) or (loader.prefetch_factor if loader is not None else None)
        return read or (None if loader is None else _TORCH_DEFAULT)

    def domain(self, facts: Facts) -> Sequence[Value]:
        return joined((2, 4, 8), self.own(facts))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_count(wanted, self.own(facts), least=1)

    def refuse(self, facts: Facts) -> str | None:
        return no_loader(facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        return without_workers(facts, varied)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return config if workers_of(config.get("num_workers"), facts) else config.without(self.name)

    def withdraw(self, patches: Patches) -> bool:
        return patches.loader.give_back("prefetch_factor")


def without_workers(facts: Facts, varied: Collection[str]) -> str | None:
    """Return the refusal of settings that only worker processes have, or None."""
    if "num_workers" in varied or facts.run is None or workers_of(None, facts):
        return None
    return "The loader has no workers, and num_workers is not varied."
