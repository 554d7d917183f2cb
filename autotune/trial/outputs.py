"""What a trained module returns, rebuilt with some of its tensors replaced."""

from __future__ import annotations

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
        if type(out) is dict:
            return turned
        try:
            return type(out)(**turned)
        except TypeError:
            return type(out)(turned)
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return type(out)(*(_mapped(v, turn, torch) for v in out))
    if type(out) in (list, tuple):
        return type(out)(_mapped(v, turn, torch) for v in out)
    return out
