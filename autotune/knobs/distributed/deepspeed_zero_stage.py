"""State that DeepSpeed shards across processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import as_count
from autotune.knobs.distributed.deepspeed_knob import DeepspeedKnob
from autotune.knobs.frameworks import DEEPSPEED
from autotune.model.change import Keyword, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts


class DeepspeedZeroStage(DeepspeedKnob):
    """State that DeepSpeed shards across processes: none (0), optimizer state (1), gradients as well (2).

    Stage 3 also shards parameters, which the script's own code then sees empty. It is kept where the script
    has it, and never chosen.

    Effect: EXACT (another order of summation). Unit: stage. Source: DeepSpeed configuration docs,
    "ZeRO Optimizations"; arXiv 1910.02054.
    """

    name: ClassVar[str] = "deepspeed_zero_stage"
    rank: ClassVar[int] = 410
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "stage"
    spellings: ClassVar[Sequence[Spelling]] = (Keyword(DEEPSPEED, "zero_optimization.stage"),)

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        return tuple(sorted({1, 2} | ({own} if isinstance(own, int) else set[int]())))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        stage = as_count(wanted, self.own(facts), least=0)
        return stage if stage in (0, 1, 2, self.own(facts)) else None

    def refuse_engine(self, facts: Facts) -> str | None:
        if self.own(facts) == 3:
            return "The script is written for stage 3, which shares parameters out to save memory."
        return None
