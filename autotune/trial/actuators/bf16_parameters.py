"""Parameters of the trained module in bf16."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from autotune.trial.actuators.saved_tensors import Leaving

if TYPE_CHECKING:
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.stepping import StepListener
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class Weights:
    """Implements `WeightsHook`; a part of the root (`RootPart`)."""

    def __init__(
        self,
        state: RuntimeState,
        undo: Undo,
        hooks: AfterImport,
        root: TrainedModules,
        boundary: StepListener,
    ) -> None:
        self._state = state
        self._undo = undo
        self._hooks = hooks
        self._root = root
        self._boundary = boundary
        self._torch: Any = None
        self._parameters: list[tuple[weakref.ref[Any], Any]] = []
        self._buffers: list[tuple[weakref.ref[Any], str, Any]] = []
        self._observed: bool | None = None
        self.wanted = False
        self._is_wrapped = False

    def install(self, torch: Any) -> None:
        """Bind torch."""
        self._torch = torch

    def halve(self) -> None:
        """Convert parameters, buffers and floating inputs to bf16 from the first training call on."""
        self.wanted = True
        self._root.casts_back = True
        self._undo.then(self._release)
        leaving = Leaving(self._state, self._undo, lambda: self.wanted, self._script_converts)
        leaving.watch(self._torch, self._hooks)

    def observed(self) -> bool | None:
        """Return whether parameters and their floating state are bf16; None before a step."""
        if "root" in self._state.faults.off:
            return None
        modules = [m for m in (call.module() for call in self._root.calls) if m is not None]
        optimizer = self._boundary.anchor_optimizer()
        if not modules or (self.wanted and not self._state.steps):
            return self._observed
        parameters = [p for m in modules for p in m.parameters() if p.is_floating_point()]
        if parameters:
            half = all(p.dtype == self._torch.bfloat16 for p in parameters)
            self._observed = half and self._state_is_half(optimizer, {id(p) for p in parameters})
        return self._observed

    def _state_is_half(self, optimizer: Any, known: set[int]) -> bool:
        kept = getattr(optimizer, "state", {})
        values = [v for p, held in kept.items() if id(p) in known for v in held.values()]
        return all(v.dtype == self._torch.bfloat16 for v in values if self._is_state(v))

    def _is_state(self, value: Any) -> bool:
        """Return whether a value is state such as momentum; step counters are single numbers."""
        return isinstance(value, self._torch.Tensor) and value.is_floating_point() and value.dim() > 0

    def restore(self) -> bool:
        """Restore the script's format permanently, as traces and exports share a model's parameters.

        Returns:
            False if `DistributedDataParallel` exchanges gradients in the format of its construction.
        """
        if self._is_wrapped:
            return False
        self._release()
        self._root.end_turning()
        return True

    def before_wrapping(self, module: Any) -> None:
        """Convert a module that `DistributedDataParallel` is about to make its buffers for."""
        if self.wanted:
            self._is_wrapped = True
            self.convert(module)

    def end(self, reason: str) -> None:
        """Restore before an operation that contradicts bf16 weights.

        Args:
            reason: The operation, as a sentence.
        """
        if self.wanted:
            self.restore()
            self._state.lost("pure_bf16", reason)

    def _script_converts(self, module: Any) -> None:
        halved = {id(reference()) for reference, _ in self._parameters}
        if self._parameters and any(id(parameter) in halved for parameter in module.parameters()):
            self.end("The script converts the model to another number format itself.")

    # Root part

    def convert(self, module: Any) -> None:
        """Convert in place; parameters remain the objects that optimizers hold."""
        half = self._torch.bfloat16
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.dtype != half:
                self._parameters.append((weakref.ref(parameter), parameter.dtype))
        for part in module.modules():
            for name, buffer in part._buffers.items():
                if buffer is not None and buffer.is_floating_point() and buffer.dtype != half:
                    self._buffers.append((weakref.ref(part), name, buffer.dtype))

        def halved(held: Any) -> Any:
            return held.to(half) if held.is_floating_point() else held

        # Not by `to`, which is wrapped to detect conversions by the script.
        module._apply(halved)

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the root's inputs with floating tensors in bf16."""
        return tuple(self._half(a) for a in args), {k: self._half(v) for k, v in kwargs.items()}

    def _half(self, value: Any) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return value.to(torch.bfloat16) if value.is_floating_point() else value
        if type(value) in (list, tuple):
            return type(value)(self._half(v) for v in value)
        if type(value) is dict:
            return {k: self._half(v) for k, v in value.items()}
        return value

    def _release(self) -> None:
        """Restore the old formats; the precision that bf16 lacks is lost."""
        kept = getattr(self._boundary.anchor_optimizer(), "state", {})
        for reference, dtype in self._parameters:
            parameter = reference()
            if parameter is None:
                continue
            gradient, parameter.grad = parameter.grad, None
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None if gradient is None else gradient.to(dtype)
            for name, value in list(kept.get(parameter, {}).items()):
                if self._is_state(value):
                    kept[parameter][name] = value.to(dtype)
        for reference, name, dtype in self._buffers:
            part = reference()
            if part is not None and part._buffers.get(name) is not None:
                part._buffers[name] = part._buffers[name].to(dtype)
        self._parameters.clear()
        self._buffers.clear()
        self.wanted = False
        self._root.casts_back = False
