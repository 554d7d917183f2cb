"""Placement of parameters and optimizer state between their uses in FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import trains_on_cuda
from autotune.knobs.distributed.wrapper_knob import SwitchKnob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from autotune.model.facts import Facts, ParallelFacts


class FsdpCpuOffload(SwitchKnob):
    """Whether FSDP2 keeps parameters, gradients and optimizer state in the memory of the CPU.

    It frees memory of the device for a larger batch. Every use copies parameters, and the optimizer steps
    on the CPU. Clipping then needs a process group for CPU tensors, such as ``cpu:gloo,cuda:nccl``.

    Effect: NUMERIC (the optimizer's arithmetic is that of the CPU). Unit: on or off. Source:
    torch.distributed.fsdp.CPUOffloadPolicy docs.
    """

    name: ClassVar[str] = "fsdp_cpu_offload"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "memory"
    rank: ClassVar[int] = 500
    wrapper: ClassVar[str] = "fsdp"

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        if not trains_on_cuda(facts):
            return "Training runs on the CPU, whose memory holds the parameters anyway."
        return "The script offloads to the CPU itself." if self.own(facts) is True else None
