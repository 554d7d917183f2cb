"""Comparison of samples fetched twice: equal seeds, and digests of their contents."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

from autotune.trial.records.objects import held_by


def seed_all(torch: Any, number: int) -> None:
    """Seed the generators that a loader seeds in each worker."""
    random.seed(number)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(number)
    torch.default_generator.manual_seed(number)


def digest(sample: Any, torch: Any) -> str:
    """Return a digest of the bytes of a sample.

    Raises:
        TypeError: It holds a value whose content cannot be read.
    """
    found = hashlib.blake2b(digest_size=16)
    _add(sample, torch, found, 0)
    return found.hexdigest()


def _add(item: Any, torch: Any, found: Any, depth: int) -> None:
    kind = type(item)
    found.update(kind.__qualname__.encode())
    if depth > 8:
        message = "a sample that is nested too deeply"
        raise TypeError(message)
    if isinstance(item, torch.Tensor):
        found.update(repr((tuple(item.shape), item.dtype)).encode())
        found.update(item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif hasattr(item, "tobytes") and hasattr(item, "dtype") and not item.dtype.hasobject:
        found.update(repr((item.shape, str(item.dtype))).encode() + item.tobytes())
    elif item is None or kind in (bool, int, float, complex, str, bytes):
        found.update(repr(item).encode())
    elif isinstance(item, dict):
        for key, value in item.items():
            _add(key, torch, found, depth + 1)
            _add(value, torch, found, depth + 1)
    elif isinstance(item, (list, tuple)):
        for value in item:
            _add(value, torch, found, depth + 1)
    elif held_by(item):
        _add(held_by(item), torch, found, depth + 1)
    else:
        message = f"a sample with a {kind.__qualname__} in it"
        raise TypeError(message)
