"""Batches in page-locked memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import LOADER, as_switch, flag_variants, loader_of, no_loader, trains_on_cuda
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.traits import Prior
from autotune.model.change import Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Value
    from autotune.model.facts import Facts


class PinMemory(Knob):
    """Batches in page-locked memory: copies to the device can overlap with computing.

    Helps mostly where the script copies with ``non_blocking=True``.

    Effect: EXACT. Unit: on or off. Source: torch.utils.data docs, "Memory Pinning".
    """

    name: ClassVar[str] = "pin_memory"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "transfer"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "dataloader_pin_memory"),
        flag_variants("pin-memory", "pin-mem", "dataloader-pin-memory"),
        Keyword(LOADER, "pin_memory"),
    )
    rank: ClassVar[int] = 150
    prior: ClassVar[Prior] = Prior(spread=0.05)
    acts_at: ClassVar[ActsAt] = "construction"
    feeds: ClassVar[bool] = True

    def own(self, facts: Facts) -> Value | None:
        loader = loader_of(facts)
        read = facts.value(self.name)
        return read if read is not None or loader is None else loader.pin_memory

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)

    def refuse(self, facts: Facts) -> str | None:
        loader = loader_of(facts)
        if not trains_on_cuda(facts):
            return "Pinned memory only speeds up copies to an NVIDIA device, and training runs on the CPU."
        if loader is not None and loader.cuda_tensors:
            return "The dataset holds tensors on an accelerator, which cannot be pinned."
        return no_loader(facts)

    def patch(self, value: Value, patches: Patches) -> None:
        patches.loader.override("pin_memory", value)

    def seen(self, patches: Patches) -> Value | None:
        return patches.loader.observed("pin_memory")
