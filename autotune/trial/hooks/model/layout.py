"""Memory layout of trained modules: channels-last parameters and inputs."""

from __future__ import annotations

from typing import Any


class Layout:
    """Implements `LayoutHook`.

    Args:
        root: The `TrainedModules` whose modules it converts; untyped, as it imports this class.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.wanted = False
        self._input_ok: bool | None = None
        self._observed: bool | None = None

    def channels_last(self) -> None:
        """Convert the trained module and its 4-D inputs from the first call on."""
        self.wanted = True

    def observed(self) -> bool | None:
        """Return whether 4-D parameters and the last 4-D input are channels-last; None before a call."""
        root = self._root
        if "root" in root._state.faults.off:
            return None
        form = root._torch.channels_last
        modules = [m for m in (call.module() for call in root.calls) if m is not None]
        if not modules:
            return self._observed
        self._observed = self._observe(modules, form)
        return self._observed

    def _observe(self, modules: list[Any], form: Any) -> bool | None:
        weights = [p for m in modules for p in m.parameters() if p.dim() == 4]
        # A 1x1 kernel or a single channel is contiguous in both layouts and shows nothing.
        telling = [p for p in weights if p.shape[1] > 1 and p.shape[2] * p.shape[3] > 1]
        if not telling:
            return False if not (self.wanted and weights) else self._input_ok
        return all(p.is_contiguous(memory_format=form) for p in telling) and (
            self._input_ok is not False if self.wanted else True
        )

    def convert(self, module: Any) -> None:
        """Convert parameters and buffers of the root in place; they stay the same objects."""
        module.to(memory_format=self._root._torch.channels_last)

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments with 4-D tensors in channels-last."""
        torch = self._root._torch
        form = torch.channels_last

        def turn(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() == 4:
                value = value.contiguous(memory_format=form)
                self._input_ok = bool(value.is_contiguous(memory_format=form))
            return value

        return tuple(turn(a) for a in args), {k: turn(v) for k, v in kwargs.items()}
