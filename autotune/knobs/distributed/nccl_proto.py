"""Protocol by which NCCL marks data as arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.nccl_knob import NcclKnob
from autotune.model.change import Env, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value


class NcclProto(NcclKnob):
    """Protocol by which NCCL marks data as arrived: ``LL`` has less latency, ``Simple`` more bandwidth.

    ``LL128`` is not tried: on systems that do not support it, it corrupts data.

    Effect: EXACT (another order of summation). Unit: none. Source: NVIDIA NCCL docs,
    "Environment Variables".
    """

    name: ClassVar[str] = "nccl_proto"
    rank: ClassVar[int] = 480
    variable: ClassVar[str] = "NCCL_PROTO"
    spellings: ClassVar[Sequence[Spelling]] = (Env(variable),)
    tried: ClassVar[Sequence[Value]] = ("Simple", "LL")
