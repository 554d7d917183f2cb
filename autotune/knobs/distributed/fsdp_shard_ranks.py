"""Over how many processes FSDP2 shares a copy of the parameters out."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import as_count
from autotune.knobs.distributed.wrapper_knob import DistributedKnob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts, ParallelFacts


class FsdpShardRanks(DistributedKnob):
    """Processes that share one copy of the parameters (hybrid sharding, HSDP); all of them by default.

    Fewer processes gather parameters in smaller groups and take more memory. Gradients are then also
    reduced between the groups.

    Effect: EXACT (another order of summation). Unit: processes. Source: torch.distributed.fsdp.fully_shard
    docs, `mesh`.
    """

    name: ClassVar[str] = "fsdp_shard_ranks"
    effect: ClassVar[Effect] = Effect.EXACT
    rank: ClassVar[int] = 440
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "processes"
    wrapper: ClassVar[str] = "fsdp"

    def domain(self, facts: Facts) -> Sequence[Value]:
        ranks = 1 if facts.run is None else facts.run.ranks
        own = self.own(facts)
        known = {own} if isinstance(own, int) else set[int]()
        return tuple(sorted({n for n in range(2, ranks + 1) if ranks % n == 0} | known))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        count, ranks = as_count(wanted, self.own(facts), least=2), 1 if facts.run is None else facts.run.ranks
        return count if count is None or ranks == 1 or ranks % count == 0 else None

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if parallel.own_mesh:
            return "The script gives FSDP a device mesh of its own."
        if len(self.domain(facts)) < 2:
            return "The processes cannot be divided into groups of equal size with two or more each."
        return None
