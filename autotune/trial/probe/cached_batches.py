"""The script's own loop on cached batches: what a step takes when no data has to be waited for.

The loop stays the script's; only what its loader's iterators give out is replaced, and only in a process
that ends right after. Standard library only.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_DEPTH = 6


class Cached:
    """One batch, returned repeatedly.

    Containers are copied each time, since scripts take items out of them. Tensors are the same objects until
    they are written to; from then on they are copies of the original.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._versions: dict[int, int] = {}
        self._kept: dict[int, Any] = {}
        for tensor in _tensors(batch, _DEPTH):
            self._kept[id(tensor)] = tensor.clone()
            self._versions[id(tensor)] = _version(tensor)

    def fresh(self) -> Any:
        """Return the batch as it was fetched."""
        return self._copied(self._batch, _DEPTH)

    def _copied(self, item: Any, depth: int) -> Any:
        kept = self._kept.get(id(item))
        if kept is not None:
            return item if _version(item) == self._versions[id(item)] else kept.clone()
        if depth == 0:
            return item
        if type(item) is dict:
            return {key: self._copied(value, depth - 1) for key, value in item.items()}
        if type(item) in (list, tuple):
            return type(item)(self._copied(value, depth - 1) for value in item)
        return item


class Replay:
    """Lets every iterator of a training loader give out its next batch for ever.

    Args:
        base: ``_BaseDataLoaderIter``, which all iterators of loaders derive from.
        trains: Whether a fetch now is one for training.
    """

    def __init__(self, base: Any, *, trains: Callable[[], bool]) -> None:
        self._base = base
        self._trains = trains
        self._before: Any = None
        self._cached: dict[int, Cached] = {}
        self.served = 0
        """Batches given out from the cache."""

    def begin(self) -> None:
        """Replay from the next fetch on."""
        self._before = before = self._base.__next__
        cached = self._cached

        def again(this: Any) -> Any:
            if not self._trains():
                return before(this)
            held = cached.get(id(this))
            if held is None:
                batch = before(this)
                cached[id(this)] = Cached(batch)
                return batch
            self.served += 1
            return held.fresh()

        self._base.__next__ = again

    def end(self) -> None:
        """Iterators fetch again."""
        if self._before is not None:
            self._base.__next__ = self._before
            self._before = None
        self._cached.clear()


def _tensors(item: Any, depth: int) -> list[Any]:
    if hasattr(item, "_version") or (hasattr(item, "clone") and hasattr(item, "shape")):
        return [item]
    if depth == 0:
        return []
    inner = item.values() if type(item) is dict else item if type(item) in (list, tuple) else ()
    return [tensor for value in inner for tensor in _tensors(value, depth - 1)]


def _version(tensor: Any) -> int:
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):
        return 0  # tensors made in inference mode keep no count
