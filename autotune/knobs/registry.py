"""All knobs by name: the built-in ones, and those that installed packages add.

Another package adds a knob by an entry point in the group ``autotune.knobs`` that names its
`Knob` class. Those are loaded on first use.
"""

from __future__ import annotations

import functools
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError
from autotune.knobs.accumulation import Accumulation
from autotune.knobs.base import Knob
from autotune.knobs.batch_size import BatchSize
from autotune.knobs.channels_last import ChannelsLast
from autotune.knobs.compile_mode import CompileMode
from autotune.knobs.cudnn_benchmark import CudnnBenchmark
from autotune.knobs.effective_batch import EffectiveBatch
from autotune.knobs.fused_optimizer import FusedOptimizer
from autotune.knobs.num_workers import NumWorkers
from autotune.knobs.persistent_workers import PersistentWorkers
from autotune.knobs.pin_memory import PinMemory
from autotune.knobs.precision import Precision
from autotune.knobs.prefetch_factor import PrefetchFactor
from autotune.knobs.tf32 import Tf32
from autotune.knobs.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENTRY_POINTS: Final = "autotune.knobs"

_BUILTIN: Final[tuple[type[Knob], ...]] = (
    Precision,
    NumWorkers,
    CompileMode,
    Tf32,
    ChannelsLast,
    BatchSize,
    EffectiveBatch,
    Accumulation,
    FusedOptimizer,
    Threads,
    PrefetchFactor,
    PinMemory,
    PersistentWorkers,
    CudnnBenchmark,
)
"""By expected gain per cost of trying, largest first."""


@functools.cache
def builtin() -> Mapping[str, Knob]:
    """Every knob by name, in order of expected gain per cost; knobs of other packages last.

    Raises:
        UsageError: Two knobs have one name, or an installed package's entry point is no knob.
    """
    return MappingProxyType(named([*(kind() for kind in _BUILTIN), *_installed()]))


def named(knobs: Iterable[Knob]) -> dict[str, Knob]:
    """Knobs by their names, in the order given.

    Raises:
        UsageError: Two of them have the same name.
    """
    found: dict[str, Knob] = {}
    for knob in knobs:
        if knob.name in found:
            both = " and ".join(type(k).__module__ for k in (found[knob.name], knob))
            message = f'two knobs are called "{knob.name}": in {both}'
            raise UsageError(message, hint="Remove one of the packages, or rename its knob.")
        found[knob.name] = knob
    return found


def _installed() -> list[Knob]:
    knobs: list[Knob] = []
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        try:
            kind = point.load()
        except Exception as error:
            message = f'the knob "{point.name}" ({point.value}) cannot be loaded: {error}'
            raise UsageError(message, hint="Repair or remove the package that offers it.") from error
        if not (isinstance(kind, type) and issubclass(kind, Knob)):
            message = f'the entry point "{point.name}" ({point.value}) is no Knob class'
            raise UsageError(message, hint="It has to name a subclass of autotune.knobs.base.Knob.")
        knobs.append(kind())
    return knobs
