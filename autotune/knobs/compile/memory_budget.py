"""Memory that compiled code keeps for its backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.common import torch_version
from autotune.knobs.compile.compiled import CompiledKnob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.base import Patches
    from autotune.knobs.traits import Setting
    from autotune.model.config import Value
    from autotune.model.facts import Facts

_ALL: Final = 1.0
_OLDEST: Final = (2, 4)
_RECOMPUTES: Final = 0.10
"""Ln of the rate of computing that recomputation takes; a design value."""


class MemoryBudget(CompiledKnob):
    """Memory that compiled code keeps for its backward pass: the compiler recomputes what is cheap.

    Only with compile; 1.0 is the compiler's own value. Like checkpointing, it helps through larger
    micro-batches.

    Effect: NUMERIC. Unit: share of the activations kept by default. Source: torch 2.13,
    `torch._functorch.config.activation_memory_budget`.
    """

    name: ClassVar[str] = "memory_budget"
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "share"
    family: ClassVar[str] = "memory"
    rank: ClassVar[int] = 200

    def own(self, facts: Facts) -> Value | None:
        read = facts.value(self.name)
        return read if read is not None or facts.run is None else _ALL

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        known = {float(own)} if isinstance(own, (int, float)) else set[float]()
        return tuple(sorted({0.3, 0.5, 0.7, 0.9, _ALL, *known}))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        if isinstance(wanted, bool) or not isinstance(wanted, (int, float)):
            return None
        return float(wanted) if 0 <= wanted <= _ALL else None

    def refuse(self, facts: Facts) -> str | None:
        version = torch_version(facts)
        if version is not None and version < _OLDEST:
            return "The activation memory budget needs PyTorch 2.4 or newer."
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        patches.budget.set(float(value))

    def seen(self, patches: Patches) -> Value | None:
        return patches.budget.observed()

    def expected_gain(self, value: Value, setting: Setting) -> float:
        return -_RECOMPUTES if isinstance(value, float) and value < 1.0 else 0.0
