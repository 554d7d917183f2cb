"""Kernel of the optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.core.change import Patch, Spelling
from autotune.core.effect import Effect
from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.config import Value
    from autotune.core.facts import Facts


class FusedOptimizer(Knob):
    """Kernel of the optimizer step: one pass over all parameters in place of many small ones.

    torch's own default is the ``foreach`` kernel.

    Effect: NUMERIC. Unit: on or off. Source: torch.optim.AdamW docs, `fused`.
    """

    name: ClassVar[str] = "fused_optimizer"
    effect: ClassVar[Effect] = Effect.NUMERIC
    helps: ClassVar[Sequence[str]] = ("launch",)
    spellings: ClassVar[Sequence[Spelling]] = (family("fused-optimizer", "fused-adam", "fused"), Patch())

    def own(self, facts: Facts) -> Value | None:
        read, run = facts.value(self.name), facts.run
        return read if read is not None or run is None or run.optimizer is None else run.optimizer.fused

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return True if wanted == "fused" else as_switch(wanted)

    def refuse(self, facts: Facts) -> str | None:
        run = facts.run
        if run is None:
            return None
        if run.optimizer is None:
            return "No optimizer was seen whose step could be fused."
        if "transformers" in run.owners:
            return "The transformers Trainer chooses the optimizer's kernel itself."
        if run.optimizer.fused:
            return f"{run.optimizer.name} already uses its fused kernel."
        if run.optimizer.kernel_given:
            return f"The script chooses the kernel of {run.optimizer.name} itself (foreach or fused)."
        if not run.optimizer.can_fuse:
            return f"{run.optimizer.name} has no fused kernel for these parameters."
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        if value is True:
            patches.optimizer.fuse()

    def seen(self, patches: Patches) -> Value | None:
        return patches.optimizer.observed()
