"""A graph that DDP may take to be the same in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.wrapper_knob import SwitchKnob, settle_single
from autotune.knobs.frameworks import LIGHTNING_DDP
from autotune.model.change import Keyword, Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ParallelFacts


class DdpStaticGraph(SwitchKnob):
    """Whether DDP takes the graph to be the same in every step, and records it in the first one alone.

    Only where every parameter was seen to get a gradient in every backward pass, and where every pass
    exchanges gradients.

    Effect: EXACT. Unit: on or off. Source: torch.nn.parallel.DistributedDataParallel docs, `static_graph`.
    """

    name: ClassVar[str] = "ddp_static_graph"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "wrapper"
    rank: ClassVar[int] = 350
    acts_at: ClassVar[ActsAt] = "construction"
    spellings: ClassVar[Sequence[Spelling]] = (Keyword(LIGHTNING_DDP, "static_graph"), Patch())

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if self.own(facts) is True:
            return "The script takes the graph to be static itself."
        if parallel.no_sync:
            return "The script leaves out exchanges (no_sync), which a static graph does not support."
        if not parallel.all_used:
            return "Not every parameter was seen to get a gradient in every backward pass."
        return None

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return config.without(self.name) if _defers(config) else settle_single(self.name, config)


def _defers(config: Config) -> bool:
    """Return whether the config contains backward passes without an exchange."""

    def more(value: Value | None) -> bool:
        return isinstance(value, int) and value > 1

    return more(config.get("ddp_no_sync")) or more(config.get("accumulation"))
