"""Kernel of the optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, flag_variants
from autotune.knobs.frameworks import ARGUMENTS, is_row, setting
from autotune.knobs.traits import Prior
from autotune.model.change import Keyword, Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.traits import ActsAt, Fields
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.facts import Facts

_OPTIM: Final = {True: "adamw_torch_fused", False: "adamw_torch"}


class FusedOptimizer(Knob):
    """Kernel of the optimizer step: one pass over all parameters instead of many small ones.

    torch's own default is the ``foreach`` kernel.

    Effect: NUMERIC. Unit: on or off. Source: torch.optim.AdamW docs, `fused`.
    """

    name: ClassVar[str] = "fused_optimizer"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "optimizer"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "optim"),
        flag_variants("fused-optimizer", "fused-adam", "fused"),
        Patch(),
    )
    rank: ClassVar[int] = 100
    prior: ClassVar[Prior] = Prior(gain={"cuda": {True: 0.03}}, host={True: -0.1}, spread=0.06)
    acts_at: ClassVar[ActsAt] = "construction"

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
        if run.optimizer.fused:
            return f"{run.optimizer.name} already uses its fused kernel."
        if run.optimizer.kernel_given:
            return f"The script chooses the kernel of {run.optimizer.name} itself (foreach or fused)."
        if not run.optimizer.can_fuse:
            return f"{run.optimizer.name} has no fused kernel for these parameters."
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        given = setting(facts, "transformers.own_optimizer") is True
        if given and isinstance(spelling, Patch):
            return None
        owned = super().refuse_spelling(spelling, facts)
        if owned is not None or not is_row(spelling):
            return owned
        if given:
            return "The script passes its own optimizer to the Trainer."
        chosen = setting(facts, "transformers.optim")
        return (
            None if chosen in _OPTIM.values() else f"The Trainer's optimizer is {chosen}, not torch's AdamW."
        )

    def arguments(self, value: Value, spelling: Keyword) -> Mapping[str, Value | None]:
        if spelling.target != ARGUMENTS:
            return super().arguments(value, spelling)
        return {spelling.name: _OPTIM[value is True]}

    def patch(self, value: Value, patches: Patches) -> None:
        if value is True:
            patches.optimizer.fuse()

    def seen(self, patches: Patches) -> Value | None:
        return patches.optimizer.observed()

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        is_measured = isinstance(change.spelling, Keyword) and change.spelling.target == ARGUMENTS
        if target != ARGUMENTS or is_measured:
            return None
        return "`optim` sets the optimizer as well as its kernel, and the script uses its own optimizer"
