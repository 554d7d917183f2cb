"""Specialization of compiled code on input sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.common import as_switch
from autotune.knobs.compile.compile_mode import ACCELERATE_MODES
from autotune.knobs.compile.compiled import CompiledKnob
from autotune.knobs.frameworks import ACCELERATOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.base import Patches
    from autotune.knobs.traits import Fields
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.facts import Facts

_SHAPES: Final = ("auto", "static", "dynamic")


class CompileShapes(CompiledKnob):
    """Specialization of compiled code on input sizes: one version for all sizes, or one for each.

    ``auto`` is torch's default: static first, dynamic once a size changes. ``static`` compiles for every
    size, ``dynamic`` once for all. Only with compile, and only where input sizes vary.

    Effect: NUMERIC. Unit: rule. Source: torch.compile docs, `dynamic`.
    """

    name: ClassVar[str] = "compile_shapes"
    family: ClassVar[str] = "compile"
    rank: ClassVar[int] = 230

    def own(self, facts: Facts) -> Value | None:
        read = facts.value(self.name)
        return read if read is not None or facts.run is None else "auto"

    def domain(self, facts: Facts) -> Sequence[Value]:
        return _SHAPES

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        switch = as_switch(wanted)
        if switch is not None:
            return "dynamic" if switch else "static"
        return wanted if wanted in _SHAPES else None

    def refuse(self, facts: Facts) -> str | None:
        if facts.run is not None and not facts.run.input_shapes_vary:
            return "The input sizes do not vary, so one compiled version is enough."
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        patches.shapes.set(str(value))

    def seen(self, patches: Patches) -> Value | None:
        return patches.shapes.observed()

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        compiled = changed.get("compile_mode") in ACCELERATE_MODES
        if target != ACCELERATOR or not compiled or change.value not in ("static", "dynamic"):
            return None
        return {"dynamo_use_dynamic": change.value == "dynamic"}
