"""Changed copies of DeepSpeed's configuration. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.model.config import Value

_ACCUMULATION = "gradient_accumulation_steps"
_MICRO = "train_micro_batch_size_per_gpu"
_BATCH = "train_batch_size"
_AUTOCAST = "torch_autocast"
_FORMATS = {"bf16": "bfloat16", "fp16": "float16"}


def configuration(given: Any, name: str, value: Value) -> Any:
    """Return a copy of a configuration with this entry set to this value.

    Args:
        given: A dictionary, or the path of a JSON file (Hjson if installed). Anything else is returned
            unchanged, for DeepSpeed's own error.
        name: ``gradient_accumulation_steps``, ``torch_autocast`` for a number format, or an entry of a
            section such as ``zero_optimization.stage``.
        value: Micro-batches per step; ``fp32`` or ``bf16``; the entry's value.
    """
    held = _read(given)
    if held is None:
        return given
    if name == _AUTOCAST:
        own = held.get(_AUTOCAST)
        form = _FORMATS.get(str(value))
        setting = {"enabled": form is not None, **({} if form is None else {"dtype": form})}
        return {**held, _AUTOCAST: {**(own if isinstance(own, dict) else {}), **setting}}
    section, _, entry = name.rpartition(".")
    if section:
        own = held.get(section)
        return {**held, section: {**(own if isinstance(own, dict) else {}), entry: value}}
    if name == _ACCUMULATION:
        held = _in_parts(held, value)
    return {**held, name: value}


def _read(given: Any) -> dict[str, Any] | None:
    if isinstance(given, dict):
        return dict(given)
    try:
        with open(os.fspath(given), encoding="utf-8") as file:
            # With comments as well, as DeepSpeed reads it.
            read = getattr(sys.modules.get("hjson"), "load", json.load)(file)
    except (OSError, TypeError, ValueError):
        return None
    return read if isinstance(read, dict) else None


def _in_parts(held: dict[str, Any], parts: Any) -> dict[str, Any]:
    """Split the same batch into another number of parts, as DeepSpeed counts samples by these entries."""
    micro, whole, before = held.get(_MICRO), held.get(_BATCH), held.get(_ACCUMULATION) or 1
    if whole is None and isinstance(micro, int) and isinstance(before, int):
        whole = micro * before * _world()
    if not isinstance(whole, int) or not isinstance(parts, int) or whole % (parts * _world()):
        # DeepSpeed fails on inconsistent entries. Only its own sample count is affected.
        left = {key: kept for key, kept in held.items() if key != _BATCH}
        if micro is not None or not isinstance(whole, int):
            return left if micro is not None else held
        before = before if isinstance(before, int) else 1
        return {**left, _MICRO: max(1, whole // (before * _world()))}
    return {**held, _BATCH: whole, _MICRO: whole // (parts * _world())}


def _world() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())
