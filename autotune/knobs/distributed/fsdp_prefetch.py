"""Number of sharded modules whose parameters FSDP2 gathers ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import as_count
from autotune.knobs.distributed.wrapper_knob import DistributedKnob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts, ParallelFacts


class FsdpPrefetch(DistributedKnob):
    """Sharded modules whose parameters are gathered ahead, forward and backward; 0 is FSDP's own rule.

    In the order in which the model holds its modules. Each one ahead takes the memory of its parameters.

    Effect: EXACT. Unit: modules. Source: torch.distributed.fsdp.FSDPModule docs,
    `set_modules_to_forward_prefetch`.
    """

    name: ClassVar[str] = "fsdp_prefetch"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "modules"
    wrapper: ClassVar[str] = "fsdp"
    rank: ClassVar[int] = 370

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (0, 1, 2)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_count(wanted, self.own(facts), least=0)

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if parallel.count < 3:
            return "Fewer than two modules are sharded inside another, so there is none to gather ahead."
        return None if self.own(facts) == 0 else "The script sets the order of gathering itself."
