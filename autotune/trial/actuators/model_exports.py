"""Exports and batch statistics: knobs are left out while the script traces, scripts or exports the model.

A trace through a changed call would be changed permanently: autocast in the graph, or compiled code that
cannot be traced. Statistics over other batches would differ.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.actuators.bf16_parameters import Weights
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

# `torch.jit.script` resolves names in its caller's frame; `TrainedModules.plain` is within it.
_MODEL: Final = (
    ("torch.jit", ("trace", "trace_module")),
    ("torch.onnx", ("export",)),
    ("torch.export", ("export", "export_for_training")),
)
_STATISTICS: Final = ("torch.optim.swa_utils", ("update_bn",))


class Exports:
    """Calls during which knobs are left out.

    Args:
        state: State of the process.
        undo: Removes the hooks.
        root: The trained modules.
        loader: Loaders whose batches may be changed.
        weights: Parameters in another number format.
    """

    def __init__(
        self, state: RuntimeState, undo: Undo, root: TrainedModules, loader: Loader, weights: Weights
    ) -> None:
        self._state = state
        self._undo = undo
        self._root = root
        self._loader = loader
        self._weights = weights
        root.on_scripting = functools.partial(self._prepare, "torch.jit.script", batches=False)
        self.on_aside: Callable[[str, bool], None] | None = None
        """Called with the called function, and whether batches are the script's own meanwhile."""

    def watch(self, hooks: AfterImport) -> None:
        """Wrap functions of modules imported now or later."""
        for name, functions in _MODEL:
            hooks.on(name, functools.partial(self._wrap, functions, batches=False))
        hooks.on(_STATISTICS[0], functools.partial(self._wrap, _STATISTICS[1], batches=True))

    def _wrap(self, functions: tuple[str, ...], module: Any, *, batches: bool) -> None:
        for name in functions:
            original = vars(module).get(name)
            if original is not None:
                what = f"{module.__name__}.{name}"
                self._undo.assign(module, name, self._aside(original, what, batches=batches))

    def _aside(self, original: Callable[..., Any], what: str, *, batches: bool) -> Callable[..., Any]:
        state, loader = self._state, self._loader

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not state.here() or not (self._root.changes or (batches and loader.changes_batches)):
                return original(*args, **kwargs)
            try:
                self._prepare(what, batches=batches)
            except Exception as error:
                state.faults.note("exports", error)
            with self._root.plain(), loader.own_batches() if batches else contextlib.nullcontext():
                return original(*args, **kwargs)

        return call

    def _prepare(self, what: str, *, batches: bool) -> None:
        if self.on_aside is not None:
            self.on_aside(what, batches)
        self._state.calm.leave()
        self._weights.end(f"{what} is called, which keeps the weights in their format")
