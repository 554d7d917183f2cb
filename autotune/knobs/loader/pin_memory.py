"""Batches in page-locked memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import LOADER, flag_variants, loader_of, no_loader, trains_on_cuda
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.loader.loader_keyword import LoaderSwitch
from autotune.knobs.traits import Prior
from autotune.model.change import Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.facts import Facts


class PinMemory(LoaderSwitch):
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

    def refuse(self, facts: Facts) -> str | None:
        loader = loader_of(facts)
        if not trains_on_cuda(facts):
            return "Pinned memory only speeds up copies to an NVIDIA device, and training runs on the CPU."
        if loader is not None and loader.cuda_tensors:
            return "The dataset holds tensors on an accelerator, which cannot be pinned."
        return no_loader(facts)
