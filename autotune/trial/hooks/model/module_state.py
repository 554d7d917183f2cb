"""State that a trained module carries from one batch to the next, apart from optimizer updates.

Accumulation splits one call into several. State that changes per call then changes at another rate: a
momentum encoder, a codebook, a counter. Outputs returned for one batch are combined with other samples in the
next call. BatchNorm is left out, as modules can be queried for it.
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
"""Index of a module in the root, and the name of its state."""


class Moves:
    """Detects whether a module's state changes in its calls, by the second and the third one.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Start without observations."""
        self._torch = torch
        self._calls = 0
        self._before: dict[Place, Any] | None = None
        self._moved: set[Place] | None = None
        self.seen = False

    def begins(self, module: Any) -> None:
        """Record the start of a call; the first one may initialize state."""
        self._before = None
        if module is None or not module.training or self._calls > _LOOKS:
            return
        self._calls += 1
        if self._calls > 1:
            self._before = self._state(module)

    def ended(self, module: Any) -> None:
        """Record the end of a call."""
        before, self._before = self._before, None
        if before is None or module is None:
            return
        after = self._state(module)
        moved = {place for place, held in after.items() if place in before and _moved(before[place], held)}
        self._moved = moved if self._moved is None else self._moved & moved
        self.seen = self._calls > _LOOKS and bool(self._moved)

    def _state(self, root: Any) -> dict[Place, Any]:
        """Return buffers, frozen weights and integers, each by some of its values."""
        normed = self._torch.nn.modules.batchnorm._BatchNorm
        found: dict[Place, Any] = {}
        try:
            for number, module in enumerate(root.modules()):
                if isinstance(module, normed):
                    continue
                for name, tensor in (*module._buffers.items(), *module._parameters.items()):
                    # Tensors with a gradient are changed by the optimizer; a buffer never has one.
                    if tensor is not None and not tensor.requires_grad:
                        found[number, name] = _sampled(tensor)
                counts = [(name, held) for name, held in vars(module).items() if type(held) is int]
                found.update({(number, name): held for name, held in counts})
        except _UNREADABLE:
            return {}
        return found


def _sampled(tensor: Any) -> tuple[str, int]:
    """Return the first values of a tensor, and its version counter if it has more.

    A sum would take memory for a large model, and peak memory is measured.
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
        # Values derived from the shapes of a batch may be any other number.
        return abs(after - before) == 1
    return type(before) is type(after) and before != after


class Carried:
    """Detects whether outputs for one batch are inputs of the call for the next, like a hidden state.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Start without observations."""
        self._torch = torch
        self._taken: list[Any] = []
        self._given: list[Any] = []
        """Storage pointers of outputs since the last backward pass; holds no references."""
        self._passed: list[Any] = []
        """The same for the time before that."""
        self.seen = False

    def called(self, args: Any, kwargs: Any) -> None:
        """Record the inputs of a call."""
        self._taken = self._memory((args, kwargs))
        self.seen = self.seen or any(held in self._passed for held in self._taken)

    def returned(self, out: Any) -> None:
        """Record the outputs of a call, without those that are its inputs."""
        self._given += [held for held in self._memory(out) if held not in self._taken]
        del self._given[_MOST_TENSORS:]

    def backward(self) -> None:
        """Record the end of a backward pass, after which another batch follows."""
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
