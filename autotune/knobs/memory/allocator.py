"""Settings of PyTorch's CUDA memory allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import loader_of, torch_version, trains_on_cuda
from autotune.knobs.traits import Prior
from autotune.model.change import Env, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts

_NEW: Final = "PYTORCH_ALLOC_CONF"
_OLD: Final = "PYTORCH_CUDA_ALLOC_CONF"
_NEW_SINCE: Final = (2, 11)
"""2.9.1 accepts the new name but ignores its setting of segments (pytorch issue 183387)."""
_SETTINGS: Final = {"expandable_segments": "expandable_segments:True"}
_ASYNC: Final = "cudaMallocAsync"


class Allocator(Knob):
    """Policy of the CUDA memory allocator: expandable segments waste less where sizes vary.

    Set by ``PYTORCH_ALLOC_CONF``, before 2.11 by its old name; other settings in the variable are kept.
    ``garbage_collection_threshold`` is not varied, because it acts only under a memory limit of the process.
    Nor is ``max_split_size_mb``, which the documentation calls a last resort against running out of memory.

    Effect: EXACT. Unit: none. Source: torch docs, "CUDA semantics", "Optimizing memory usage with
    PYTORCH_ALLOC_CONF"; pytorch issue 183387; NVIDIA/NeMo pull request 9061 (reallocations cost
    about 30 % of a speech training).
    """

    name: ClassVar[str] = "allocator"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "memory"
    spellings: ClassVar[Sequence[Spelling]] = (Env(_NEW), Env(_OLD))
    rank: ClassVar[int] = 210
    prior: ClassVar[Prior] = Prior(spread_on={"cuda": 0.03})

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        if own == "expandable_segments":
            return (own,)
        base = own if isinstance(own, str) else "default"
        return tuple(dict.fromkeys((base, *_SETTINGS)))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in self.domain(facts) else None

    def refuse(self, facts: Facts) -> str | None:
        loader = loader_of(facts)
        if not trains_on_cuda(facts):
            return "The CUDA allocator needs an NVIDIA device, and training runs on the CPU."
        if self.own(facts) == _ASYNC:
            return "The script uses CUDA's own asynchronous allocator, to which these settings do not apply."
        if loader is not None and loader.cuda_tensors:
            return "The dataset holds tensors on an accelerator, and workers may share their memory."
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        version = torch_version(facts)
        new = version is not None and version >= _NEW_SINCE
        if spelling == Env(_NEW) and not new:
            return "Only PyTorch 2.11 and newer read it fully."
        return None

    def environment(self, value: Value, spelling: Env, facts: Facts) -> str | None:
        return _SETTINGS.get(str(value))

    def seen(self, patches: Patches) -> Value | None:
        cuda: Any = patches.torch.cuda
        if not cuda.is_initialized():
            return None
        if cuda.get_allocator_backend() == _ASYNC:
            return _ASYNC
        # Some releases ignore the variable, so the allocator's own setting is read.
        settings = cuda.memory._snapshot()["allocator_settings"]  # noqa: SLF001 (no public name)
        if settings["expandable_segments"]:
            return "expandable_segments"
        return "garbage_collection" if settings["garbage_collection_threshold"] > 0 else "default"
