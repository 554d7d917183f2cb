"""Gradients that DeepSpeed reduces at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import as_count, joined
from autotune.knobs.distributed.deepspeed_knob import DeepspeedKnob, zero_stage
from autotune.knobs.frameworks import DEEPSPEED
from autotune.model.change import Keyword, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts


class DeepspeedBucketSize(DeepspeedKnob):
    """Numbers of gradients that DeepSpeed reduces at once, in ZeRO stages 1 to 3.

    Larger buckets take fewer exchanges and more memory; DeepSpeed's own size is 500 million.

    Effect: EXACT (another order of summation). Unit: numbers. Source: DeepSpeed configuration docs,
    `reduce_bucket_size`.
    """

    name: ClassVar[str] = "deepspeed_bucket_size"
    rank: ClassVar[int] = 430
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "numbers"
    spellings: ClassVar[Sequence[Spelling]] = (Keyword(DEEPSPEED, "zero_optimization.reduce_bucket_size"),)

    def domain(self, facts: Facts) -> Sequence[Value]:
        return joined((20_000_000, 100_000_000, 500_000_000), self.own(facts))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_count(wanted, self.own(facts), least=1)

    def refuse_engine(self, facts: Facts) -> str | None:
        return "ZeRO is off, and this sets its buckets." if zero_stage(facts) == 0 else None
