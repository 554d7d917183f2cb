"""Optimizer hook: work skipped while a step is deferred, and the script's own gradient scaling."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from autotune.model.facts import OptimizerFacts
from autotune.trial.hooks.step.backward import Backward
from autotune.trial.hooks.step.fused_optimizer import OptimizerKernel
from autotune.trial.hooks.step.param_groups import share_weights
from autotune.trial.hooks.step.stepping import StepMarker
from autotune.trial.records.steady_steps import OFF

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.losses import Losses
    from autotune.trial.hooks.step.stepping import StepListener
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class Optimizer(Backward):
    """Implements `OptimizerHook` as `kernel` and `AccumulationHook` as `accumulation`."""

    def __init__(
        self,
        state: RuntimeState,
        undo: Undo,
        boundary: StepListener,
        loader: Loader,
        root: TrainedModules,
        losses: Losses,
    ) -> None:
        super().__init__(state, undo, boundary, loader, root, losses)
        self.kernel = OptimizerKernel(state, undo, boundary)
        self._facts: OptimizerFacts | None = None
        self.zero_grad_seen = False
        self.zeroes_first = False
        """Gradients were zeroed between the start of a part and its backward pass."""
        self.zeroes_module = False
        """A module's gradients were zeroed after a backward pass."""
        self._scheduler_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._in_scheduler = False
        self._averaged_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.averages_apart = False
        self.on_scheduled: Callable[[], None] | None = None
        """Called before the first step of a schedule that advances with every optimizer step."""
        self.on_average: Callable[[], None] | None = None
        """Called before a moving average of the weights is updated."""

    # Installation

    def install(self, torch: Any) -> None:
        """Install the hooks."""
        self._torch = torch
        self._wrap_step(torch.optim.Optimizer)
        self._wrap_backward(torch)
        self._wrap_zero_grad(torch.optim.Optimizer)
        self._wrap_zero_grad(torch.nn.Module)
        self._wrap_clip(torch)
        self._wrap_schedulers(torch.optim.lr_scheduler)
        self._wrap_averages()
        self._wrap_scaler(torch.amp.GradScaler)
        self.kernel.install(torch)

    def let_go(self, *, steps: bool) -> None:
        """Remove the hooks on backward passes, and on steps if requested.

        Optimizers built later still get their kernel. References to a wrapped method, as schedulers hold an
        optimizer's `step`, remain and are passed through.
        """
        self._gone, self._steps_gone = True, steps
        self._scaled = None
        while self._backs:
            self._backs.pop()()
        if steps and self._step_back is not None:
            self.release()
            self._step_back()

    # What has to keep quiet

    def _wrap_zero_grad(self, cls: Any) -> None:
        original, calm, is_module = cls.zero_grad, self._state.calm, cls is self._torch.nn.Module
        is_compiling = self._torch.compiler.is_compiling

        @functools.wraps(original)
        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                calm.stage != OFF
                and self.zero_grad_seen
                and not self._part_begun
                and (self.zeroes_module or not is_module)
            ):
                return original(this, *args, **kwargs)
            if is_compiling() or not self._state.active:
                return original(this, *args, **kwargs)
            self.zero_grad_seen = True
            self.zeroes_first = self.zeroes_first or self._part_begun
            if self.backwards_seen and isinstance(this, self._torch.nn.Module):
                self.zeroes_module = True
            if self._unscaled and self._scaler is not None:
                self._step_left_out(this)
            if self.accumulation.pending or self.accumulation.open:
                last = self._last() if self._last is not None else None
                if last is None or last is this or share_weights(last, this):
                    if not self.accumulation.open:
                        return None
                    self.accumulation.thrown_away()
            return original(this, *args, **kwargs)

        self._replace(cls, "zero_grad", zero_grad)

    def _wrap_clip(self, torch: Any) -> None:
        places = [torch.nn.utils, sys.modules["torch.nn.utils.clip_grad"]]
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = getattr(torch.nn.utils, name)
            wrapped = self._clip(original, torch)
            for place in places:
                if hasattr(place, name):
                    self._replace(place, name, wrapped)

    def _clip(self, original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling
        returns_norm = original.__name__ == "clip_grad_norm_"
        last: Any = None

        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal last
            if is_compiling():
                return original(parameters, *args, **kwargs)
            accumulation = self.accumulation
            if not self._state.here():
                return original(parameters, *args, **kwargs)
            if accumulation.factor > 1 and not accumulation.is_last_part:
                # Scripts may use the norm, so it is that of the last step.
                if last is None and returns_norm:
                    norm_type = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
                    return self._norm_so_far(parameters, float(norm_type))
                return last
            if self._scaler is not None:
                parameters = self._unscale(parameters)
                if returns_norm:
                    # A gradient that is not finite is usual under a scaler, which skips the step.
                    args, kwargs = args[:2], {**kwargs, "error_if_nonfinite": False}
            found = original(parameters, *args, **kwargs)
            last = found if returns_norm else None
            return found

        return clip

    def _norm_so_far(self, parameters: Any, norm_type: float) -> Any:
        """Return the norm of the gradients of the first parts, which are not clipped."""
        norm = self._torch.linalg.vector_norm
        tensors = [parameters] if isinstance(parameters, self._torch.Tensor) else list(parameters)
        norms = [norm(p.grad, norm_type) for p in tensors if p.grad is not None]
        if not norms:
            return self._torch.zeros(())
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        return norm(self._torch.stack([one.to(norms[0].device) for one in norms]), norm_type) / scale

    def _unscale(self, parameters: Any) -> Any:
        """Unscale the gradients of the optimizer that owns these parameters, once per step.

        Returns:
            The parameters again: the argument may be a generator.
        """
        tensors = [parameters] if isinstance(parameters, self._torch.Tensor) else list(parameters)
        wanted = {id(tensor) for tensor in tensors if tensor.grad is not None}
        owner = self._owner(wanted) if wanted else None
        if wanted and owner is None:
            reason = "The script clips gradients of several optimizers, so which ones are scaled"
            for optimizer in (reference() for reference in self._alive):
                if optimizer is not None and id(optimizer) not in self._unscaled and _owns(optimizer, wanted):
                    self._scaler.unscale_(optimizer)
                    self._unscaled.add(id(optimizer))
            self._root.give_up("precision", f"{reason} is not known.")
        elif owner is not None and id(owner) not in self._unscaled:
            self._scaler.unscale_(owner)
            self._unscaled.add(id(owner))
        return parameters if isinstance(parameters, self._torch.Tensor) else tensors

    def _step_left_out(self, zeroed: Any) -> None:
        """Mark gradients as scaled again, since the unscaled ones are discarded.

        Scripts skip a step if the clipped norm is not finite.
        """
        if id(zeroed) in self._unscaled or not isinstance(zeroed, self._torch.optim.Optimizer):
            self._scaler.update()
            self._unscaled.clear()

    def _owner(self, wanted: set[int]) -> Any:
        """Return the one optimizer with all of these parameters, preferably one that steps; else None."""
        self._alive = [reference for reference in self._alive if reference() is not None]
        owners: list[Any] = []
        for optimizer in (reference() for reference in self._alive):
            groups = getattr(optimizer, "param_groups", ())
            if optimizer is not None and wanted <= {id(p) for group in groups for p in group["params"]}:
                owners.append(optimizer)
        stepping = self._last() if self._last is not None else None
        if any(owner is stepping for owner in owners):
            return stepping
        return owners[0] if len(owners) == 1 else None

    def _wrap_schedulers(self, module: Any) -> None:
        for cls in vars(module).values():
            if (
                isinstance(cls, type)
                and "step" in cls.__dict__
                and issubclass(
                    cls, (module.LRScheduler, getattr(module, "ReduceLROnPlateau", module.LRScheduler))
                )
            ):
                self._replace(cls, "step", self._scheduler_step(cls.__dict__["step"]))

    def _scheduler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        state = self._state

        @functools.wraps(original)
        def step(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_scheduler or not state.here():
                return original(this, *args, **kwargs)
            since = state.micro_steps - self._scheduler_at.get(this, 0)
            self._scheduler_at[this] = state.micro_steps
            if since == 1:
                if state.micro_steps > 1:
                    self.scheduler_per_step = True
                scheduled, self.on_scheduled = self.on_scheduled, None
                if scheduled is not None:
                    scheduled()
                if self.accumulation.waits:
                    return None
            self._in_scheduler = True
            try:
                return original(this, *args, **kwargs)
            finally:
                self._in_scheduler = False

        return step

    def _wrap_averages(self) -> None:
        """Wrap moving averages of the weights, so that they are updated once per step, not per part."""
        cls: Any = getattr(sys.modules.get("torch.optim.swa_utils"), "AveragedModel", None)
        if cls is None:
            return
        original, state = cls.update_parameters, self._state

        @functools.wraps(original)
        def update_parameters(this: Any, *args: Any, **kwargs: Any) -> Any:
            if state.here():
                since = state.micro_steps - self._averaged_at.get(this, 0)
                self._averaged_at[this] = state.micro_steps
                self.averages_apart = self.averages_apart or since != 1
                if since == 1 and self.accumulation.waits:
                    return None
                if self.on_average is not None:
                    self.on_average()
            return original(this, *args, **kwargs)

        self._replace(cls, "update_parameters", update_parameters)

    # The script's own scaler

    def _wrap_scaler(self, cls: Any) -> None:
        original_scale, original_step = cls.scale, cls.step
        state = self._state

        @functools.wraps(original_scale)
        def scale(this: Any, outputs: Any) -> Any:
            scaled = original_scale(this, outputs)
            if this is not self._scaler and not self._in_backward and state.here():
                self._scaled = (scaled, outputs)
                if this.is_enabled():
                    self.own_scaler = True
            return scaled

        @functools.wraps(original_step)
        def step(this: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._nested or this is self._scaler or not state.here() or not this.is_enabled():
                return original_step(this, optimizer, *args, **kwargs)
            self.own_scaler = True
            if self.accumulation.factor > 1:
                self.accumulation.give_up("The script scales its gradients itself.")
            taken = state.micro_steps
            self._nested = True
            marker = StepMarker(optimizer)
            try:
                with marker:
                    result = original_step(this, optimizer, *args, **kwargs)
            finally:
                self._nested = False
            state.micro_steps = taken + 1
            self._note_stepping(optimizer)
            self._note_rate(optimizer)
            self._note_skip(this, optimizer, marker.stepped)
            self._boundary.passed(optimizer)
            return result

        self._replace(cls, "scale", scale)
        self._replace(cls, "step", step)

    # Facts

    def facts(self) -> OptimizerFacts | None:
        """Return the facts about the anchor, also after its deletion; None for manual updates."""
        anchor = self._boundary.anchor_optimizer()
        if anchor is None:
            return self._facts
        torch = self._torch
        kernel = self.kernel.of(anchor)
        parameters = [p for group in anchor.param_groups for p in group["params"]]
        groups = anchor.param_groups if kernel is None else kernel.param_groups
        # torch has a fused kernel of Adagrad on the CPU only.
        devices = ("cpu",) if type(kernel) is torch.optim.Adagrad else ("cpu", "cuda")
        rates, decays = self._first.get(anchor, ((), ()))
        self._facts = OptimizerFacts(
            name=type(anchor).__name__,
            count=self.count,
            fused=all(bool(group.get("fused")) for group in groups),
            can_fuse=kernel is not None
            and all(p.is_floating_point() and p.device.type in devices for p in parameters)
            and not any(group.get("differentiable") for group in groups),
            kernel_given=self.kernel.given,
            closure=self.closure,
            rates=rates,
            decays=decays,
        )
        return self._facts


def _owns(optimizer: Any, wanted: set[int]) -> bool:
    """Return whether the optimizer has any of these parameters."""
    return any(id(p) in wanted for group in getattr(optimizer, "param_groups", ()) for p in group["params"])
