"""Queues between host and device."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.nccl_knob import NcclKnob
from autotune.model.change import Env, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value


class CudaMaxConnections(NcclKnob):
    """Queues between host and device: with 1, exchanges start in the order in which they are launched.

    More queues let exchanges and computation start independently; the driver's own number is 8.

    Effect: EXACT. Unit: queues. Source: CUDA C++
    Programming Guide, "CUDA Environment Variables".
    """

    name: ClassVar[str] = "cuda_max_connections"
    rank: ClassVar[int] = 460
    variable: ClassVar[str] = "CUDA_DEVICE_MAX_CONNECTIONS"
    spellings: ClassVar[Sequence[Spelling]] = (Env(variable),)
    tried: ClassVar[Sequence[Value]] = (1, 16, 32)
    unit: ClassVar[str] = "queues"
