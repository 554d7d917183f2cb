"""Algorithm by which NCCL passes data between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.nccl_knob import NcclKnob
from autotune.model.change import Env, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value


class NcclAlgo(NcclKnob):
    """Algorithm by which NCCL passes data between processes: around a ring, or along trees.

    By default NCCL chooses by size and topology, and is seldom wrong.

    Effect: EXACT (another order of summation). Unit: none. Source: NVIDIA NCCL docs,
    "Environment Variables".
    """

    name: ClassVar[str] = "nccl_algo"
    rank: ClassVar[int] = 470
    variable: ClassVar[str] = "NCCL_ALGO"
    spellings: ClassVar[Sequence[Spelling]] = (Env(variable),)
    tried: ClassVar[Sequence[Value]] = ("Ring", "Tree")
