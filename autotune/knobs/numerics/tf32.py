"""Rounding of float32 matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, devices_of, flag_variants, trains_on_cuda
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.traits import Prior
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import ActsAt, Fields, Setting
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ScriptFlag

_VALUES: Final = ("highest", "high", "medium")
_GAIN: Final = 0.8
"""Ln of the rate of computing on CUDA; one H100, 124 million parameters (experiments/gpu/results)."""


class Tf32(Knob):
    """Rounding of float32 matrix products: tensor cores compute them with 10 bits of mantissa.

    No effect where the forward pass is in half precision.

    Effect: NUMERIC. Unit: torch's words ``highest``, ``high``, ``medium``. Source:
    torch.set_float32_matmul_precision docs.
    """

    name: ClassVar[str] = "tf32"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "precision"
    spellings: ClassVar[Sequence[Spelling]] = (flag_variants("tf32", "allow-tf32"), Patch())
    rank: ClassVar[int] = 40
    prior: ClassVar[Prior] = Prior(spread=0.2, spread_on={"cuda": 0.35})
    acts_at: ClassVar[ActsAt] = "construction"

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        return tuple(v for v in _VALUES if v in ("highest", "high", own))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        if wanted in _VALUES:
            return wanted
        switch = as_switch(wanted)
        return None if switch is None else "high" if switch else "highest"

    def refuse(self, facts: Facts) -> str | None:
        if not trains_on_cuda(facts):
            return "TF32 exists on NVIDIA devices only, and training runs on the CPU."
        if any(device.capability < (8, 0) for device in devices_of(facts)):
            return "The device has no TF32 (compute capability 8.0 or newer is needed)."
        model = None if facts.run is None else facts.run.model
        if model is not None and "float32" not in model.dtypes:
            return "The model has no float32 parameters that TF32 could be used for."
        return None

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        form = config.get("precision") or facts.value("precision")
        return config.without(self.name) if form in ("bf16", "fp16") else config

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        if flag.kind in ("switch", "off_switch", "pair", "bool"):
            known = {"high": True, "highest": False}
            return super().option(known[value], flag) if value in ("high", "highest") else None
        return super().option(value, flag) if flag.choices else None

    def patch(self, value: Value, patches: Patches) -> None:
        torch = patches.torch
        old = torch.get_float32_matmul_precision()
        # The older interface sets both; the newer one alone would make the older raise for the script.
        patches.call(torch.set_float32_matmul_precision, value, undo=old)

    def seen(self, patches: Patches) -> Value | None:
        """Return the precision of matrix products on the device.

        Since torch 2.9 there are two interfaces. After a script has used the newer one, the older one returns
        its own last value, or raises because the two disagree.
        """
        torch = patches.torch
        matmul = getattr(getattr(torch.backends, "cuda", None), "matmul", None)
        newer = getattr(matmul, "fp32_precision", None)
        if newer is None:
            return str(torch.get_float32_matmul_precision())
        if newer != "tf32":
            return "highest"
        try:
            older = str(torch.get_float32_matmul_precision())
        except RuntimeError:
            older = ""
        # To the device both are TF32.
        return "medium" if older == "medium" else "high"

    def expected_gain(self, value: Value, setting: Setting) -> float:
        return _GAIN if value == "high" and setting.device == "cuda" and not setting.is_half else 0.0

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        if target != ARGUMENTS:
            return None
        if change.value in ("high", "medium"):
            return {"tf32": True}
        return "`tf32=False` also disables TF32 in convolutions, unlike this value"
