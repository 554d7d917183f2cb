"""The search for parameters that get no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.wrapper_knob import SwitchKnob
from autotune.knobs.frameworks import ARGUMENTS, LIGHTNING_DDP
from autotune.model.change import Keyword, Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.facts import Facts, ParallelFacts


class DdpFindUnusedParameters(SwitchKnob):
    """Whether DDP searches the graph for parameters without a gradient, in every step.

    Left out only where every parameter was seen to get a gradient on every process in every backward pass.
    Where that changes later in a training, DDP ends it with an error.

    Effect: EXACT. Unit: on or off. Source: torch.nn.parallel.DistributedDataParallel docs,
    `find_unused_parameters`.
    """

    name: ClassVar[str] = "ddp_find_unused_parameters"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "wrapper"
    rank: ClassVar[int] = 330
    acts_at: ClassVar[ActsAt] = "construction"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "ddp_find_unused_parameters"),
        Keyword(LIGHTNING_DDP, "find_unused_parameters"),
        Patch(),
    )

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if self.own(facts) is False:
            return "The script does not search for unused parameters."
        if parallel.all_used is None:
            return "Whether every parameter gets a gradient could not be seen."
        return None if parallel.all_used else "Some parameters got no gradient in some backward passes."
