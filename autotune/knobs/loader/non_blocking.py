"""Asynchronous copies of batches to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, no_loader, trains_on_cuda
from autotune.knobs.traits import Prior
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts


class NonBlocking(Knob):
    """Asynchronous copies of batches to the device: the host continues with the next work.

    Only for pinned batches of a loader, from host to device, without a change of type, and where the
    script does not set `non_blocking` itself. Copies back to the host are unchanged.

    Effect: EXACT. Unit: on or off. Source: torch docs, "CUDA semantics", "Use pinned memory buffers";
    PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()".
    """

    name: ClassVar[str] = "non_blocking"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "transfer"
    spellings: ClassVar[Sequence[Spelling]] = (Patch(),)
    rank: ClassVar[int] = 160
    prior: ClassVar[Prior] = Prior(spread=0.05)

    def own(self, facts: Facts) -> Value | None:
        # Copies of unpinned batches are not observed: they are never asynchronous.
        read = facts.value(self.name)
        return read if read is not None or facts.run is None else False

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (True,) if self.own(facts) is True else (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        switch = as_switch(wanted)
        return switch if switch in self.domain(facts) else None

    def refuse(self, facts: Facts) -> str | None:
        if not trains_on_cuda(facts):
            return "Only copies to an NVIDIA device are asynchronous, and training runs on the CPU."
        return no_loader(facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        if facts.run is None or "pin_memory" in varied or _pins(None, facts):
            return None
        return "The loader does not pin its batches, and pin_memory is not varied."

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return config if _pins(config, facts) else config.without(self.name)

    def patch(self, value: Value, patches: Patches) -> None:
        patches.copies.non_blocking(value is True)

    def seen(self, patches: Patches) -> Value | None:
        return patches.copies.observed()


def _pins(config: Config | None, facts: Facts) -> bool:
    pinned = None if config is None else config.get("pin_memory")
    if pinned is None:
        loader = None if facts.run is None else facts.run.loader
        pinned = facts.value("pin_memory") or (loader is not None and loader.pin_memory)
    return pinned is True
