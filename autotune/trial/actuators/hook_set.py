"""Construction of the hooks in the model, its attention, its memory and its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trial.actuators.activation_memory_budget import ActivationBudget
from autotune.trial.actuators.attention import Attention
from autotune.trial.actuators.bf16_parameters import Weights
from autotune.trial.actuators.checkpointing import Checkpointing
from autotune.trial.actuators.float8 import Float8
from autotune.trial.hooks.step.gradients import Gradients

if TYPE_CHECKING:
    from autotune.trial.hooks.model.compiling import Compile
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.accumulation import MicroBatches
    from autotune.trial.hooks.step.stepping import StepListener
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class ModelHooks:
    """Model hooks, built once per process after the root, compilation and the optimizer."""

    def __init__(
        self,
        state: RuntimeState,
        undo: Undo,
        hooks: AfterImport,
        root: TrainedModules,
        compiling: Compile,
        boundary: StepListener,
        accumulation: MicroBatches,
    ) -> None:
        graphs = compiling.graphs
        self.attention = Attention(state, undo, root, graphs)
        self.checkpointing = Checkpointing(state, undo, root, root.blocks, graphs)
        self.budget = ActivationBudget(state, undo, hooks, graphs)
        self.shapes = compiling.shapes
        self.region = compiling.regions
        self.gradients = Gradients(state, undo, root, accumulation)
        self.weights = Weights(state, undo, hooks, root, boundary)
        self.float8 = Float8(state, undo, root, graphs)
        root.parts += [self.weights, self.float8, self.checkpointing]

    def install(self, torch: Any) -> None:
        """Install the hooks after torch's import, before the script uses it."""
        self.attention.install(torch)
        self.checkpointing.install(torch)
        self.gradients.install(torch)
        self.weights.install(torch)
        self.float8.install(torch)

    def before_wrapping(self, module: Any) -> None:
        """Convert parameters before a wrapper takes them over."""
        self.weights.before_wrapping(module)
