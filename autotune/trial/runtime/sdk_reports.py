"""What the script tells itself, of whatever framework it is: losses, samples. Standard library only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_BATCH: Final = re.compile(r"(train_?)?(batch_?(size)?|bs)")


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


def stands_still(
    name: str, default: object, wanted: object, told: Collection[int], others: Iterable[object]
) -> str:
    """A sentence where the script tells of its own batch in every step, though it was given another one.

    Smaller batches would look faster than they are by as much as they are smaller.

    Args:
        name: Of what the script took by `autotune.value`; only a batch is judged.
        default: What it has itself.
        wanted: What it was given in this run.
        told: All numbers of samples that it told of.
        others: The other values that it took: parts of a step multiply the batch.
    """
    if type(default) is not int or type(wanted) is not int or default == wanted or set(told) != {default}:
        return ""
    if not _BATCH.fullmatch(name.lower().replace("-", "_")):
        return ""
    if any(type(other) is int and other * wanted == default for other in others):
        return ""
    return (
        f"Every step reports {default} samples, with {name}={wanted} as well, so the rate is not known: "
        "pass the samples of each step to autotune.step()."
    )
