"""Parts that the knobs of DeepSpeed's ZeRO section share. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.distributed.wrapper_knob import refuse_single
from autotune.knobs.frameworks import setting
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from autotune.model.config import Value
    from autotune.model.facts import Facts


class DeepspeedKnob(Knob):
    """An entry of ``zero_optimization`` in a copy of the configuration, read back from the engine."""

    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "communication"

    def refuse(self, facts: Facts) -> str | None:
        if facts.run is None:
            return None
        if (reason := refuse_single(facts)) is not None:
            return reason
        if "deepspeed" not in facts.run.owners:
            return "The script does not train through DeepSpeed."
        if setting(facts, "deepspeed.pipeline") is True:
            return "A DeepSpeed pipeline exchanges activations, which this section does not set."
        if self.own(facts) is None:
            return "The engine of this DeepSpeed does not report its own value."
        return self.refuse_engine(facts)

    def refuse_engine(self, facts: Facts) -> str | None:
        """Return why this engine must keep the script's own value: a whole sentence, or None."""
        return None

    def seen(self, patches: Patches) -> Value | None:
        return patches.distributed.observed(self.name)

    def patch(self, value: Value, patches: Patches) -> None:
        patches.distributed.set(self.name, value)


def zero_stage(facts: Facts) -> int:
    """Return the engine's stage, or 0 if unknown."""
    stage = setting(facts, "deepspeed.zero")
    return stage if isinstance(stage, int) else 0
