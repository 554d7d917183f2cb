"""What a trained module takes from one batch into the next, beside what its optimizer does to it.

Accumulation makes several calls of one. What moves on at each call, as a momentum encoder, a codebook or a
counter does, then moves at another pace; and what was returned for one batch meets other samples in the next
call. BatchNorm is left out: modules can be asked for it.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOKS = 2
_MOST_NUMBERS = 64
_MOST_TENSORS = 32
_DEPTH = 5
_UNREADABLE = (RuntimeError, ValueError, TypeError, AttributeError, IndexError)

Place = tuple[int, str]
"""Number of a module among those of the root, and the name of what it holds."""


class Moves:
    """Whether numbers that a module keeps move at each of its calls; of the second and the third one.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Nothing was seen yet."""
        self._torch = torch
        self._calls = 0
        self._before: dict[Place, Any] | None = None
        self._moved: set[Place] | None = None
        self.seen = False

    def begins(self, module: Any) -> None:
        """The module is about to be called; its first call may set up what it keeps."""
        self._before = None
        if module is None or not module.training or self._calls > _LOOKS:
            return
        self._calls += 1
        if self._calls > 1:
            self._before = self._kept(module)

    def ended(self, module: Any) -> None:
        """The call is over."""
        before, self._before = self._before, None
        if before is None or module is None:
            return
        after = self._kept(module)
        moved = {place for place, held in after.items() if place in before and _moved(before[place], held)}
        self._moved = moved if self._moved is None else self._moved & moved
        self.seen = self._calls > _LOOKS and bool(self._moved)

    def _kept(self, root: Any) -> dict[Place, Any]:
        """Buffers, frozen weights and whole numbers, by a few of their numbers."""
        normed = self._torch.nn.modules.batchnorm._BatchNorm
        found: dict[Place, Any] = {}
        try:
            for number, module in enumerate(root.modules()):
                if isinstance(module, normed):
                    continue
                for name, tensor in (*module._buffers.items(), *module._parameters.items()):
                    # What has a gradient is the optimizer's to move; a buffer never has one.
                    if tensor is not None and not tensor.requires_grad:
                        found[number, name] = _looked_at(tensor)
                counts = [(name, held) for name, held in vars(module).items() if type(held) is int]
                found.update({(number, name): held for name, held in counts})
        except _UNREADABLE:
            return {}
        return found


def _looked_at(tensor: Any) -> tuple[str, int]:
    """The first numbers of a tensor, and how often it was written to where those are not all of it.

    To add it all up would take memory where a model is large, and the peak of this process is measured.
    """
    try:
        row = tensor.detach()
        while row.dim() > 1:
            row = row[0]
        numbers = (row[:_MOST_NUMBERS] if row.dim() else row).tolist()
        large = tensor.numel() > _MOST_NUMBERS and not tensor.is_inference()
        return repr(numbers), tensor._version if large else 0
    except _UNREADABLE:
        return "", 0


def _moved(before: Any, after: Any) -> bool:
    if type(before) is int and type(after) is int:
        # What is taken from the shapes of a batch may be any other number.
        return abs(after - before) == 1
    return type(before) is type(after) and before != after


class Carried:
    """Whether what a module returned for one batch goes into its call for the next, as a hidden state does.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Nothing was seen yet."""
        self._torch = torch
        self._taken: list[Any] = []
        self._given: list[Any] = []
        """Memory of what was returned since the last backward pass; it keeps none of it alive."""
        self._passed: list[Any] = []
        """The same of before that."""
        self.seen = False

    def called(self, args: Any, kwargs: Any) -> None:
        """The module is about to be called."""
        self._taken = self._memory((args, kwargs))
        self.seen = self.seen or any(held in self._passed for held in self._taken)

    def returned(self, out: Any) -> None:
        """It returned this; what it was called with itself is no news."""
        self._given += [held for held in self._memory(out) if held not in self._taken]
        del self._given[_MOST_TENSORS:]

    def backward(self) -> None:
        """A backward pass has ended: another batch comes."""
        self._passed, self._given = self._given, []

    def _memory(self, item: Any) -> list[Any]:
        reductions: Any = sys.modules.get("torch.multiprocessing.reductions")
        if reductions is None:
            return []
        weakly, found = reductions.StorageWeakRef, list[Any]()
        for tensor in _tensors(item, self._torch.Tensor, _DEPTH):
            try:
                found.append(weakly(tensor.untyped_storage()))
            except _UNREADABLE:
                continue
            if len(found) == _MOST_TENSORS:
                break
        return found


def _tensors(item: Any, kind: type, depth: int) -> Iterator[Any]:
    if isinstance(item, kind):
        yield item
    elif depth and isinstance(item, (list, tuple, dict)):
        for inner in item.values() if isinstance(item, dict) else item:
            yield from _tensors(inner, kind, depth - 1)
