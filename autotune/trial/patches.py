"""Everything a knob may touch in the training process, and how it is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.knobs.base import (
        AccumulationSeam,
        CompileSeam,
        LayoutSeam,
        LoaderSeam,
        OptimizerSeam,
        PrecisionSeam,
    )
    from autotune.trial.compiling import Compile
    from autotune.trial.loader import Loader
    from autotune.trial.optimizer import Optimizer
    from autotune.trial.root import Root

_ABSENT = object()


class Undo:
    """A stack of changes, taken back in reverse."""

    def __init__(self) -> None:
        self._stack: list[Callable[[], None]] = []

    def assign(self, owner: Any, attribute: str, value: object) -> None:
        """Set an attribute and remember the old one."""
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
        """Call a setter now, and again with `undo` when changes are taken back."""
        setter(value)
        self._stack.append(lambda: setter(undo))

    def then(self, action: Callable[[], None]) -> None:
        """Do this when changes are taken back."""
        self._stack.append(action)

    def undo_all(self) -> None:
        """Take everything back."""
        while self._stack:
            self._stack.pop()()


class Patches:
    """Implements `autotune.knobs.base.Patches`."""

    def __init__(
        self, torch: Any, undo: Undo, loader: Loader, root: Root, compiling: Compile, optimizer: Optimizer
    ) -> None:
        self.torch = torch
        self._undo = undo
        self._root = root
        self._optimizer = optimizer
        self.loader: LoaderSeam = loader
        self.precision: PrecisionSeam = root
        self.compile: CompileSeam = compiling
        self.layout: LayoutSeam = root.layout
        self.optimizer: OptimizerSeam = optimizer
        self.accumulation: AccumulationSeam = optimizer.accumulation

    def assign(self, owner: object, attribute: str, value: object) -> None:
        """Set an attribute and remember the old one."""
        self._undo.assign(owner, attribute, value)

    def call(self, setter: Any, value: object, *, undo: object) -> None:
        """Call a setter now, and again with `undo` when patches are undone."""
        self._undo.call(setter, value, undo=undo)

    def undo_all(self) -> None:
        """Take back every patch, the seams themselves included."""
        self._root.settle()
        self._root.release()
        self._optimizer.release()
        self._undo.undo_all()
