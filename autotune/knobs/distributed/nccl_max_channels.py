"""Thread blocks that NCCL uses at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.nccl_knob import NcclKnob
from autotune.model.change import Env, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value


class NcclMaxChannels(NcclKnob):
    """Thread blocks that NCCL uses at most: fewer leave more of the device to the backward pass.

    Effect: EXACT (another order of summation). Unit: channels. Source: NVIDIA NCCL docs,
    "Environment Variables".
    """

    name: ClassVar[str] = "nccl_max_channels"
    rank: ClassVar[int] = 450
    variable: ClassVar[str] = "NCCL_MAX_NCHANNELS"
    spellings: ClassVar[Sequence[Spelling]] = (Env(variable),)
    tried: ClassVar[Sequence[Value]] = (2, 4, 8, 16)
    unit: ClassVar[str] = "channels"
