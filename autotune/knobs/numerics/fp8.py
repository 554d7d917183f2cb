"""Products of linear layers in 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, devices_of, flag_variants, refuse_sharded, trains_on_cuda
from autotune.knobs.compile.compiled import has_dropout, is_compiled, without_compile
from autotune.knobs.traits import LateHarm
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ScriptFlag

_RECIPES: Final = ("off", "tensorwise", "rowwise")
_OLDEST: Final = (8, 9)
_HALF: Final = ("bf16", "fp16")


class Fp8(Knob):
    """Products of linear layers in 8 bits: up to twice the arithmetic, on large layers only.

    Needs torchao in the script's environment. One scale per tensor (``tensorwise``) or per row
    (``rowwise``, more exact and slower). Only with compile, without which the casts cost more than they
    save, and with half precision. Layers whose sizes are not multiples of 16 are unchanged. A module
    saved whole holds torchao's layers; its ``state_dict`` does not.

    Effect: TRAINING. Unit: recipe. Source: torchao.float8 docs (1.25 to 1.5 times on 8 to 512
    H100); nanochat dev/LOG.md (0.23 times without compile).
    """

    name: ClassVar[str] = "fp8"
    effect: ClassVar[Effect] = Effect.TRAINING
    family: ClassVar[str] = "precision"
    spellings: ClassVar[Sequence[Spelling]] = (flag_variants("fp8-recipe", "fp8"), Patch())
    rank: ClassVar[int] = 290
    late_harms: ClassVar[Sequence[LateHarm]] = (
        LateHarm(
            applies=lambda changed: changed.value != "off",
            harm=(
                "8-bit products round by the largest value of a tensor or row, and outliers grow during "
                "training"
            ),
            source="arXiv 2409.12517",
        ),
    )

    def own(self, facts: Facts) -> Value | None:
        read = facts.value(self.name)
        if read is not None:
            return read if read in _RECIPES else None
        return None if facts.run is None else "off"

    def domain(self, facts: Facts) -> Sequence[Value]:
        return _RECIPES

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        if as_switch(wanted) is False:
            return "off"
        return wanted if wanted in _RECIPES else None

    def refuse(self, facts: Facts) -> str | None:
        if not trains_on_cuda(facts):
            return "8-bit products need an NVIDIA device, and training runs on the CPU."
        if any(device.capability < _OLDEST for device in devices_of(facts)):
            return "The device has no 8-bit products (compute capability 8.9 or newer is needed)."
        run = facts.run
        if run is None:
            return None
        if (reason := refuse_sharded(facts)) is not None:
            return reason
        if "torchao" not in run.versions:
            return "torchao is not installed where the script runs."
        if self.own(facts) != "off":
            return "The script converts its layers to 8 bits itself."
        return None

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        return without_compile(facts, varied)

    def changes_rng_streams(self, facts: Facts) -> bool:
        return has_dropout(facts)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        form = config.get("precision") or facts.value("precision")
        half = form in _HALF or config.get("pure_bf16") is True
        return config if half and is_compiled(config, facts) else config.without(self.name)

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        return super().option(value, flag) if flag.choices else None

    def patch(self, value: Value, patches: Patches) -> None:
        if value != "off":
            patches.float8.set(str(value))

    def seen(self, patches: Patches) -> Value | None:
        return patches.float8.observed()
