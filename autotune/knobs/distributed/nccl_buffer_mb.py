"""Size of NCCL's buffers between two processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.nccl_knob import NcclKnob
from autotune.model.change import Env, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value


class NcclBufferMb(NcclKnob):
    """Size of NCCL's buffers between two processes, in MiB; NCCL's own is 4.

    Effect: EXACT. Unit: MiB. Source: NVIDIA NCCL docs,
    "Environment Variables".
    """

    name: ClassVar[str] = "nccl_buffer_mb"
    rank: ClassVar[int] = 490
    variable: ClassVar[str] = "NCCL_BUFFSIZE"
    spellings: ClassVar[Sequence[Spelling]] = (Env(variable),)
    tried: ClassVar[Sequence[Value]] = (1, 2, 8, 16)
    unit: ClassVar[str] = "MiB"
    scale: ClassVar[int] = 2**20
