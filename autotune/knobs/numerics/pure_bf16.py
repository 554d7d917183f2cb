"""Parameters in bf16."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import (
    as_switch,
    devices_of,
    flag_variants,
    listed,
    refuse_sharded,
    trains_on_cuda,
)
from autotune.knobs.frameworks import ARGUMENTS, DEEPSPEED
from autotune.knobs.traits import LateHarm
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect
from autotune.source.loops import OWN_AVERAGE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import Fields
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts


class PureBf16(Knob):
    """Parameters, gradients and optimizer state in bf16: half the memory, and small updates are lost.

    The trained module is converted before its first training call; floating inputs are cast, outputs
    return as float32. Autocast has no effect then. bf16 keeps 8 bits of mantissa: an update below about
    1/256 of a weight vanishes. Files, copies and arrays are float32, without those digits.

    Effect: TRAINING. Unit: on or off. Source: arXiv 2010.06192 (training with bf16 weights alone).
    """

    name: ClassVar[str] = "pure_bf16"
    effect: ClassVar[Effect] = Effect.TRAINING
    family: ClassVar[str] = "precision"
    spellings: ClassVar[Sequence[Spelling]] = (flag_variants("pure-bf16"), Patch())
    rank: ClassVar[int] = 280
    late_harms: ClassVar[Sequence[LateHarm]] = (
        LateHarm(
            applies=lambda changed: changed.value is True,
            harm=(
                "weights and optimizer state in bf16 lose updates below 1/256 of a weight, and updates "
                "shrink during training"
            ),
            source="arXiv 2010.06192",
        ),
    )

    def own(self, facts: Facts) -> Value | None:
        read, model = facts.value(self.name), None if facts.run is None else facts.run.model
        return read if read is not None or model is None else set(model.dtypes) == {"bfloat16"}

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)

    def refuse(self, facts: Facts) -> str | None:
        oldest = min((device.capability for device in devices_of(facts)), default=(0, 0))
        if trains_on_cuda(facts) and oldest < (8, 0):
            return "The device has no bf16 in hardware (compute capability 8.0 or newer is needed)."
        if not trains_on_cuda(facts) and not {"avx512_bf16", "amx_bf16"} & set(facts.host.cpu_flags):
            return "This CPU has no bf16 in hardware (avx512_bf16 or amx_bf16 is needed)."
        run, hazards = facts.run, facts.script.hazards
        if "own_autocast" in hazards if run is None else run.own_autocast:
            return "The script enters autocast itself, which keeps its parameters in float32 on purpose."
        if "own_scaler" in hazards if run is None else run.own_scaler:
            return "The script scales its gradients, which bf16 parameters do not support."
        if "own_bf16" in hazards:
            return (
                "The script makes bf16 tensors itself, and its files could not distinguish them from "
                "converted weights."
            )
        if OWN_AVERAGE in (*hazards, *(() if run is None else run.loop_hazards)):
            return "The script averages weights, which needs more digits than bf16 has."
        return None if run is None else self._refuse_run(facts)

    def _refuse_run(self, facts: Facts) -> str | None:
        run = facts.run
        assert run is not None
        if (reason := refuse_sharded(facts)) is not None:
            return reason
        if run.model is None:
            return "No trained module was seen whose parameters could be converted."
        if run.owners:
            return f"The number format belongs to {run.owners[0]}, which this script uses."
        if run.bce_outside:
            return "The loss is BCELoss on the model's output, and a sigmoid in half precision saturates."
        if set(run.model.dtypes) != {"float32"}:
            return f"The parameters are not all float32 but {listed(sorted(run.model.dtypes))}."
        return None

    def changes_rng_streams(self, facts: Facts) -> bool:
        model = None if facts.run is None else facts.run.model
        return model is not None and model.dropout

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return config.without("precision") if config.get(self.name) is True else config

    def patch(self, value: Value, patches: Patches) -> None:
        if value is True:
            patches.weights.halve()

    def withdraw(self, patches: Patches) -> bool:
        return patches.weights.restore()

    def seen(self, patches: Patches) -> Value | None:
        return patches.weights.observed()

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        return {
            ARGUMENTS: "`bf16` keeps the weights in float32; load the model in bfloat16 for this",
            DEEPSPEED: "`bf16` keeps a float32 copy of the weights, unlike this value",
        }.get(target)
