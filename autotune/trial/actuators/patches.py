"""Interface of knobs to the training process."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Patches

if TYPE_CHECKING:
    from autotune.trial.actuators.garbage_collector import Collector
    from autotune.trial.actuators.hook_set import ModelHooks
    from autotune.trial.hooks.data.h2d_copies import H2dCopies
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.distributed.settings import Distributed
    from autotune.trial.hooks.model.compiling import Compile
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.optimizer import Optimizer
    from autotune.trial.runtime.process import TrainingProcess
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class TrialPatches(Patches):
    """Patches of a running trial."""

    def __init__(
        self,
        torch: Any,
        undo: Undo,
        loader: Loader,
        root: TrainedModules,
        compiling: Compile,
        optimizer: Optimizer,
        process: TrainingProcess,
        collector: Collector,
        copies: H2dCopies,
        model: ModelHooks,
        distributed: Distributed,
        state: RuntimeState,
    ) -> None:
        self.torch = torch
        self._state = state
        self._hooks: dict[str, Any] = {}
        self._undo = undo
        self._root = root
        self._optimizer = optimizer
        self.loader = loader
        self.precision = root
        self.compile = compiling
        self.layout = root.layout
        self.optimizer = optimizer.kernel
        self.accumulation = optimizer.accumulation
        self.process = process
        self.collector = collector
        self.copies = copies
        self.distributed = distributed
        self.attention = model.attention
        self.checkpointing = model.checkpointing
        self.budget = model.budget
        self.shapes = model.shapes
        self.region = model.region
        self.gradients = model.gradients
        self.weights = model.weights
        self.float8 = model.float8

    def assign(self, owner: object, attribute: str, value: object) -> None:
        """Set an attribute and store the old value."""
        self._undo.assign(owner, attribute, value)

    def hook(self, path: str) -> Any:
        """Return the one object of a class ``package.module:Class``, built with (state, undo, torch)."""
        if path not in self._hooks:
            module, _, name = path.partition(":")
            kind = getattr(importlib.import_module(module), name)
            self._hooks[path] = kind(self._state, self._undo, self.torch)
        return self._hooks[path]

    def call(self, setter: Any, value: object, *, undo: object) -> None:
        """Call a setter now, and again with `undo` when patches are undone."""
        self._undo.call(setter, value, undo=undo)

    def undo_all(self) -> None:
        """Undo every patch, including the hooks."""
        self._root.settle()
        self._root.release()
        self._optimizer.release()
        self._undo.undo_all()
