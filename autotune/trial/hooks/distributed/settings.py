"""Implements `DistributedHook`: gradients and parameters that several processes exchange."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.hooks.distributed.affinity import AFFINITY, Affinity
from autotune.trial.hooks.distributed.data_parallel import DataParallel
from autotune.trial.hooks.distributed.deferred_exchange import NO_SYNC, DeferredExchange
from autotune.trial.hooks.distributed.sharded_optimizer import SHARD_OPTIMIZER, ShardedOptimizer
from autotune.trial.hooks.distributed.sharding import SETTINGS, Sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.model.config import Value
    from autotune.model.facts import ParallelFacts
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


_OF_DEEPSPEED: Final = {
    "deepspeed_zero_stage": "deepspeed.zero",
    "deepspeed_bucket_size": "deepspeed.reduce_bucket_size",
    "deepspeed_overlap_comm": "deepspeed.overlap_comm",
}
"""Knob -> setting of a framework."""
PROCESSES: Final = "processes"
"""Setting that is the size of the group of all processes; the launcher sets it."""


class Distributed:
    """Wrappers of PyTorch's around a model that several processes train; idle in a single process.

    Args:
        state: Shared counters.
        undo: Restores what was changed.
        hooks: Waits for imports.
        watches: Observe the facts that knobs need in the unchanged script.
    """

    def __init__(self, state: RuntimeState, undo: Undo, hooks: AfterImport, *, watches: bool) -> None:
        self._state = state
        self.parallel = DataParallel(state, undo, watches=watches)
        self.exchange = DeferredExchange(state, undo, self.parallel)
        self._optimizer = ShardedOptimizer(undo, self.parallel)
        self._sharding = Sharding(state, undo, hooks)
        self._affinity = Affinity(state, undo)
        self.framework_settings: Callable[[], Mapping[str, Value]] = dict
        """Returns what frameworks were built with, as in ``deepspeed.zero``."""

    def install(self, torch: Any) -> None:
        """Wrap constructors; install before what defers an optimizer's step."""
        if self._state.ranks == 1:
            return
        self.parallel.install(torch)
        self.exchange.install(torch)
        self._optimizer.install(torch)
        self._sharding.install(torch)

    def set(self, setting: str, value: Value, /) -> None:
        """Construct wrappers with this setting from now on."""
        if setting == NO_SYNC:
            self.exchange.every = int(value)
        elif setting == AFFINITY:
            self._affinity.set(str(value))
        elif setting == SHARD_OPTIMIZER:
            self._optimizer.is_wanted = bool(value)
        elif setting in SETTINGS:
            self._sharding.set(setting, value)
        else:
            self.parallel.set(setting, value)

    def observed(self, setting: str, /) -> Value | None:
        """Return the setting of every wrapper in use, or of the group of all processes."""
        if setting == PROCESSES:
            return self._world_size()
        if self._state.ranks == 1:
            return None
        if setting in _OF_DEEPSPEED:
            return self.framework_settings().get(_OF_DEEPSPEED[setting])
        if setting == NO_SYNC:
            return self.exchange.observed()
        if setting == AFFINITY:
            return self._affinity.observed()
        if setting == SHARD_OPTIMIZER:
            return self._optimizer.observed()
        return (self._sharding if setting in SETTINGS else self.parallel).observed(setting)

    def _world_size(self) -> int | None:
        distributed = importlib.import_module("torch.distributed")
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_world_size())
        return 1 if self._state.ranks == 1 else None

    def facts(self) -> ParallelFacts | None:
        """Return what the run has shown; None for one process, and without a wrapper."""
        return self.parallel.facts() or self._sharding.facts()
