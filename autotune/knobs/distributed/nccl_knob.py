"""Parts that the knobs of NCCL's environment share. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.distributed.wrapper_knob import parallel_of, refuse_single, settle_single
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.change import Env, Spelling
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts

DEFAULT: Final = "default"
"""The variable is not set."""


class NcclKnob(Knob):
    """A variable that NCCL or the CUDA driver reads before the first exchange.

    Read back is what the process had in its environment. NCCL does not report whether it follows it.
    """

    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "communication"
    variable: ClassVar[str]
    tried: ClassVar[Sequence[Value]]
    """Values worth trying, `DEFAULT` aside."""
    scale: ClassVar[int] = 1
    """Units of the variable per unit of the knob."""

    def domain(self, facts: Facts) -> Sequence[Value]:
        return tuple(dict.fromkeys((self.own(facts) or DEFAULT, *self.tried)))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        # YAML files and users also write words in lower case.
        known = {str(value).lower(): value for value in self.domain(facts)}
        return known.get(str(wanted).lower())

    def refuse(self, facts: Facts) -> str | None:
        if facts.run is None:
            return None
        if (reason := refuse_single(facts)) is not None:
            return reason
        parallel = parallel_of(facts)
        if parallel is None:
            return "No wrapper was seen around the model, so how processes exchange is not known."
        if "nccl" not in parallel.backend:
            return f"Processes exchange by {parallel.backend or 'an unknown backend'}, not by NCCL."
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        if facts.run is not None and self.variable in (facts.run.environ_set or ()):
            return f"The script sets {self.variable} itself."
        return super().refuse_spelling(spelling, facts)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return settle_single(self.name, config)

    def environment(self, value: Value, spelling: Env, facts: Facts) -> str | None:
        if value == DEFAULT:
            return None
        return str(value * self.scale) if isinstance(value, int) else str(value)

    def seen(self, patches: Patches) -> Value | None:
        text = patches.process.variable(self.variable).strip()
        if text.isdecimal():
            return int(text) // self.scale if int(text) % self.scale == 0 else text
        return text or DEFAULT
