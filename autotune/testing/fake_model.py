"""Scripted model hooks, for tests of knobs; part of `testing.knobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeModelHooks:
    """A trained module whose attention, blocks, memory and weights take every value.

    Args:
        assign: Sets an attribute so that it can be taken back.
    """

    def __init__(self, assign: Callable[[object, str, object], None]) -> None:
        self.attention = _Said(assign, "auto")
        self.checkpointing = _Said(assign, "none")
        self.budget = _Said(assign, 1.0)
        self.shapes = _Said(assign, "auto")
        self.region = _Said(assign, "whole")
        self.gradients = _Said(assign, value=False)
        self.weights = _Said(assign, value=False)
        self.float8 = _Said(assign, "off")

    def state(self) -> tuple[object, ...]:
        """All that a knob could have changed."""
        return tuple(hook.value for hook in vars(self).values())


class _Said:
    def __init__(self, assign: Callable[[object, str, object], None], value: object) -> None:
        self._assign = assign
        self.value: Any = value

    def set(self, value: object, /) -> None:
        self._assign(self, "value", value)

    def force(self, kernel: str, /) -> None:
        self.set(kernel)

    def drop(self) -> None:
        self.set(True)

    def halve(self) -> None:
        self.set(True)

    def restore(self) -> bool:
        self.value = False
        return True

    def switch(self, kernel: str | None = None, /) -> Callable[[], None]:
        own = self.value
        self.value = True if kernel is None else kernel
        return lambda: setattr(self, "value", own)

    def observed(self) -> Any:
        return self.value
