"""State of gradients after zero_grad."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch
from autotune.knobs.compile.compile_mode import graphs_forbid_zeros
from autotune.knobs.traits import Prior
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts


class SetToNone(Knob):
    """State of gradients after zero_grad: None, instead of zeros that are written and added to.

    Only where the script requests zeros; torch's default is None since 2.0. Equal as long as every parameter
    gets a gradient in every step, because an optimizer skips one without.

    Effect: EXACT. Unit: on or off. Source: torch.optim.Optimizer.zero_grad docs, `set_to_none`.
    """

    name: ClassVar[str] = "set_to_none"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "optimizer"
    spellings: ClassVar[Sequence[Spelling]] = (Patch(),)
    rank: ClassVar[int] = 240
    prior: ClassVar[Prior] = Prior(spread=0.03)

    def own(self, facts: Facts) -> Value | None:
        return None if facts.run is None else not facts.run.zeroes_gradients

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)

    def refuse(self, facts: Facts) -> str | None:
        run = facts.run
        if run is None:
            return None
        if not run.zeroes_gradients:
            return "The script does not fill gradients with zeros."
        if run.gradients_pause:
            return "Some parameters get no gradient in some steps, and an optimizer skips those."
        return None

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return graphs_forbid_zeros(config, facts) or config

    def patch(self, value: Value, patches: Patches) -> None:
        if value is True:
            patches.gradients.drop()

    def seen(self, patches: Patches) -> Value | None:
        return patches.gradients.observed()
