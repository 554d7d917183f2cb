"""Keyword arguments of callables in frameworks and libraries."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.knobs.frameworks import ARGUMENTS, DEEPSPEED, LIGHTNING_DDP, TRAINER
from autotune.trial.hooks.libraries.deepspeed_config import configuration
from autotune.trial.hooks.libraries.frameworks import let_divide, without_stronger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.knobs.base import Knob
    from autotune.model.change import Change, Keyword
    from autotune.model.config import Value
    from autotune.trial.actuators.readings import Readings
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_DEFINED_IN = {
    "accelerate.Accelerator": ("accelerate.accelerator",),
    "lightning.Trainer": ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
    LIGHTNING_DDP: ("lightning.pytorch.strategies.ddp", "pytorch_lightning.strategies.ddp"),
    "lightning.pytorch.Trainer": ("lightning.pytorch.trainer.trainer",),
    "pytorch_lightning.Trainer": ("pytorch_lightning.trainer.trainer",),
    "transformers.TrainingArguments": ("transformers.training_args",),
    "transformers.Trainer": ("transformers.trainer",),
    # Engine constructors convert their arguments to one of these.
    DEEPSPEED: ("deepspeed.runtime.config",),
}


class Keywords:
    """Wraps constructors and functions after the import of their module."""

    def __init__(
        self, state: RuntimeState, undo: Undo, readings: Readings, knobs: Mapping[str, Knob]
    ) -> None:
        self._state = state
        self._undo = undo
        self._readings = readings
        self._knobs = knobs

    def carry_out(self, change: Change, spelling: Keyword, hooks: AfterImport) -> None:
        """Pass this keyword to the target from its import on."""
        target = spelling.target
        if target == TRAINER:
            # The callable has no such argument itself; an argument object has.
            self.carry_out(change, replace(spelling, target=ARGUMENTS, defining_module=""), hooks)
        modules = _DEFINED_IN.get(target, (spelling.defining_module or target.rpartition(".")[0],))
        for module in modules:
            hooks.on(module, functools.partial(self._wrap, change, spelling))

    def _wrap(self, change: Change, spelling: Keyword, module: Any) -> None:
        try:
            if spelling.target == DEEPSPEED:
                self._wrap_configuration(module.DeepSpeedConfig, change, spelling)
                return
            name = spelling.target.rpartition(".")[2]
            found = getattr(module, name)
            if spelling.target == TRAINER:
                self._undo.assign(found, "__init__", self._dividing(found.__init__))
            elif dataclasses.is_dataclass(found) and hasattr(found, "__post_init__"):
                self._wrap_dataclass(found, change, spelling)
            elif isinstance(found, type):
                self._undo.assign(found, "__init__", self._wrapper(found.__init__, change, spelling))
            else:
                self._undo.assign(module, name, self._wrapper(found, change, spelling))
        except Exception as error:
            self._state.faults.note(f"keyword:{change.knob}", error)

    def _arguments(self, change: Change, spelling: Keyword) -> Mapping[str, Value | None]:
        knob = self._knobs.get(change.knob)
        return {spelling.name: change.value} if knob is None else knob.arguments(change.value, spelling)

    def _dividing(self, original: Any) -> Any:
        """Return the Trainer's constructor, wrapped for models whose loss it must divide."""
        state = self._state

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            if state.active:
                let_divide(this)

        return init

    def _wrap_dataclass(self, cls: Any, change: Change, spelling: Keyword) -> None:
        """Wrap the dataclass method that runs after the fields are set.

        Subclasses that are dataclasses have their own constructor, which does not call the base's.
        """
        arguments = self._arguments(change, spelling)
        original, state, delivered = cls.__post_init__, self._state, self._readings.delivered

        @functools.wraps(original)
        def post_init(this: Any, *args: Any, **kwargs: Any) -> None:
            if not state.active or (change.site and not self._at(change.site)):
                original(this, *args, **kwargs)
                return
            for name, value in arguments.items():
                if name in this.__dataclass_fields__:
                    object.__setattr__(this, name, value)
            with without_stronger(spelling):
                original(this, *args, **kwargs)
            delivered[spelling.target, spelling.name] = change.value

        self._undo.assign(cls, "__post_init__", post_init)

    def _wrap_configuration(self, cls: Any, change: Change, spelling: Keyword) -> None:
        """Wrap the configuration, so that DeepSpeed gets a changed copy of the file or dictionary."""
        original, state, delivered = cls.__init__, self._state, self._readings.delivered

        @functools.wraps(original)
        def init(this: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            if state.active:
                config = configuration(config, spelling.name, change.value)
            original(this, config, *args, **kwargs)
            if state.active:
                delivered[spelling.target, spelling.name] = change.value

        self._undo.assign(cls, "__init__", init)

    def _wrapper(self, original: Any, change: Change, spelling: Keyword) -> Any:
        signature = inspect.signature(original)
        arguments = self._arguments(change, spelling)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._state.active or (change.site and not self._at(change.site)):
                return original(*args, **kwargs)
            try:
                bound = signature.bind_partial(*args, **kwargs)
                known = {name: value for name, value in arguments.items() if name in signature.parameters}
                bound.arguments.update(known)
                rest = {name: value for name, value in arguments.items() if name not in known}
                args, kwargs = bound.args, {**bound.kwargs, **rest}
            except TypeError:
                return original(*args, **kwargs)
            with without_stronger(spelling):
                result = original(*args, **kwargs)
            self._readings.delivered[spelling.target, spelling.name] = change.value
            return result

        return call

    def _at(self, site: str) -> bool:
        frames = self._state.user_frames(inspect.currentframe())
        return bool(frames) and site in (frames[0], "<".join(frames))
