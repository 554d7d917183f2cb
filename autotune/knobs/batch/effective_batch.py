"""Samples per optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob
from autotune.knobs.batch import batching
from autotune.knobs.batch.batch_size import available
from autotune.knobs.batch.batching import unseen
from autotune.knobs.common import as_count
from autotune.knobs.traits import LateHarm
from autotune.model.effect import Effect
from autotune.model.facts import COUNTED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.change import Spelling
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts


class EffectiveBatch(Knob):
    """Samples per optimizer step: another value trains differently, and may reach a loss sooner.

    The product of ``batch_size`` and ``accumulation``. Bounded by ``--effective-batch``: ``explore``
    (half to eight times the script's own, in powers of two), ``keep``, or ``LO..HI``.

    Effect: TRAINING. Unit: samples. Source: arXiv 1812.06162 (critical batch size).
    """

    name: ClassVar[str] = "effective_batch"
    effect: ClassVar[Effect] = Effect.TRAINING
    ordinal: ClassVar[bool] = True
    virtual: ClassVar[bool] = True
    unit: ClassVar[str] = "samples"
    family: ClassVar[str] = "batch"
    requires: ClassVar[Sequence[str]] = ("batch_size", "accumulation")
    spellings: ClassVar[Sequence[Spelling]] = ()
    rank: ClassVar[int] = 80
    late_harms: ClassVar[Sequence[LateHarm]] = (
        LateHarm(
            applies=lambda changed: changed.is_smaller,
            harm="a smaller effective batch gains early; its gradient noise has an effect when the loss "
            "flattens",
            source="arXiv 1812.06162, 2.2",
        ),
        LateHarm(
            applies=lambda changed: changed.own not in (None, changed.value) and not changed.is_smaller,
            harm=(
                "the cost of a larger effective batch at the same learning rate appears late in training and "
                "on held-out data"
            ),
            in_training=False,
            bars=False,
            source="arXiv 1609.04836",
        ),
    )
    permission: ClassVar[str] = "--effective-batch LO..HI"

    def own(self, facts: Facts) -> Value | None:
        own = batching.own_batch(facts)
        return None if own is None else own.effective

    def domain(self, facts: Facts) -> Sequence[Value]:
        return batching.effective_values(facts)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        count, bounds = as_count(wanted, self.own(facts), least=1), batching.effective_bounds(facts)
        if count is None or bounds is None:
            return None
        return count if bounds[0] <= count <= bounds[1] or count == self.own(facts) else None

    def refuse(self, facts: Facts) -> str | None:
        if facts.effective_batch_rule == "keep":
            return "The effective batch is kept, as requested."
        if facts.run is None:
            return None
        if facts.run.gathers and (reason := unseen(facts)) is not None:
            return reason
        if facts.run.samples_source not in COUNTED:
            return (
                "The number of samples per step is not verified, so another effective batch cannot be judged."
            )
        if batching.own_batch(facts) is None:
            return "The script's own effective batch could not be read."
        return unseen(facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        if {"batch_size", "accumulation"} & set(varied):
            return None
        return (
            "Neither batch_size nor accumulation can be changed, and nothing else changes the effective "
            "batch."
        )

    def changes_rng_streams(self, facts: Facts) -> bool:
        return True

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return batching.settle_batch(config, facts, available(facts) if varied is None else varied)
