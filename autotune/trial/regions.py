"""What is compiled as one piece: the whole root, or each of its repeated blocks."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.blocks import Blocks
    from autotune.trial.state import State
    from autotune.trial.undo import Undo


class Regions:
    """Implements `RegionSeam`."""

    def __init__(self, state: State, undo: Undo, blocks: Blocks) -> None:
        self._state = state
        self._undo = undo
        self._blocks = blocks
        self.by_block = False
        self._calls: list[weakref.ref[BlockCall]] = []
        self._called = False
        self.compiled: Callable[[], bool] = _never
        """Whether the compiler made code of the trained module."""

    def set(self, region: str) -> None:
        """``whole``, or ``block`` for each of the repeated blocks."""
        self.by_block = region == "block"
        self._undo.then(self._release)

    def observed(self) -> str | None:
        """What compiled code was called for; None before that."""
        if "root" in self._state.faults.off or not self.compiled():
            return None
        if not self.by_block:
            return "whole"
        calls = [call for call in (reference() for reference in self._calls) if call is not None]
        if calls:
            self._called = all(call.called for call in calls)
        return "block" if self._called else None

    def take(self, root: Any, compiled: Callable[[Any], Any]) -> bool:
        """Compile the blocks of a root, each in place; whether that was asked for and possible."""
        if not self.by_block:
            return False
        blocks = self._blocks.of(root)
        if not blocks:
            self._state.refusals.setdefault(
                "compile_region", "The trained module has no repeated blocks that could be compiled."
            )
            return False
        for block in blocks:
            call = BlockCall(compiled(block), block)
            block.__dict__["_compiled_call_impl"] = call
            self._calls.append(weakref.ref(call))
        return True

    def _release(self) -> None:
        for reference in self._calls:
            call = reference()
            if call is not None:
                call.release()
        self._calls.clear()
        self.by_block = False


class BlockCall:
    """Stands in a block's ``_compiled_call_impl``, the slot that pickles and copies leave out."""

    def __init__(self, compiled: Callable[..., Any], module: Any) -> None:
        self._compiled = compiled
        self._module: weakref.ref[Any] = weakref.ref(module)
        self._previous = module.__dict__.get("_compiled_call_impl")
        self.called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self._compiled(*args, **kwargs)
        self.called = True
        return out

    def release(self) -> None:
        """Give the block back what stood in the slot."""
        block = self._module()
        if block is None or block.__dict__.get("_compiled_call_impl") is not self:
            return
        del block.__dict__["_compiled_call_impl"]
        if self._previous is not None:
            block.__dict__["_compiled_call_impl"] = self._previous


def _never() -> bool:
    return False
