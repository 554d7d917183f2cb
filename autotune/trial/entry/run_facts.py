"""Facts of a run, collected from the hooks: what the search and `inspect` know of the script."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import platform
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from autotune.knobs.batch.batch_size import BATCH_OPTIONS
from autotune.model.facts import OPTION, REPORTED, RunFacts
from autotune.source.loops import CARRIED, COLLECTED, OWN_GRADIENT, STEP_COUNTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import DeviceFacts, InputFacts, LoaderFacts
    from autotune.protocol.plan import Plan
    from autotune.trial.actuators.hook_set import ModelHooks
    from autotune.trial.actuators.readings import Readings
    from autotune.trial.hooks.data.h2d_copies import H2dCopies
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.distributed.settings import Distributed
    from autotune.trial.hooks.libraries.frameworks import Frameworks
    from autotune.trial.hooks.model.compiling import Compile
    from autotune.trial.hooks.model.rng_usage import LoopDraws
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.losses import Losses
    from autotune.trial.hooks.step.optimizer import Optimizer
    from autotune.trial.loop.schedules import Schedules
    from autotune.trial.measure.step_counter import StepCounter
    from autotune.trial.runtime.faults import Faults
    from autotune.trial.runtime.memory import DeviceMemory
    from autotune.trial.runtime.parsed_options import ParsedOptions
    from autotune.trial.runtime.process import TrainingProcess
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.user_modules import Modules

_VERSIONED = (
    "torch",
    "numpy",
    "torchvision",
    "accelerate",
    "deepspeed",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "timm",
    "tensorflow",
    "keras",
    "jax",
    "onnxruntime",
)
_INSTALLED = ("torchao",)
"""Packages that a knob imports itself, so that an installed one suffices."""


@dataclass(slots=True, kw_only=True)
class TorchHooks:
    """Hooks that are installed when the script imports torch."""

    loader: Loader
    root: TrainedModules
    optimizer: Optimizer
    compiling: Compile
    losses: Losses
    model: ModelHooks
    distributed: Distributed
    copies: H2dCopies
    draws: LoopDraws
    schedules: Schedules | None
    """In the baseline only."""


class FactsReader:
    """Reads the facts of a run.

    Args:
        plan: Program, changes and segments.
        state: Shared counters.
        boundary: Counts steps and samples.
        readings: Status of every knob.
        frameworks: Training frameworks in use.
        process: Threads and libraries of the process.
        memory: Devices and their memory.
        options: Options that the script has parsed.
        modules: The user's modules; None without a measurement.
        faults: Record of failures of hooks.
    """

    def __init__(
        self,
        plan: Plan,
        state: RuntimeState,
        *,
        boundary: StepCounter,
        readings: Readings,
        frameworks: Frameworks,
        process: TrainingProcess,
        memory: DeviceMemory,
        options: ParsedOptions,
        modules: Modules | None,
        faults: Faults,
    ) -> None:
        self._plan = plan
        self._state = state
        self._boundary = boundary
        self._readings = readings
        self._frameworks = frameworks
        self._process = process
        self._memory = memory
        self._options = options
        self._modules = modules
        self._faults = faults

    def read(self, hooks: TorchHooks | None) -> RunFacts:
        """Return all facts of the run so far.

        Args:
            hooks: What is installed with torch; None without it.
        """
        torch = sys.modules.get("torch")
        versions = {"python": platform.python_version()}
        for name in _VERSIONED:
            version = getattr(sys.modules.get(name), "__version__", None)
            if version is not None:
                versions[name] = str(version)
        versions.update(_installed())
        if torch is None or hooks is None:
            return self._without_torch(versions)
        loader, root, optimizer = hooks.loader, hooks.root, hooks.optimizer
        compiling, losses, model = hooks.compiling, hooks.losses, hooks.model
        built = loader.facts()
        inputs = root.inputs.facts(optimizer.backwards_seen) if built is None else None
        if inputs is not None:
            inputs = replace(inputs, reported_per_sample=self._boundary.reported_ratio())
        batch = loader.observed("batch_size")
        per_step = self._boundary.backwards_per_step()
        values = self._readings.values()
        fetched = self._boundary.batches_per_step()
        own_accumulation = (
            per_step > 1.5
            and (fetched is None or fetched > 1.5)
            and optimizer.accumulation.factor == 1
            and optimizer.count == 1
            and not optimizer.closure
        )
        effective = values.get("effective_batch")
        if not isinstance(effective, int) and isinstance(batch, int):
            # Several losses on one batch, or several optimizers, do not increase the batch.
            parts = own_accumulation or optimizer.accumulation.factor > 1
            effective = round(batch * max(1.0, per_step)) if parts else batch
        trained, attention = root.facts(), model.attention.facts()
        if trained is not None and attention is not None and attention.dropout:
            trained = replace(trained, dropout=True)
        hazards = () if self._plan.changes else self._hazards(root, optimizer)
        return RunFacts(
            loader=built,
            model=trained,
            optimizer=optimizer.facts(),
            samples_source=self._samples_source(hooks, built, inputs),
            inputs=inputs,
            effective_batch=effective * self._state.ranks if isinstance(effective, int) else None,
            backward_per_step=per_step,
            own_accumulation=own_accumulation,
            zero_grad_seen=optimizer.zero_grad_seen,
            reduction=losses.reduction,
            loss_scale=losses.scale,
            bce_outside=losses.bce_outside,
            own_autocast=root.own_autocast,
            own_scaler=optimizer.own_scaler,
            own_compile=compiling.own,
            owners=tuple(self._frameworks.owners),
            owner_settings=self._owner_settings(optimizer),
            threads=int(torch.get_num_threads()),
            openmp=self._process.openmp(),
            scheduler_per_step=optimizer.scheduler_per_step,
            input_shapes_vary=root.shapes_vary(),
            explicit_backward_gradient=optimizer.explicit_gradient,
            devices=self._devices(),
            triton=_is_there("triton"),
            deterministic=_is_deterministic(torch),
            sets_threads=self._process.sets_threads,
            gathers=root.purposes.gathers or COLLECTED in hazards,
            loader_in_thread=loader.in_thread,
            attention=attention,
            zeroes_gradients=model.gradients.zeroes,
            gradients_pause=model.gradients.pause,
            loop_hazards=hazards,
            loop_draws=hooks.draws.where,
            averages_apart=optimizer.averages_apart,
            collecting_frac=self._boundary.collecting_frac(),
            values=values,
            versions=versions,
            modules=self._imported(),
            environ_set=self._process.changed(),
            loaded_first=self._process.loaded_first(),
            ranks=self._state.ranks,
            fixed_steps=_fixed_steps(hooks, built, hazards),
            option_batch=self.option_batch(),
            options=dict(self._options.values),
            pass_samples=0 if self._plan.changes else optimizer.own_pass_samples(),
            parallel=hooks.distributed.facts(),
        )

    def option_batch(self) -> int:
        """Return the batch size by the script's own option or constant; 0 if unknown."""
        return self._options.size(BATCH_OPTIONS.names) or self._plan.batch

    def _hazards(self, root: TrainedModules, optimizer: Optimizer) -> tuple[str, ...]:
        """Return the hazards from the source of the loop and from observations."""
        found = {*optimizer.loop_hazards()}
        if root.carries:
            found.add(CARRIED)
        try:
            if optimizer.hooks_gradients():
                found.add(OWN_GRADIENT)
        except Exception as error:
            self._faults.note("hooks", error)
        return tuple(sorted(found))

    def _samples_source(self, hooks: TorchHooks, built: LoaderFacts | None, inputs: InputFacts | None) -> str:
        if built is not None and not self._boundary.reuses:
            return "loader"
        if self._boundary.reports_samples:
            return REPORTED
        # If a script trains inside a function, the model is deleted when the function returns.
        if inputs is None and not hooks.root.calls:
            return "none"
        # A closure runs the model any number of times.
        closure = hooks.optimizer.closure
        return OPTION if inputs is not None and inputs.counts and not closure else "input"

    def _without_torch(self, versions: dict[str, str]) -> RunFacts:
        """Return the facts of a script whose steps are reported through the SDK alone."""
        reports, state = self._boundary.reports_samples, self._state
        return RunFacts(
            samples_source=REPORTED if reports else "none",
            effective_batch=round(state.samples_total / state.steps) if reports else None,
            owners=tuple(self._frameworks.owners),
            values=self._readings.values(),
            versions=versions,
            modules=self._imported(),
            ranks=self._state.ranks,
        )

    def _owner_settings(self, optimizer: Optimizer) -> dict[str, Value]:
        found = self._frameworks.settings()
        if "accelerate" in self._frameworks.owners:
            found["accelerate.zeroes_first"] = optimizer.zeroes_first
            found["accelerate.zeroes_module"] = optimizer.zeroes_module
        return found

    def _imported(self) -> dict[str, str]:
        """Return the user's files imported so far; in the baseline only, which alone needs them."""
        if self._modules is None or self._plan.changes:
            return {}
        try:
            return self._modules.seen()
        except Exception as error:
            self._faults.note("modules", error)
            return {}

    def _devices(self) -> tuple[DeviceFacts, ...]:
        try:
            return self._memory.facts()
        except Exception as error:
            self._faults.note("devices", error)
            return ()


def _fixed_steps(hooks: TorchHooks, built: LoaderFacts | None, hazards: Sequence[str]) -> str:
    """Return which count of steps the script fixes in advance; empty if it does not, or is not known."""
    if hooks.schedules is None:
        return ""
    return hooks.schedules.fixed(
        None if built is None else built.length,
        per_step=hooks.optimizer.scheduler_per_step,
        counted=STEP_COUNTED in hazards,
    )


@functools.cache
def _installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _INSTALLED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@functools.cache
def _is_there(name: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        return name in sys.modules


def _is_deterministic(torch: Any) -> bool:
    """Return whether the script requests determinism, of all operators or of cuDNN alone."""
    return bool(torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic)
