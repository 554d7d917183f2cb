"""Parts that the knobs of several processes share. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch
from autotune.model.change import Patch, Spelling
from autotune.source.loops import OWN_GRADIENT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ParallelFacts

PROCESSES: Final = "processes"
"""Name of the knob that is the number of processes."""
_NAMES = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard (FSDP2)"}


def parallel_of(facts: Facts) -> ParallelFacts | None:
    """Return how the processes of the run exchange gradients; None for a single process."""
    return None if facts.run is None else facts.run.parallel


def refuse_single(facts: Facts) -> str | None:
    """Return why a knob of several processes has no effect for this script, or None."""
    if facts.run is not None and facts.run.ranks == 1:
        return "A single process trains, which exchanges nothing."
    return None


def settle_single(name: str, config: Config) -> Config:
    """Return the config without this knob of several processes if it starts one process only."""
    return config.without(name) if config.get(PROCESSES) == 1 else config


def uses_gradients(facts: Facts) -> bool:
    """Return whether the script's own code reads gradients between a backward pass and its step."""
    found = facts.run.loop_hazards if facts.run is not None else ()
    return OWN_GRADIENT in (*facts.script.hazards, *found)


class DistributedKnob(Knob):
    """A setting of a wrapper that several processes train through, applied where that is constructed."""

    wrapper: ClassVar[str] = "ddp"
    """``ddp`` or ``fsdp``."""
    family: ClassVar[str] = "communication"
    spellings: ClassVar[Sequence[Spelling]] = (Patch(),)

    def refuse(self, facts: Facts) -> str | None:
        if facts.run is None:
            return None
        if (reason := refuse_single(facts)) is not None:
            return reason
        parallel = parallel_of(facts)
        if parallel is None or parallel.wrapper != self.wrapper:
            return f"No {_NAMES[self.wrapper]} was seen around the model."
        if self.own(facts) is None:
            return "The wrappers of the script have different values, or one that could not be read."
        return self.refuse_wrapper(parallel, facts)

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        """Return why this wrapper must keep the script's own value: a whole sentence, or None."""
        return None

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return settle_single(self.name, config)

    def patch(self, value: Value, patches: Patches) -> None:
        patches.distributed.set(self.name, value)

    def seen(self, patches: Patches) -> Value | None:
        return patches.distributed.observed(self.name)


class SwitchKnob(DistributedKnob):
    """A setting that is on or off."""

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)
