"""Garbage collection of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.traits import Prior
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Value
    from autotune.model.facts import Facts, RunFacts

_COLLECTS_FRAC: Final = 0.02
"""Share of the time in garbage collection from which the knob is worth a run; a design value."""


class GcControl(Knob):
    """When Python collects garbage: not among long-lived objects, and not within steps.

    ``freeze`` excludes objects that exist after the first steps. ``boundary`` also collects between steps
    only: the newest objects after every step, all of them every few hundred steps. Very many objects
    within a step still start a collection, so that memory is bounded.

    Effect: EXACT. Unit: none. Source: Python docs, `gc.freeze`, `gc.set_threshold`.
    """

    name: ClassVar[str] = "gc_control"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "memory"
    spellings: ClassVar[Sequence[Spelling]] = (Patch(),)
    rank: ClassVar[int] = 250
    prior: ClassVar[Prior] = Prior(spread=0.05)
    acts_at: ClassVar[ActsAt] = "step_end"

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        return ("auto", "freeze", "boundary") if own in (None, "auto") else (own or "auto",)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in self.domain(facts) else None

    def refuse(self, facts: Facts) -> str | None:
        if self.own(facts) not in (None, "auto"):
            return "The script controls garbage collection itself."
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        patches.collector.set(str(value))

    def seen(self, patches: Patches) -> Value | None:
        return patches.collector.observed()

    def added_by(self, run: RunFacts) -> tuple[Sequence[Value], str] | None:
        frac = run.collecting_frac
        if frac is None or frac < _COLLECTS_FRAC or run.values.get(self.name) not in (None, "auto"):
            return None
        return ("auto", "freeze"), f"garbage collection takes {100 * frac:.0f} % of the time"
