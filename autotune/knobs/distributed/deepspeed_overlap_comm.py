"""Whether DeepSpeed exchanges gradients during the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import as_switch, trains_on_cuda
from autotune.knobs.distributed.deepspeed_knob import DeepspeedKnob, zero_stage
from autotune.knobs.frameworks import DEEPSPEED
from autotune.model.change import Keyword, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts


class DeepspeedOverlapComm(DeepspeedKnob):
    """Whether DeepSpeed exchanges gradients during the backward pass, on a stream of its own.

    Effect: EXACT. Unit: on or off. Source: DeepSpeed configuration docs, `overlap_comm`.
    """

    name: ClassVar[str] = "deepspeed_overlap_comm"
    rank: ClassVar[int] = 420
    spellings: ClassVar[Sequence[Spelling]] = (Keyword(DEEPSPEED, "zero_optimization.overlap_comm"),)

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)

    def refuse_engine(self, facts: Facts) -> str | None:
        if not trains_on_cuda(facts):
            return "Exchanges overlap by streams of a device, and training runs on the CPU."
        return "ZeRO is off, whose exchanges this overlaps." if zero_stage(facts) == 0 else None
