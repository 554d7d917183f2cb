"""A loss that the script tells itself, of whatever framework it is. Standard library only."""

from __future__ import annotations

import math
from typing import Any


class Later:
    """A loss that a device may still compute: kept, and read once when it is asked for."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._number: float | None = None

    def read(self) -> float:
        """The number; waits for it. One that cannot be read after all is none (NaN)."""
        if self._number is None:
            try:
                self._number = number(self._value)
            except Exception:
                self._number = math.nan
            self._value = None
        return self._number


def is_computed_later(value: Any) -> bool:
    """Whether this is an array of JAX or a tensor of TensorFlow, which exist before they are computed."""
    return hasattr(value, "block_until_ready") or hasattr(value, "backing_device")


def number(value: Any) -> float:
    """Its mean, where it is no scalar; waits for it.

    Raises:
        Exception: It is no number, or one that is only traced.
    """
    plain = value.numpy() if hasattr(value, "numpy") else value
    return float(plain.mean() if getattr(plain, "ndim", 0) else plain)
