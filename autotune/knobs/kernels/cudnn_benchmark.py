"""Choice of convolution kernels by trying them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, flag_variants, trains_on_cuda
from autotune.knobs.frameworks import LIGHTNING
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.traits import ActsAt, Fields
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.facts import Facts


class CudnnBenchmark(Knob):
    """Choice of convolution kernels by measuring them: slow at each new shape, fast afterwards.

    Effect: NUMERIC (the choice may differ from run to run). Unit: on or off. Source: PyTorch
    performance tuning guide, "Enable cuDNN auto-tuner".
    """

    name: ClassVar[str] = "cudnn_benchmark"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "kernels"
    spellings: ClassVar[Sequence[Spelling]] = (flag_variants("cudnn-benchmark", "cudnn.benchmark"), Patch())
    rank: ClassVar[int] = 180
    acts_at: ClassVar[ActsAt] = "construction"

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)

    def refuse(self, facts: Facts) -> str | None:
        if not trains_on_cuda(facts):
            return "cuDNN runs on NVIDIA devices only, and training runs on the CPU."
        if facts.run is None:
            return None
        if facts.run.input_shapes_vary:
            return "The input shapes vary, and each new shape would be tuned again."
        if facts.run.deterministic:
            return (
                "The script requires deterministic kernels, and the selected kernel may differ between runs."
            )
        model = facts.run.model
        if model is not None and not (model.convolves or model.has_4d or model.has_5d):
            return "The model has no convolutions whose kernels could be chosen."
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        patches.assign(patches.torch.backends.cudnn, "benchmark", value)

    def seen(self, patches: Patches) -> Value | None:
        return bool(patches.torch.backends.cudnn.benchmark)

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        return {"benchmark": change.value} if target == LIGHTNING else None
