"""A loss that the script tells itself, of whatever framework it is. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Later:
    """A loss that a device may still compute: kept, and read once when it is asked for.

    Args:
        value: What the script told.
        unread: Told why, where it cannot be read after all: the script has given its memory away, say.
    """

    def __init__(self, value: Any, unread: Callable[[Exception], None]) -> None:
        self._value = value
        self._unread = unread
        self._is_read = False
        self._number: float | None = None

    def read(self) -> float | None:
        """The number; waits for it. None where it cannot be read, which says nothing about the loss."""
        if not self._is_read:
            self._is_read = True
            try:
                self._number = number(self._value)
            except Exception as error:
                self._unread(error)
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
