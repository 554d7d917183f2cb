"""Gradients that are views of the buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.wrapper_knob import SwitchKnob, uses_gradients
from autotune.knobs.frameworks import LIGHTNING_DDP
from autotune.model.change import Keyword, Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.facts import Facts, ParallelFacts


class DdpGradientAsBucketView(SwitchKnob):
    """Gradients as views of the buckets: saves a copy of every gradient, and the memory of it.

    Effect: EXACT. Unit: on or off. Source: torch.nn.parallel.DistributedDataParallel docs,
    `gradient_as_bucket_view`.
    """

    name: ClassVar[str] = "ddp_gradient_as_bucket_view"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "wrapper"
    rank: ClassVar[int] = 340
    acts_at: ClassVar[ActsAt] = "construction"
    spellings: ClassVar[Sequence[Spelling]] = (Keyword(LIGHTNING_DDP, "gradient_as_bucket_view"), Patch())

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if uses_gradients(facts):
            return "The script's own code uses gradients, which cannot be detached from a bucket."
        return None
