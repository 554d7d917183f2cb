"""Backward passes of a step that exchange nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import as_count, joined
from autotune.knobs.distributed.wrapper_knob import DistributedKnob, uses_gradients
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts, ParallelFacts


class DdpNoSync(DistributedKnob):
    """Backward passes per exchange of gradients, for scripts that accumulate and exchange in every pass.

    The sum over the passes of a step is exchanged once, which sends one part in so many. A step that ends
    with fewer passes exchanges its sum before anything reads it.

    Effect: EXACT (another order of summation). Unit: backward passes. Source:
    torch.nn.parallel.DistributedDataParallel docs, `no_sync`.
    """

    name: ClassVar[str] = "ddp_no_sync"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "backward passes"
    rank: ClassVar[int] = 320

    def domain(self, facts: Facts) -> Sequence[Value]:
        run = facts.run
        passes = round(run.backward_per_step) if run is not None and run.own_accumulation else 1
        return joined({1, max(1, passes)}, self.own(facts))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_count(wanted, self.own(facts), least=1)

    def refuse(self, facts: Facts) -> str | None:
        # A script with `no_sync` has no value of its own that could be read.
        if facts.run is not None and facts.run.parallel is not None and facts.run.parallel.no_sync:
            return "The script leaves out exchanges of gradients itself (no_sync)."
        return super().refuse(facts)

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        run = facts.run
        assert run is not None
        if not run.own_accumulation:
            return "Every backward pass is followed by a step, so every exchange is needed."
        return refuse_deferred(parallel, facts)


def refuse_deferred(parallel: ParallelFacts, facts: Facts) -> str | None:
    """Return why backward passes of a step must exchange their gradients at once, or None."""
    run = facts.run
    assert run is not None
    if parallel.wrapper != "ddp":
        return "Only DistributedDataParallel can leave an exchange of gradients out."
    if parallel.count > 1:
        return f"{parallel.count} models are wrapped, and each may have passes of its own."
    if facts.value("ddp_comm_hook") != "none":
        return (
            "The script has a communication hook of its own, which a later exchange would not pass through."
        )
    if facts.value("ddp_static_graph") is True:
        return "The script takes the graph to be static, which needs an exchange in every pass."
    if not parallel.all_used:
        return "Some parameters get no gradient in some passes, and DDP would not exchange those later."
    if run.optimizer is not None and (run.optimizer.closure or run.optimizer.count > 1):
        return "Several optimizers step, or one by a closure, so where a step begins is not known."
    if run.model is not None and run.model.moves:
        return "The model updates buffers of its own at each call, which DDP sends along with gradients."
    if uses_gradients(facts):
        return "The script's own code uses gradients, which would not have been exchanged by then."
    return None
