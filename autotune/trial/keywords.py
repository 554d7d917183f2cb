"""Keyword arguments of callables that frameworks and libraries own, and which owners were built."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.core.change import Change, Keyword
    from autotune.trial.imports import AfterImport
    from autotune.trial.readings import Readings
    from autotune.trial.state import State
    from autotune.trial.undo import Undo

OWNERS = {
    "accelerate.accelerator": ("Accelerator", "accelerate"),
    "lightning.pytorch.trainer.trainer": ("Trainer", "lightning"),
    "pytorch_lightning.trainer.trainer": ("Trainer", "lightning"),
    "transformers.trainer": ("Trainer", "transformers"),
}
_DEFINED_IN = {
    "accelerate.Accelerator": ("accelerate.accelerator",),
    "lightning.Trainer": ("lightning.pytorch.trainer.trainer",),
    "lightning.pytorch.Trainer": ("lightning.pytorch.trainer.trainer",),
    "pytorch_lightning.Trainer": ("pytorch_lightning.trainer.trainer",),
    "transformers.TrainingArguments": ("transformers.training_args",),
}


class Keywords:
    """Wraps constructors and functions once the module that defines them has been imported."""

    def __init__(self, state: State, undo: Undo, readings: Readings) -> None:
        self._state = state
        self._undo = undo
        self._readings = readings
        self.owners: list[str] = []

    def watch_owners(self, hooks: AfterImport) -> None:
        """Note which training frameworks the script builds."""
        for module, (name, owner) in OWNERS.items():
            hooks.on(module, functools.partial(self._watch_owner, name, owner))

    def _watch_owner(self, name: str, owner: str, module: Any) -> None:
        cls = getattr(module, name, None)
        if cls is None:
            return
        original = cls.__init__

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if owner not in self.owners:
                self.owners.append(owner)
            original(this, *args, **kwargs)

        self._undo.assign(cls, "__init__", init)

    def carry_out(self, change: Change, spelling: Keyword, hooks: AfterImport) -> None:
        """Call the target with this keyword from its import on."""
        target = spelling.target
        modules = _DEFINED_IN.get(target, (spelling.defining_module or target.rpartition(".")[0],))
        for module in modules:
            hooks.on(module, functools.partial(self._wrap, change, spelling))

    def _wrap(self, change: Change, spelling: Keyword, module: Any) -> None:
        try:
            name = spelling.target.rpartition(".")[2]
            found = getattr(module, name)
            if isinstance(found, type):
                self._undo.assign(found, "__init__", self._wrapper(found.__init__, change, spelling))
            else:
                self._undo.assign(module, name, self._wrapper(found, change, spelling))
        except Exception as error:
            self._state.faults.note(f"keyword:{change.knob}", error)

    def _wrapper(self, original: Any, change: Change, spelling: Keyword) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._state.active or (change.site and not self._at(change.site)):
                return original(*args, **kwargs)
            try:
                bound = signature.bind_partial(*args, **kwargs)
                if spelling.name in signature.parameters:
                    bound.arguments[spelling.name] = change.value
                    args, kwargs = bound.args, bound.kwargs
                else:
                    kwargs = {**kwargs, spelling.name: change.value}
            except TypeError:
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            self._readings.delivered[spelling.target, spelling.name] = change.value
            return result

        return call

    def _at(self, site: str) -> bool:
        frames = self._state.user_frames(inspect.currentframe())
        return bool(frames) and site in (frames[0], "<".join(frames))
