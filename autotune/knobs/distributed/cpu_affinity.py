"""CPUs of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.distributed.wrapper_knob import refuse_single, settle_single
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts


class CpuAffinity(Knob):
    """CPUs of each process: ``block`` binds it, and its loader workers, to a block of its own.

    Blocks are of equal size, and of one NUMA node where they fit.

    Effect: EXACT. Unit: none. Source: torchrun docs, "NUMA binding"; PyTorch performance tuning guide.
    """

    name: ClassVar[str] = "cpu_affinity"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "threads"
    spellings: ClassVar[Sequence[Spelling]] = (Patch(),)
    rank: ClassVar[int] = 390
    acts_at: ClassVar[ActsAt] = "construction"
    wrapper: ClassVar[str] = "any"

    def domain(self, facts: Facts) -> Sequence[Value]:
        return ("none", "block")

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in ("none", "block") else None

    def refuse(self, facts: Facts) -> str | None:
        if facts.run is None:
            return None
        if facts.host.cpus < facts.run.ranks:
            return "There are fewer CPUs than processes, so none could have one of its own."
        return refuse_single(facts)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return settle_single(self.name, config)

    def patch(self, value: Value, patches: Patches) -> None:
        patches.distributed.set(self.name, value)

    def seen(self, patches: Patches) -> Value | None:
        return patches.distributed.observed(self.name)
