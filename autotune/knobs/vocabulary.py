"""Values that can have a meaning for a knob, on any machine and for any script. Standard library only.

The meaning of a value depends on facts, and a space file is written before there are any. Values are
therefore resolved against imagined machines and an imagined script, which together have every feature.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.model.facts import (
    DeviceFacts,
    Facts,
    HostFacts,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    RunFacts,
    ScriptFacts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.knobs.base import Knob
    from autotune.model.config import Value

_MANY: Final = 10**9
"""Every count of the imagined script; its common shares are whole numbers."""

_OURS: Final = "autotune.knobs."


def meaningless(knob: Knob, values: Iterable[Value]) -> Value | None:
    """Return the first value, in the notation of space files, without any meaning for the knob, or None.

    Values of knobs from other packages are not checked.
    """
    if not type(knob).__module__.startswith(_OURS):
        return None
    return next((value for value in values if not _means_something(knob, value)), None)


def is_value(knob: Knob, value: Value) -> bool:
    """Return whether a configuration can have this value, which excludes relative notations such as ``x2``.

    Values of knobs from other packages are not checked.
    """
    if not type(knob).__module__.startswith(_OURS):
        return True
    if isinstance(value, str):
        return value in words(knob)
    return meaningless(knob, (value,)) is None


def words(knob: Knob) -> tuple[str, ...]:
    """Return the values of a knob that are words or switches; empty if it takes numbers."""
    values = [value for facts in _imagined() for value in knob.domain(facts)]
    texts = [str(v).lower() if isinstance(v, bool) else v for v in values if isinstance(v, (bool, str))]
    return tuple(dict.fromkeys(texts))


def _means_something(knob: Knob, value: Value) -> bool:
    return value == "asis" or any(knob.resolve(value, facts) is not None for facts in _imagined())


@functools.cache
def _imagined() -> tuple[Facts, ...]:
    processor = HostFacts(
        cpus=64,
        physical_cores=64,
        memory_bytes=1 << 40,
        cpu_flags=("avx512_bf16",),
        cxx="c++",
        cc="cc",
        allocators={"jemalloc": "libjemalloc.so", "tcmalloc": "libtcmalloc.so"},
        libc="glibc 2.99",
        huge_pages="madvise",
    )
    counted = ("batch_size", "num_workers", "prefetch_factor", "threads")
    counts: dict[str, Value] = dict.fromkeys(counted, _MANY)
    loader = LoaderFacts(
        site="",
        batch_size=_MANY,
        num_workers=_MANY,
        prefetch_factor=_MANY,
        pin_memory=False,
        persistent_workers=False,
    )
    on_processor = RunFacts(
        loader=loader,
        model=ModelFacts(name="", has_4d=True),
        optimizer=OptimizerFacts(name="", can_fuse=True),
        samples_source="loader",
        threads=_MANY,
        values=counts,
    )
    on_device = replace(on_processor, model=ModelFacts(name="", has_4d=True, device="cuda"))
    # Each 16-bit format is a value on older devices only, or on newer ones only.
    newer, older = (
        replace(processor, devices=(DeviceFacts(name="", uuid="", memory_bytes=1 << 40, capability=found),))
        for found in ((9, 0), (7, 0))
    )
    spinning = replace(on_processor, values={**counts, "wait_policy": "ACTIVE"})
    pairs = ((processor, on_processor), (processor, spinning), (newer, on_device), (older, on_device))
    return tuple(
        Facts(host=host, script=ScriptFacts(path=""), run=run, effective_batch_rule=f"1..{_MANY**2}")
        for host, run in pairs
    )
