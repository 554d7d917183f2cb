"""Parameters that FSDP2 keeps between the forward and the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.wrapper_knob import SwitchKnob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Value
    from autotune.model.facts import Facts, ParallelFacts


class FsdpReshardAfterForward(SwitchKnob):
    """Whether FSDP2 frees gathered parameters after the forward pass and gathers them again.

    Kept, they take memory and save one exchange of the parameters in each step (ZeRO stage 2 in place of 3).

    Effect: EXACT. Unit: on or off. Source: torch.distributed.fsdp.fully_shard docs, `reshard_after_forward`.
    """

    name: ClassVar[str] = "fsdp_reshard_after_forward"
    effect: ClassVar[Effect] = Effect.EXACT
    wrapper: ClassVar[str] = "fsdp"
    rank: ClassVar[int] = 360
    acts_at: ClassVar[ActsAt] = "construction"
    first_value: ClassVar[Value | None] = False

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if parallel.count < 2:
            return "One module is sharded, whose parameters FSDP keeps for the backward pass by itself."
        return None
