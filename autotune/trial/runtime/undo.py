"""Undo stack for changes to the training process. Imports nothing of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ABSENT = object()


class Undo:
    """Stack of changes, undone in reverse order."""

    def __init__(self) -> None:
        self._stack: list[Callable[[], None]] = []

    def assign(self, owner: Any, attribute: str, value: object) -> None:
        """Set an attribute and store the old value."""
        held = vars(owner) if hasattr(owner, "__dict__") else {}
        if attribute in held:
            old: Any = held[attribute]
        else:
            old = _ABSENT if isinstance(owner, type) else getattr(owner, attribute, _ABSENT)

        def restore() -> None:
            if old is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, old)

        setattr(owner, attribute, value)
        self._stack.append(restore)

    def call(self, setter: Any, value: object, *, undo: object) -> None:
        """Call a setter now, and again with `undo` when changes are undone."""
        setter(value)
        self._stack.append(lambda: setter(undo))

    def then(self, action: Callable[[], None]) -> None:
        """Register an action for the undo."""
        self._stack.append(action)

    def replace(self, owner: Any, attribute: str, value: object) -> Callable[[], None]:
        """Set an attribute like `assign`, with a separate undo.

        Returns:
            Function that restores it, unless it was replaced meanwhile by a wrapper that may call this one.
        """
        self.assign(owner, attribute, value)
        restore = self._stack.pop()

        def back() -> None:
            if vars(owner).get(attribute, _ABSENT) is value:
                restore()

        self._stack.append(back)
        return back

    def undo_all(self) -> None:
        """Undo all changes."""
        while self._stack:
            self._stack.pop()()
