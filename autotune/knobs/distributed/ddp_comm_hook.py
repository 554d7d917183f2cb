"""Number format in which gradients are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.wrapper_knob import DistributedKnob, parallel_of, settle_single
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ParallelFacts

_FORMS = ("none", "fp16", "bf16")


class DdpCommHook(DistributedKnob):
    """Number format in which gradients are exchanged: 16 bits halve what is sent.

    By PyTorch's own communication hooks; a hook of the script's is wrapped and sends the rounded gradients.
    ``bf16`` needs NCCL.

    Effect: NUMERIC (gradients are rounded). Unit: none. Source: PyTorch docs, "DDP Communication Hooks".
    """

    name: ClassVar[str] = "ddp_comm_hook"
    effect: ClassVar[Effect] = Effect.NUMERIC
    rank: ClassVar[int] = 310
    acts_at: ClassVar[ActsAt] = "construction"
    first_value: ClassVar[Value | None] = "fp16"

    def domain(self, facts: Facts) -> Sequence[Value]:
        own, parallel = self.own(facts), parallel_of(facts)
        forms = ["fp16"] if parallel is None or parallel.backend != "nccl" else ["bf16", "fp16"]
        return tuple(dict.fromkeys((own or "none", *forms)))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in (*_FORMS, self.own(facts)) else None

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if self.own(facts) in ("fp16", "bf16"):
            return "The script compresses its gradients itself."
        if parallel.mixed_precision:
            return "DDP has a policy for number formats of the script's, which exchanges in its own format."
        if "float32" not in _dtypes(facts):
            return "No gradients are float32, so a format of 16 bits sends nothing less."
        return None

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        # PowerSGD compresses gradients itself, and bf16 weights have gradients of 16 bits.
        other = bool(config.get("ddp_powersgd_rank", 0)) or config.get("pure_bf16") is True
        return config.without(self.name) if other else settle_single(self.name, config)


def _dtypes(facts: Facts) -> tuple[str, ...]:
    model = None if facts.run is None else facts.run.model
    return ("float32",) if model is None else model.dtypes
