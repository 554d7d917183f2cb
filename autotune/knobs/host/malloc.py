"""Library from which CPU memory comes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import trains_on_cuda
from autotune.knobs.traits import Prior
from autotune.model.change import Env, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts

_HUGE: Final = "glibc_hugepages"
_LIBRARIES: Final = ("jemalloc", "tcmalloc")
_TUNABLE: Final = "glibc.malloc.hugetlb=1"
_TUNABLE_SINCE: Final = (2, 35)


class Malloc(Knob):
    """The library that CPU memory comes from: large tensors allocated in each step cause page faults.

    ``jemalloc`` and ``tcmalloc`` by ``LD_PRELOAD``, where they are installed, before existing entries.
    ``glibc_hugepages`` makes glibc request transparent huge pages.

    Effect: EXACT. Unit: none. Source: PyTorch performance tuning guide, "Switch memory allocator";
    glibc manual, "Memory Allocation Tunables", `glibc.malloc.hugetlb`.
    """

    name: ClassVar[str] = "malloc"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "memory"
    spellings: ClassVar[Sequence[Spelling]] = (Env("LD_PRELOAD"), Env("GLIBC_TUNABLES"))
    rank: ClassVar[int] = 130
    prior: ClassVar[Prior] = Prior(spread=0.06)

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts) or "glibc"
        values = [own, *(name for name in _LIBRARIES if _preloadable(name, facts))]
        if own == "glibc" and _has_hugepages(facts):
            values.append(_HUGE)
        return tuple(dict.fromkeys(values))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        return wanted if wanted in self.domain(facts) else None

    def refuse(self, facts: Facts) -> str | None:
        if trains_on_cuda(facts):
            return "Training runs on an NVIDIA device, whose memory has an allocator of its own."
        if len(self.domain(facts)) < 2:
            return (
                "Neither jemalloc nor tcmalloc is installed, and huge pages need glibc 2.35 and "
                "transparent huge pages in madvise mode."
            )
        return None

    def environment(self, value: Value, spelling: Env, facts: Facts) -> str | None:
        if spelling.name == "LD_PRELOAD":
            return facts.host.allocators.get(str(value)) if value in _LIBRARIES else None
        return _TUNABLE if value == _HUGE else None

    def seen(self, patches: Patches) -> Value | None:
        process = patches.process
        library = process.malloc()
        if library != "glibc":
            return library or None
        # The check takes time, and is unnecessary without the variable.
        requested = _TUNABLE in process.variable("GLIBC_TUNABLES").split(":")
        return _HUGE if requested and process.huge_pages() else "glibc"


def _preloadable(name: str, facts: Facts) -> bool:
    """Return whether the path fits into the variable, whose words end at blanks and colons."""
    path = facts.host.allocators.get(name, "")
    return bool(path) and not re.search(r"[\s:]", path)


def _has_hugepages(facts: Facts) -> bool:
    version = tuple(int(n) for n in re.findall(r"\d+", facts.host.libc)[:2])
    glibc = facts.host.libc.startswith("glibc") and version >= _TUNABLE_SINCE
    return glibc and facts.host.huge_pages == "madvise"
