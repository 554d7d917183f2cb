"""Number format in which FSDP2 gathers parameters and computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.wrapper_knob import DistributedKnob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ParallelFacts


class FsdpParamDtype(DistributedKnob):
    """Number format in which FSDP2 gathers parameters and computes; bfloat16 halves what is gathered.

    Weights, gradients' sums and the optimizer's state stay float32.

    Effect: NUMERIC. Unit: none. Source: torch.distributed.fsdp.MixedPrecisionPolicy docs, `param_dtype`.
    """

    name: ClassVar[str] = "fsdp_param_dtype"
    effect: ClassVar[Effect] = Effect.NUMERIC
    wrapper: ClassVar[str] = "fsdp"
    rank: ClassVar[int] = 380
    acts_at: ClassVar[ActsAt] = "construction"

    def domain(self, facts: Facts) -> Sequence[Value]:
        return tuple(dict.fromkeys((self.own(facts) or "float32", "bfloat16")))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in ("float32", "bfloat16", self.own(facts)) else None

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if not facts.host.has_bf16:
            return "What trains here has no bfloat16 in hardware."
        return None if self.own(facts) == "float32" else "The script chooses the number format itself."

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return config.without(self.name) if config.get("precision") in ("bf16", "fp16") else config
