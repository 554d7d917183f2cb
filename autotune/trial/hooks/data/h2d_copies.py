"""Copies of a loader's pinned batches to a CUDA device, made non-blocking if that is safe."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.trial.records.batch_structure import keys_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_RECENT = 16
_LEVELS = 4
_WIDE = 64
_CHANGED = (
    "The script changes a batch in place after copying it to the device, which an asynchronous copy may "
    "not have read yet."
)


class H2dCopies:
    """Implements `CopiesHook`.

    No function is replaced before a loader has yielded a pinned batch. Then only calls on the tensors of such
    a batch differ. They are new, never refilled, and the pinned memory of a deleted one is not reused before
    its copy has ended.
    """

    def __init__(self, state: RuntimeState, undo: Undo, torch: Any) -> None:
        self._state = state
        self._undo = undo
        self._torch = torch
        self._on = False
        self._installed = False
        self._backs: list[Callable[[], None]] = []
        self._pinned: dict[int, weakref.ref[Any]] = {}
        self._copied: list[tuple[weakref.ref[Any], int]] = []
        self._recent: deque[bool] = deque(maxlen=_RECENT)

    def non_blocking(self, on: bool) -> None:
        """Copy without blocking unless the script sets `non_blocking`."""
        self._on = on

    def observed(self) -> bool | None:
        """Return whether all of the last copies were non-blocking; None before the first."""
        if not self._recent or "copies" in self._state.faults.off:
            return None
        return all(self._recent)

    def fetched(self, batch: Any) -> None:
        """Record a batch of a pinning loader."""
        self._check_copied()
        try:
            tensors = self._tensors(batch, 0)
        except Exception as error:
            # An object of the script; its loader is counted all the same.
            self._state.faults.note("copies", error)
            return
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.is_pinned():
                key = id(tensor)
                self._pinned[key] = weakref.ref(tensor, functools.partial(self._forget, key))
        if self._pinned and not self._installed:
            self._installed = True
            self._wrap("to")
            self._wrap("cuda")

    def let_go(self) -> None:
        """Restore the original copy functions."""
        while self._backs:
            self._backs.pop()()

    def _forget(self, key: int, dead: weakref.ref[Any]) -> None:
        if self._pinned.get(key) is dead:
            del self._pinned[key]

    def _tensors(self, item: Any, level: int) -> list[Any]:
        if isinstance(item, self._torch.Tensor):
            return [item]
        if level >= _LEVELS:
            return []
        if isinstance(item, Mapping) or (hasattr(item, "keys") and hasattr(item, "__getitem__")):
            inner = [item[key] for key in keys_of(item)[:_WIDE]]
        elif isinstance(item, (list, tuple)):
            inner = list(item[:_WIDE])
        else:
            inner = list(getattr(item, "__dict__", {}).values())[:_WIDE]
        return [tensor for part in inner for tensor in self._tensors(part, level + 1)]

    def _wrap(self, name: str) -> None:
        original = getattr(self._torch.Tensor, name)
        pinned, state = self._pinned, self._state

        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if id(tensor) not in pinned or not state.here() or "copies" in state.faults.off:
                return original(tensor, *args, **kwargs)
            try:
                kwargs = self._without_waiting(name, tensor, args, kwargs)
            except Exception as error:
                state.faults.note("copies", error)
            return original(tensor, *args, **kwargs)

        self._backs.append(self._undo.replace(self._torch.Tensor, name, copy))

    def _without_waiting(self, name: str, tensor: Any, args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
        """Return the keyword arguments of a copy of a pinned batch, with `non_blocking` if permitted."""
        if not self._goes_to_cuda(name, args, kwargs):
            return kwargs
        given = (
            [kwargs["non_blocking"]]
            if "non_blocking" in kwargs
            else [a for a in args if a is True or a is False]
        )
        is_set = self._on and not given and not self._changes_type(tensor, args, kwargs)
        if is_set:
            self._copied.append((self._pinned[id(tensor)], tensor._version))
        self._recent.append(is_set or bool(given and given[0]))
        return {**kwargs, "non_blocking": True} if is_set else kwargs

    def _goes_to_cuda(self, name: str, args: tuple[Any, ...], kwargs: Any) -> bool:
        if name == "cuda":
            return True
        wanted: Any = next((kwargs[word] for word in ("device", "other", "tensor") if word in kwargs), None)
        wanted = args[0] if wanted is None and args else wanted
        if isinstance(wanted, self._torch.Tensor):
            return bool(wanted.is_cuda)
        if isinstance(wanted, str):
            return wanted.startswith("cuda")
        if isinstance(wanted, self._torch.device):
            return wanted.type == "cuda"
        return isinstance(wanted, int) and not isinstance(wanted, bool)

    def _changes_type(self, tensor: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Return whether the copy converts: on the device instead of the host it may round differently."""
        given = [*args, *kwargs.values()]
        types = [a for a in given if isinstance(a, self._torch.dtype)]
        types += [a.dtype for a in given if isinstance(a, self._torch.Tensor)]
        return any(one != tensor.dtype for one in types)

    def _check_copied(self) -> None:
        """Check that no copied memory was written to during its copy."""
        copied, self._copied = self._copied, []
        for reference, version in copied:
            tensor = reference()
            if tensor is not None and tensor._version != version:
                self._on = False
                self._state.refusals["non_blocking"] = _CHANGED
                self._recent.append(False)
                self._state.lost("non_blocking", _CHANGED)
                return
