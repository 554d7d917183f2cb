"""Everything a knob may touch in the training process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.knobs.base import (
        AccumulationSeam,
        AttentionSeam,
        BudgetSeam,
        CheckpointingSeam,
        CollectorSeam,
        CompileSeam,
        CopiesSeam,
        DistributedHook,
        Float8Seam,
        GradientsSeam,
        LayoutSeam,
        LoaderSeam,
        OptimizerSeam,
        PrecisionSeam,
        ProcessSeam,
        RegionSeam,
        ShapesSeam,
        WeightsSeam,
    )
    from autotune.trial.actuators.garbage_collector import Collector
    from autotune.trial.actuators.hook_set import ModelSeams
    from autotune.trial.hooks.data.h2d_copies import Copies
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.distributed.settings import Distributed
    from autotune.trial.hooks.model.compiling import Compile
    from autotune.trial.hooks.model.trained_modules import Root
    from autotune.trial.hooks.step.optimizer import Optimizer
    from autotune.trial.runtime.process import Process
    from autotune.trial.runtime.undo import Undo


class Patches:
    """Implements `autotune.knobs.base.Patches`."""

    def __init__(
        self,
        torch: Any,
        undo: Undo,
        loader: Loader,
        root: Root,
        compiling: Compile,
        optimizer: Optimizer,
        process: Process,
        collector: Collector,
        copies: Copies,
        model: ModelSeams,
        distributed: Distributed,
    ) -> None:
        self.torch = torch
        self._undo = undo
        self._root = root
        self._optimizer = optimizer
        self.loader: LoaderSeam = loader
        self.precision: PrecisionSeam = root
        self.compile: CompileSeam = compiling
        self.layout: LayoutSeam = root.layout
        self.optimizer: OptimizerSeam = optimizer.kernel
        self.accumulation: AccumulationSeam = optimizer.accumulation
        self.process: ProcessSeam = process
        self.collector: CollectorSeam = collector
        self.copies: CopiesSeam = copies
        self.distributed: DistributedHook = distributed
        self.attention: AttentionSeam = model.attention
        self.checkpointing: CheckpointingSeam = model.checkpointing
        self.budget: BudgetSeam = model.budget
        self.shapes: ShapesSeam = model.shapes
        self.region: RegionSeam = model.region
        self.gradients: GradientsSeam = model.gradients
        self.weights: WeightsSeam = model.weights
        self.float8: Float8Seam = model.float8

    def assign(self, owner: object, attribute: str, value: object) -> None:
        """Set an attribute and remember the old one."""
        self._undo.assign(owner, attribute, value)

    def call(self, setter: Any, value: object, *, undo: object) -> None:
        """Call a setter now, and again with `undo` when patches are undone."""
        self._undo.call(setter, value, undo=undo)

    def undo_all(self) -> None:
        """Take back every patch, the seams themselves included."""
        self._root.settle()
        self._root.release()
        self._optimizer.release()
        self._undo.undo_all()
