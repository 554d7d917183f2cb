"""Compile regions: the whole root, or each of its repeated blocks."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.hooks.model.repeated_blocks import RepeatedBlocks
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class Regions:
    """Implements `RegionHook`."""

    def __init__(self, state: RuntimeState, undo: Undo, blocks: RepeatedBlocks) -> None:
        self._state = state
        self._undo = undo
        self._blocks = blocks
        self.by_block = False
        self._calls: list[weakref.ref[BlockCall]] = []
        self._called = False
        self.compiled: Callable[[], bool] = _never
        """Whether the compiler produced code for the trained module."""

    def set(self, region: str) -> None:
        """Set ``whole``, or ``block`` for each of the repeated blocks."""
        self.by_block = region == "block"
        self._undo.then(self._release)

    def observed(self) -> str | None:
        """Return the region that compiled code was called for; None before that."""
        if "root" in self._state.faults.off or not self.compiled():
            return None
        if not self.by_block:
            return "whole"
        if self.calls:
            self._called = all(call.called for call in self.calls)
        return "block" if self._called else None

    def take(self, root: Any, compiled: Callable[[Any], Any]) -> bool:
        """Compile parts of a root in place; return True if this is requested or necessary, and possible."""
        wrapped = _wrapped(root)
        if not self.by_block and wrapped is None:
            return False
        blocks = self._blocks.of(root) if self.by_block else [wrapped]
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

    @property
    def calls(self) -> list[BlockCall]:
        """Return the calls of live blocks."""
        return [call for call in (reference() for reference in self._calls) if call is not None]

    def _release(self) -> None:
        for call in self.calls:
            call.release()
        self._calls.clear()
        self.by_block = False


_WRAPPERS = frozenset({"DistributedDataParallel", "DeepSpeedEngine"})


def _wrapped(root: Any) -> Any:
    """Return the model inside a wrapper that reduces gradients across processes; None without one.

    Dynamo runs the frames of `DistributedDataParallel` eagerly, and splits the compiled model at the
    wrapper's bucket boundaries. A call of `DeepSpeedEngine` is full of context managers and timers, which
    would split it into pieces.
    """
    is_wrapper = any(kind.__name__ in _WRAPPERS for kind in type(root).__mro__)
    return getattr(root, "module", None) if is_wrapper else None


class BlockCall:
    """Value of a block's ``_compiled_call_impl``, the slot that pickles and copies leave out."""

    def __init__(self, compiled: Callable[..., Any], module: Any) -> None:
        self._compiled = compiled
        self._module: weakref.ref[Any] = weakref.ref(module)
        self._previous = module.__dict__.get("_compiled_call_impl")
        self.called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self._compiled(*args, **kwargs)
        self.called = True
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """Return an empty reduction, so that a block that pickles its own attributes leaves this out."""
        return type(None), ()

    def __deepcopy__(self, memo: Any) -> None:
        """Return None, as for a pickle."""
        return

    def module(self) -> Any:
        """Block, if it is alive and called through this object."""
        block = self._module()
        return block if block is not None and block.__dict__.get("_compiled_call_impl") is self else None

    def release(self) -> None:
        """Restore the block's slot."""
        block = self.module()
        if block is None:
            return
        del block.__dict__["_compiled_call_impl"]
        if self._previous is not None:
            block.__dict__["_compiled_call_impl"] = self._previous


def _never() -> bool:
    return False
