"""Unit of compilation: the trained module, or each of its repeated blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.compile.compiled import CompiledKnob, own_compile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.base import Patches
    from autotune.model.config import Value
    from autotune.model.facts import Facts

_REGIONS: Final = ("whole", "block")


class CompileRegion(CompiledKnob):
    """Unit of compilation: the trained module, or each of its repeated blocks.

    Equal blocks share compiled code, so the compiler works once. The code between them stays eager. Only with
    autotune's own compile.

    Effect: NUMERIC. Unit: region. Source: PyTorch recipe "Reducing torch.compile cold start
    compilation time with regional compilation".
    """

    name: ClassVar[str] = "compile_region"
    family: ClassVar[str] = "compile"
    rank: ClassVar[int] = 220

    def own(self, facts: Facts) -> Value | None:
        read = facts.value(self.name)
        return read if read is not None or facts.run is None else "whole"

    def domain(self, facts: Facts) -> Sequence[Value]:
        return _REGIONS

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in _REGIONS else None

    def refuse(self, facts: Facts) -> str | None:
        run = facts.run
        if own_compile(facts):
            return "The script compiles its own regions."
        if run is None:
            return None
        if run.model is None:
            return "No trained module was seen that could be compiled."
        if run.model.blocks is None:
            return f"{run.model.name} has no repeated blocks that could be compiled one by one."
        if not run.model.blocks.alike:
            return f"The {run.model.blocks.name} blocks differ in size, so each would be compiled on its own."
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        patches.region.set(str(value))

    def seen(self, patches: Patches) -> Value | None:
        return patches.region.observed()
