"""Effect of `zero_grad`: gradients filled with zeros, or set to None."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.accumulation import MicroBatches
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class Gradients:
    """Implements `GradientsHook`."""

    def __init__(
        self, state: RuntimeState, undo: Undo, root: TrainedModules, accumulation: MicroBatches
    ) -> None:
        self._state = state
        self._undo = undo
        self._root = root
        self._accumulation = accumulation
        self._torch: Any = None
        self._plain: dict[Any, Any] = {}
        self._watching = False
        self._drop = False
        self._kept: bool | None = None
        self._zeroed: list[tuple[weakref.ref[Any], weakref.ref[Any], int]] = []
        self.zeroes = False
        """`zero_grad(set_to_none=False)` was called."""
        self.pause = False
        """A parameter got no gradient in a step."""

    def install(self, torch: Any) -> None:
        """Observe both kinds of `zero_grad` until detection has settled."""
        self._torch = torch
        self._watching = True
        for cls in (torch.optim.Optimizer, torch.nn.Module):
            self._plain[cls] = cls.zero_grad
            self._undo.assign(cls, "zero_grad", cls.zero_grad)
        self._put()
        self._root.on_dropped.append(self._settle)

    def drop(self) -> None:
        """Set gradients to None where the script fills them with zeros."""
        self._drop = True
        self._put()

    def _settle(self) -> None:
        if not self._watching:
            return  # replaced by other code meanwhile
        self._watching = False
        self._zeroed.clear()
        self._put()

    def _put(self) -> None:
        for cls, plain in self._plain.items():
            call = self._dropping(plain) if self._drop else plain
            cls.zero_grad = self._watched(call, self._torch) if self._watching else call

    def observed(self) -> bool | None:
        """Return whether the last `zero_grad` left no gradient; None before the first."""
        return None if "gradients" in self._state.faults.off or self._kept is None else not self._kept

    def _watched(self, original: Any, torch: Any) -> Any:
        state, is_compiling = self._state, torch.compiler.is_compiling

        @functools.wraps(original)
        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not state.here() or "gradients" in state.faults.off:
                return original(this, *args, **kwargs)
            try:
                self._judge(this)
            except Exception as error:
                state.faults.note("gradients", error)
            result = original(this, *args, **kwargs)
            try:
                self._look(this, _keeps(args, kwargs))
            except Exception as error:
                state.faults.note("gradients", error)
            return result

        return zero_grad

    def _dropping(self, original: Any) -> Any:
        state, is_compiling = self._state, self._torch.compiler.is_compiling

        @functools.wraps(original)
        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not state.active:
                return original(this, *args, **kwargs)
            return original(this, *args[1:], **{**kwargs, "set_to_none": True})

        return zero_grad

    def _judge(self, this: Any) -> None:
        """Check before the next `zero_grad` whether every parameter had a gradient since the last one."""
        if self._state.steps and any(p.grad is None and p.requires_grad for p in _parameters(this)):
            self.pause = True
        zeroed, self._zeroed = self._zeroed, []
        for parameter, gradient, version in zeroed:
            p, g = parameter(), gradient()
            if p is not None and g is not None and p.grad is g and g._version == version:
                self.pause = True
                return

    def _look(self, this: Any, keeps: bool) -> None:
        self.zeroes = self.zeroes or keeps
        if self._accumulation.pending:
            return  # between the parts of one batch no gradient is removed
        left = [p for p in _parameters(this) if p.grad is not None]
        self._kept = bool(left)
        self._zeroed = [(weakref.ref(p), weakref.ref(p.grad), p.grad._version) for p in left]


def _parameters(this: Any) -> list[Any]:
    groups = getattr(this, "param_groups", None)
    return list(this.parameters()) if groups is None else [p for g in groups for p in g["params"]]


def _keeps(args: Any, kwargs: Any) -> bool:
    return not kwargs.get("set_to_none", args[0] if args else True)
