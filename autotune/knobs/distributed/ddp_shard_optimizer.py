"""Whether processes share the optimizer's state and step out."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.distributed.wrapper_knob import SwitchKnob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from autotune.model.facts import Facts, ParallelFacts

SAVES_OPTIMIZER = "saves_optimizer"
"""A hazard of `ScriptFacts`: the source takes a state_dict of something that need not be a model."""


class DdpShardOptimizer(SwitchKnob):
    """Whether each process updates a share of the parameters and keeps the optimizer's state of that share.

    As ZeroRedundancyOptimizer (ZeRO stage 1), for the optimizer that the script has built. It saves memory
    and arithmetic, and each step sends the parameters once more. Where the script saves the optimizer's state
    it is refused: no process has all of it.

    Effect: EXACT (bit by bit). Unit: on or off. Source: torch.distributed.optim.ZeroRedundancyOptimizer docs;
    arXiv 1910.02054.
    """

    name: ClassVar[str] = "ddp_shard_optimizer"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "memory"
    rank: ClassVar[int] = 400

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        run = facts.run
        assert run is not None
        if parallel.count > 1:
            return f"{parallel.count} models are wrapped, and a step may update parameters of several."
        if run.owners:
            return f"{run.owners[0]} saves the optimizer's state, of which each process would have a part."
        if SAVES_OPTIMIZER in facts.script.hazards:
            return "The script may save the optimizer's state, of which each process would have a part."
        optimizer = run.optimizer
        if optimizer is None or not (optimizer.can_fuse or optimizer.fused):
            return "No SGD, Adam, AdamW or Adagrad of PyTorch was seen, whose parameters are independent."
        if optimizer.closure or optimizer.count > 1:
            return "Several optimizers step, or one by a closure, which computes gradients during the step."
        return None
