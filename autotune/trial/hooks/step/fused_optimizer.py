"""Fused optimizer kernels, chosen where an optimizer is built."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from autotune.trial.hooks.step.param_groups import weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.trial.hooks.step.stepping import StepListener
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


class OptimizerKernel:
    """Implements `OptimizerHook`."""

    def __init__(self, state: RuntimeState, undo: Undo, boundary: StepListener) -> None:
        self._state = state
        self._undo = undo
        self._boundary = boundary
        self._torch: Any = None
        self._fuse = False
        self._fused: bool | None = None
        self.given = False
        """The script chooses the kernel itself."""

    def install(self, torch: Any) -> None:
        """Install the hook."""
        self._torch = torch
        for name in _FUSED:
            cls = getattr(torch.optim, name, None)
            if cls is not None:
                self._wrap(cls)

    def fuse(self) -> None:
        """Build optimizers of the exact classes with a fused kernel with ``fused=True``."""
        self._fuse = True

    def observed(self) -> bool | None:
        """Return whether the anchor's groups are fused, also after its deletion; None before it stepped."""
        anchor = self._boundary.anchor_optimizer()
        if "optimizer" in self._state.faults.off:
            return None
        if anchor is not None:
            groups = getattr(self.of(anchor) or anchor, "param_groups", [])
            self._fused = bool(groups) and all(bool(group.get("fused")) for group in groups)
        return self._fused

    def of(self, anchor: Any) -> Any:
        """Return the optimizer whose kernel updates the anchor's weights: itself, or a wrapped one."""
        exact = tuple(getattr(self._torch.optim, name, None) for name in _FUSED)
        if type(anchor) in exact:
            return anchor
        weights = weights_of(anchor)
        # Equal weights do not suffice: scripts may build several optimizers and use one.
        return next(
            (held for held in _members(anchor) if type(held) in exact and weights_of(held) == weights), None
        )

    def _wrap(self, cls: Any) -> None:
        original = cls.__init__
        state = self._state

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if type(this) is not cls or not state.active:
                original(this, *args, **kwargs)
                return
            given = kwargs.get("fused") is not None or kwargs.get("foreach") is not None
            self.given = self.given or given
            if not self._fuse or given:
                if self._fuse:
                    state.refusals["fused_optimizer"] = "The script chooses the optimizer's kernel itself."
                original(this, *args, **kwargs)
                return
            if args and not isinstance(args[0], (list, tuple, dict, self._torch.Tensor)):
                args = (list(args[0]), *args[1:])
            elif "params" in kwargs and not isinstance(kwargs["params"], (list, tuple, dict)):
                kwargs["params"] = list(kwargs["params"])
            try:
                original(this, *args, **{**kwargs, "fused": True})
            except (RuntimeError, TypeError, ValueError) as error:
                state.refusals["fused_optimizer"] = f"torch has no fused kernel here: {error}"
                original(this, *args, **kwargs)

        self._undo.assign(cls, "__init__", init)


def _members(this: Any) -> Iterator[Any]:
    """Yield the attributes of an object, and the items of those that are lists."""
    for value in tuple(getattr(this, "__dict__", {}).values()):
        yield value
        if isinstance(value, (list, tuple)):
            yield from value
