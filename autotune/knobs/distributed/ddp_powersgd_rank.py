"""Gradients exchanged as matrices of low rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import as_count
from autotune.knobs.distributed.wrapper_knob import DistributedKnob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts, ParallelFacts


class DdpPowersgdRank(DistributedKnob):
    """Rank of the matrices that gradients are approximated by before they are exchanged (PowerSGD); 0: none.

    The first ten steps exchange whole gradients. What an approximation leaves out is added to the next step.

    Effect: TRAINING. Unit: rank. Source: PyTorch docs, "DDP Communication Hooks"; arXiv 1905.13727.
    """

    name: ClassVar[str] = "ddp_powersgd_rank"
    effect: ClassVar[Effect] = Effect.TRAINING
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "rank"
    rank: ClassVar[int] = 510

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (0, 1, 2, 4)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_count(wanted, self.own(facts), least=0)

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if facts.value("ddp_comm_hook") != "none":
            return "The script has a communication hook of its own."
        if parallel.mixed_precision:
            return "DDP has a policy for number formats of the script's, which exchanges in its own format."
        return None
