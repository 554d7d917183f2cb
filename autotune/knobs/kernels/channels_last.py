"""Memory layout of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, flag_variants
from autotune.knobs.frameworks import setting
from autotune.knobs.traits import Prior
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.traits import Setting
    from autotune.model.config import Value
    from autotune.model.facts import Facts

_GAIN_IN_HALF: Final = 0.10
"""Ln of the rate of computing on CUDA; a design value."""


class ChannelsLast(Knob):
    """Memory layout of images and convolutions: channels innermost suits tensor cores and bf16.

    Some models gain much and others lose as much.

    Effect: NUMERIC. Unit: on or off. Source: timm's training tables for RTX 3090 (geometric mean
    1.057 over 834 models, 11 % of them lose more than a tenth).
    """

    name: ClassVar[str] = "channels_last"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "layout"
    spellings: ClassVar[Sequence[Spelling]] = (flag_variants("channels-last"), Patch())
    rank: ClassVar[int] = 60
    prior: ClassVar[Prior] = Prior(gain={"cpu": {True: 0.06}})

    def own(self, facts: Facts) -> Value | None:
        read = facts.value(self.name)
        return read if read is not None or facts.run is None else False

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)

    def refuse(self, facts: Facts) -> str | None:
        if facts.run is None:
            return None
        if facts.run.model is None:
            return "No trained module was seen whose layout could be changed."
        if not facts.run.model.has_4d:
            return "The model has no 4-D parameters (no convolutions over images)."
        if setting(facts, "deepspeed.zero") not in (None, 0):
            return "DeepSpeed's ZeRO stores all parameters in one buffer, whose layout cannot change."
        if facts.run.model.has_5d:
            return "The model has convolutions over volumes, whose 5-D parameters have no such layout."
        if self.own(facts) is True and facts.script.flag("--channels-last", "--channels_last") is None:
            return "The script already uses channels_last by itself."
        return None

    def changes_rng_streams(self, facts: Facts) -> bool:
        model = None if facts.run is None else facts.run.model
        return model is not None and model.dropout

    def patch(self, value: Value, patches: Patches) -> None:
        if value is True:
            patches.layout.channels_last()

    def seen(self, patches: Patches) -> Value | None:
        return patches.layout.observed()

    def expected_gain(self, value: Value, setting: Setting) -> float:
        if value is not True or not setting.has_images:
            return 0.0
        return _GAIN_IN_HALF if setting.is_half else super().expected_gain(value, setting)
