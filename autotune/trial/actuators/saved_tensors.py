"""Conversion of bf16 tensors that leave the process, to the script's format: files, pickles, arrays.

A checkpoint may be a `state_dict`, a whole module, a delayed copy or an array: all of them use a few methods
of `Tensor`. The knob is refused for scripts with bf16 in their source, so every bf16 tensor comes from the
conversion.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_WRITERS: Final = ("save", "save_file")
_CONVERSIONS: Final = ("bfloat16", "double", "float", "half", "to", "type")
"""Methods of modules that change the format of their parameters."""


class Leaving:
    """The hooks, active from the conversion on.

    Args:
        state: State of the process.
        undo: Removes the hooks.
        is_on: Returns whether weights are in bf16.
        on_conversion: Called before the script converts a module itself.
    """

    def __init__(
        self, state: RuntimeState, undo: Undo, is_on: Callable[[], bool], on_conversion: Callable[[Any], None]
    ) -> None:
        self._state = state
        self._undo = undo
        self._is_on = is_on
        self._on_conversion = on_conversion
        self._torch: Any = None

    def watch(self, torch: Any, hooks: AfterImport) -> None:
        """Install the hooks."""
        self._torch = torch
        tensor = torch.Tensor
        self._undo.assign(tensor, "__reduce_ex__", self._plain(tensor.__reduce_ex__))
        self._undo.assign(tensor, "numpy", self._plain(tensor.numpy))
        for kind in (tensor, torch.nn.Parameter):
            self._undo.assign(kind, "__deepcopy__", self._copied(kind.__deepcopy__))
        for name in _CONVERSIONS:
            self._undo.assign(torch.nn.Module, name, self._converted(vars(torch.nn.Module)[name]))
        hooks.on("safetensors.torch", self._watch_safetensors)

    def own(self, item: Any) -> Any:
        """Return a copy of a bf16 tensor in the script's format; anything else unchanged."""
        torch = self._torch
        if not self._is_on() or self._state.compile_begun_ns or not isinstance(item, torch.Tensor):
            return item
        is_made_here = type(item) is torch.Tensor or isinstance(item, torch.nn.Parameter)
        if item.dtype != torch.bfloat16 or not is_made_here:
            return item
        with torch.no_grad():
            plain = item.detach().to(torch.float32)
        return plain.requires_grad_(item.requires_grad)

    def _plain(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(this: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self.own(this), *args, **kwargs)

        return method

    def _copied(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def deepcopy(this: Any, memo: dict[int, Any]) -> Any:
            own = self.own(this) if this.is_leaf and id(this) not in memo else this
            if own is this:
                return original(this, memo)
            if isinstance(this, self._torch.nn.Parameter):
                own = type(this)(own.detach(), this.requires_grad)
            memo[id(this)] = own
            return own

        return deepcopy

    def _converted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        formats: Any = self._torch.dtype

        @functools.wraps(original)
        def convert(this: Any, *args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.values())
            is_moved = original.__name__ == "to" and not any(isinstance(v, formats) for v in given)
            if not is_moved and self._is_on() and self._state.here():
                try:
                    self._on_conversion(this)
                except Exception as error:
                    self._state.faults.note("weights", error)
            return original(this, *args, **kwargs)

        return convert

    def _watch_safetensors(self, module: Any) -> None:
        for name in _WRITERS:
            original = vars(module).get(name)
            if original is not None:
                self._undo.assign(module, name, self._written(original))

    def _written(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensors, dict):
                tensors = {name: self.own(item) for name, item in tensors.items()}
            return original(tensors, *args, **kwargs)

        return save
