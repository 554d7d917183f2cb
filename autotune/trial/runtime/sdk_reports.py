"""Losses and sample counts reported through the SDK, from any framework. Standard library only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_BATCH: Final = re.compile(r"(train_?)?(batch_?(size)?|bs)")


class Later:
    """A reported loss that a device may still compute; read once, on request.

    Args:
        value: The reported value.
        unread: Called with the reason if it cannot be read, as after a donated buffer.
    """

    def __init__(self, value: Any, unread: Callable[[Exception], None]) -> None:
        self._value = value
        self._unread = unread
        self._is_read = False
        self._number: float | None = None

    def read(self) -> float | None:
        """Wait for the number and return it; None if it cannot be read, which does not judge the loss."""
        if not self._is_read:
            self._is_read = True
            try:
                self._number = number(self._value)
            except Exception as error:
                self._unread(error)
            self._value = None
        return self._number


def is_computed_later(value: Any) -> bool:
    """Return whether this is an array of JAX or a tensor of TensorFlow, which are computed asynchronously."""
    return hasattr(value, "block_until_ready") or hasattr(value, "backing_device")


def number(value: Any) -> float:
    """Return the number, or the mean of an array; waits for it.

    Raises:
        Exception: It is no number, or only a traced one.
    """
    plain = value.numpy() if hasattr(value, "numpy") else value
    return float(plain.mean() if getattr(plain, "ndim", 0) else plain)


def stands_still(
    name: str, default: object, requested: object, reported: Collection[int], others: Iterable[object]
) -> str:
    """Return a message if every step reports the script's own batch size although it was given another one.

    The rate of smaller batches would be overestimated by the ratio of the sizes.

    Args:
        name: Name that the script passed to `autotune.value`; only a batch size is checked.
        default: The script's own value.
        requested: Value in this run.
        reported: All reported sample counts.
        others: The other values taken: accumulation steps multiply the batch.
    """
    if (
        type(default) is not int
        or type(requested) is not int
        or default == requested
        or set(reported) != {default}
    ):
        return ""
    if not _BATCH.fullmatch(name.lower().replace("-", "_")):
        return ""
    if any(type(other) is int and other * requested == default for other in others):
        return ""
    return (
        f"Every step reports {default} samples, with {name}={requested} as well, so the rate is not known: "
        "pass the samples of each step to autotune.step()."
    )
