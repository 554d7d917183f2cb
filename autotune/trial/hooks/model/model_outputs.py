"""What a trained module returns, rebuilt with some of its tensors replaced."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = 4096
"""Elements: losses, scores and counters, which scripts keep from step to step."""


def to_float32(out: Any, torch: Any) -> Any:
    """The same structure with half-precision tensors as float32."""
    return _mapped(out, lambda t: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t, torch)


def unshared(out: Any, torch: Any, *, whole: bool) -> Any:
    """The same structure in memory of its own, where a CUDA graph would overwrite it at its next replay.

    A script that was written for eager calls may keep what it was given: the predictions of an
    evaluation, a loss to be read later.

    Args:
        out: What a compiled module returned.
        torch: The module.
        whole: Copy everything; else small tensors only, because copying every step's activations
            would cost what the graph gains.
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
    """Something in it was replaced; a structure is built anew even where nothing was."""
    if isinstance(held, dict):
        return any(_is_other(turned[key], value) for key, value in held.items())
    if isinstance(held, (list, tuple)):
        return any(map(_is_other, turned, held))
    return turned is not held


def _refilled(out: Any, turned: dict[Any, Any]) -> Any:
    """A mapping of another class with these values, and all that it has beside them: a default, a size."""
    try:
        made = copy.copy(out)
        for key, value in turned.items():
            made[key] = value
    except Exception:  # it lets nobody change it
        try:
            return type(out)(**turned)
        except TypeError:
            return type(out)(turned)
    return made


def _with_fields(out: Any, changed: dict[str, Any]) -> Any:
    """Without `__init__` and what a class does after it, which may count, or check, or be frozen."""
    try:
        made = copy.copy(out)
        for name, value in changed.items():
            object.__setattr__(made, name, value)
    except Exception:  # it cannot be copied
        return out
    return made
