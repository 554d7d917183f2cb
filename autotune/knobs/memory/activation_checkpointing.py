"""Activations that are recomputed instead of stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, flag_variants
from autotune.knobs.frameworks import ARGUMENTS, DEEPSPEED
from autotune.knobs.traits import Prior
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.traits import Fields
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.facts import BlockFacts, Facts, ScriptFlag

_VALUES: Final = ("none", "selective", "full")
_ALL_OR_NOTHING: Final[Mapping[Value, bool]] = {"none": False, "full": True}
_OPTIONS: Final = flag_variants("activation-checkpointing", "gradient-checkpointing", "grad-checkpointing")


class ActivationCheckpointing(Knob):
    """Activations computed again in the backward pass: less memory for about one more forward pass.

    ``full`` on every repeated block of the trained module, ``selective`` on every second one. Slower
    alone; the freed memory allows larger micro-batches. Dropout draws the same random numbers, because
    torch restores the generator's state.

    Effect: NUMERIC. Unit: share of the blocks. Source: torch.utils.checkpoint docs.
    """

    name: ClassVar[str] = "activation_checkpointing"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "memory"
    spellings: ClassVar[Sequence[Spelling]] = (_OPTIONS, Patch())
    rank: ClassVar[int] = 190
    prior: ClassVar[Prior] = Prior(
        gain={device: {"selective": -0.15, "full": -0.25} for device in ("cpu", "cuda")}
    )

    def own(self, facts: Facts) -> Value | None:
        read, run = facts.value(self.name), facts.run
        if read is not None or run is None or run.model is None or run.model.blocks is None:
            return read
        return "full" if run.model.blocks.checkpointed else "none"

    def domain(self, facts: Facts) -> Sequence[Value]:
        return _VALUES

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        switch = as_switch(wanted)
        if switch is not None:
            return "full" if switch else "none"
        return wanted if wanted in _VALUES else None

    def refuse(self, facts: Facts) -> str | None:
        flag, own = facts.script.flag(*_OPTIONS.names), self.own(facts)
        if flag is not None and any(self.option(v, flag) is not None for v in _VALUES if v != own):
            return None
        return _why_not(facts)

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        owned = super().refuse_spelling(spelling, facts)
        return owned or (_why_not(facts) if isinstance(spelling, Patch) else None)

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        if flag.kind in ("switch", "off_switch", "pair", "bool"):
            return super().option(_ALL_OR_NOTHING[value], flag) if value in _ALL_OR_NOTHING else None
        # The number of blocks behind another word of the script is not known.
        return super().option(value, flag) if flag.choices and value in _ALL_OR_NOTHING else None

    def patch(self, value: Value, patches: Patches) -> None:
        if value != "none":
            patches.checkpointing.set(str(value))

    def seen(self, patches: Patches) -> Value | None:
        return patches.checkpointing.observed()

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        if target == DEEPSPEED:
            return "its section of that name acts only where the model calls deepspeed.checkpointing itself"
        if target != ARGUMENTS:
            return None
        if change.value not in ("full", "none"):
            return "`gradient_checkpointing` covers all blocks or none"
        return {"gradient_checkpointing": change.value == "full"}


def _why_not(facts: Facts) -> str | None:
    """Return why blocks cannot be recomputed without a change of the script, or None."""
    run = facts.run
    if run is None:
        return None
    if run.model is None:
        return "No trained module was seen whose activations could be recomputed."
    if run.model.blocks is None:
        return f"{run.model.name} has no repeated blocks that could be checkpointed."
    return _why_not_twice(run.model.blocks, own_compile=run.own_compile)


def _why_not_twice(blocks: BlockFacts, *, own_compile: bool) -> str | None:
    """Return why computing a block twice would not equal computing it once, or None."""
    if blocks.checkpointed:
        return "The script already recomputes activations."
    if own_compile:
        return "The script compiles its model, so it is not known whether blocks can be computed twice."
    if not blocks.watched:
        return f"The {blocks.name} blocks were not seen running, so they may not be called as modules."
    if blocks.changes_state:
        return f"The {blocks.name} blocks change state of their own, which would happen twice in a step."
    if blocks.changes_input:
        return f"The {blocks.name} blocks change their input in place, so a second pass would see another."
    if blocks.host_random:
        return (
            f"The {blocks.name} blocks draw from the random numbers of Python or NumPy, "
            "which differ in the second pass."
        )
    return None
