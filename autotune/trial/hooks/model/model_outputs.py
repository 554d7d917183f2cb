"""Outputs of trained modules, rebuilt with some tensors replaced."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = 4096
"""Number of elements: losses, scores and counters, which scripts retain from step to step."""


def to_float32(out: Any, torch: Any) -> Any:
    """Return the same structure with half-precision tensors as float32."""
    return _mapped(out, lambda t: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t, torch)


def unshared(out: Any, torch: Any, *, whole: bool) -> Any:
    """Return a copy in separate memory, as a CUDA graph would overwrite the output at its next replay.

    A script written for eager mode may retain outputs: predictions of an evaluation, or a loss to be read
    later.

    Args:
        out: Output of a compiled module.
        torch: The module.
        whole: Copy everything; else small tensors only, because copying every step's activations
            would cost as much as the graph gains.
    """
    return _mapped(out, lambda t: t.clone() if t.is_cuda and (whole or t.numel() <= _SMALL) else t, torch)


def _mapped(out: Any, turn: Callable[[Any], Any], torch: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return turn(out)
    if isinstance(out, dict):
        turned = {k: _mapped(v, turn, torch) for k, v in out.items()}
        return turned if type(out) is dict else _refilled(out, turned)
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return type(out)(*(_mapped(v, turn, torch) for v in out))
    if type(out) in (list, tuple):
        return type(out)(_mapped(v, turn, torch) for v in out)
    if dataclasses.is_dataclass(out) and not isinstance(out, type):
        held = {field.name: getattr(out, field.name, None) for field in dataclasses.fields(out)}
        turned = {name: _mapped(value, turn, torch) for name, value in held.items()}
        changed = {name: value for name, value in turned.items() if _is_other(value, held[name])}
        return _with_fields(out, changed) if changed else out
    return out


def _is_other(turned: Any, held: Any) -> bool:
    """Return whether an element was replaced; structures are rebuilt even without a change."""
    if isinstance(held, dict):
        return any(_is_other(turned[key], value) for key, value in held.items())
    if isinstance(held, (list, tuple)):
        return any(map(_is_other, turned, held))
    return turned is not held


def _refilled(out: Any, turned: dict[Any, Any]) -> Any:
    """Return a mapping of the same class with these values and its other attributes."""
    try:
        made = copy.copy(out)
        for key, value in turned.items():
            made[key] = value
    except Exception:  # it does not permit changes
        try:
            return type(out)(**turned)
        except TypeError:
            return type(out)(turned)
    return made


def _with_fields(out: Any, changed: dict[str, Any]) -> Any:
    """Return a copy with changed fields, made without `__init__`, which may have side effects."""
    try:
        made = copy.copy(out)
        for name, value in changed.items():
            object.__setattr__(made, name, value)
    except Exception:  # it cannot be copied
        return out
    return made
