"""Training frameworks that the script builds, with their arguments as deliveries of knobs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from autotune.knobs.frameworks import ACCELERATOR, ARGUMENTS, KERAS
from autotune.trial.runtime.state import caller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from autotune.model.change import Keyword
    from autotune.model.config import Value
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

OWNERS = {
    "accelerate.accelerator": ("Accelerator", "accelerate"),
    "deepspeed.runtime.engine": ("DeepSpeedEngine", "deepspeed"),
    "lightning.pytorch.trainer.trainer": ("Trainer", "lightning"),
    "pytorch_lightning.trainer.trainer": ("Trainer", "lightning"),
    "transformers.trainer": ("Trainer", "transformers"),
}
_STRONGER = {
    (ACCELERATOR, "gradient_accumulation_steps"): "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    (ARGUMENTS, "bf16"): "ACCELERATE_MIXED_PRECISION",
}
"""Environment variables that override an argument.

In Accelerate 1.15 any value does, in transformers 5.23 only without a format argument.
"""
_LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")


class Frameworks:
    """Records every framework that is constructed, with its settings."""

    def __init__(self, state: RuntimeState, undo: Undo) -> None:
        self._state = state
        self._undo = undo
        self.owners: list[str] = []
        self._built: dict[str, Callable[[], Any]] = {}
        """Framework -> its object, while the script references it."""
        self._settings: dict[str, Value] = {}
        self.on_part: Callable[[], None] | None = None
        """Called when Accelerate creates the context of a part of a step."""

    def watch(self, hooks: AfterImport) -> None:
        """Record constructions from the import of each framework on."""
        for module, (name, owner) in OWNERS.items():
            hooks.on(module, functools.partial(self._watch, name, owner))
        hooks.on("transformers.loss.loss_utils", self._watch_items)
        hooks.on("keras.src.backend.torch.trainer", self._watch_fit)
        hooks.on("deepspeed.runtime.dataloader", self._watch_length)

    def _watch(self, name: str, owner: str, module: Any) -> None:
        cls = getattr(module, name, None)
        if cls is None:
            return
        original = cls.__init__

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if owner not in self.owners:
                self.owners.append(owner)
            original(this, *args, **kwargs)
            if self._state.active:
                self._guarded(functools.partial(self._note, owner, this, args, kwargs))

        self._undo.assign(cls, "__init__", init)
        if owner == "accelerate" and hasattr(cls, "accumulate"):
            self._watch_accumulate(cls)
        if owner == "deepspeed":
            self._watch_backward(cls)

    def _watch_backward(self, cls: Any) -> None:
        """Disable DeepSpeed's division of a loss by the parts of a step if its own backward is called."""
        original = cls.backward

        @functools.wraps(original)
        def backward(this: Any, *args: Any, **kwargs: Any) -> Any:
            # In versions with this switch, it is the last positional parameter.
            self._settings["deepspeed.divides"] = kwargs.get("scale_wrt_gas", True) is True and len(args) < 3
            return original(this, *args, **kwargs)

        self._undo.assign(cls, "backward", backward)

    def _watch_length(self, module: Any) -> None:
        """Correct the length of DeepSpeed's own loader, which follows its configuration, not its batches."""
        cls = getattr(module, "DeepSpeedDataLoader", None)
        if cls is None:
            return
        original = cls.__len__

        @functools.wraps(original)
        def length(this: Any) -> Any:
            frame = caller(1)
            if frame is not None and self._state.is_users(frame.f_code.co_filename):
                self._settings["deepspeed.counts_batches"] = True
            return original(this)

        self._undo.assign(cls, "__len__", length)

    def _watch_accumulate(self, cls: Any) -> None:
        original = cls.accumulate

        @functools.wraps(original)
        def accumulate(this: Any, *models: Any) -> Any:
            self._settings["accelerate.accumulates"] = True
            if self.on_part is not None and self._state.here():
                self.on_part()
            return original(this, *models)

        self._undo.assign(cls, "accumulate", accumulate)

    def _watch_fit(self, module: Any) -> None:
        """Record calls of `fit`, which train by Keras; its models may also be part of the script's loop."""
        cls = getattr(module, "TorchTrainer", None)
        original = getattr(cls, "fit", None)
        if cls is None or original is None:
            return

        @functools.wraps(original)
        def fit(this: Any, *args: Any, **kwargs: Any) -> Any:
            if KERAS not in self.owners:
                self.owners.append(KERAS)
            return original(this, *args, **kwargs)

        self._undo.assign(cls, "fit", fit)

    def _watch_items(self, module: Any) -> None:
        """Record losses of transformers divided by the items of the whole step, without padding."""
        original = getattr(module, "fixed_cross_entropy", None)
        if original is None:
            return
        compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
        is_compiling = getattr(compiler, "is_compiling", bool)

        @functools.wraps(original)
        def fixed_cross_entropy(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)  # tracing must not leave any change in the model
            given = kwargs.get("num_items_in_batch", args[2] if len(args) > 2 else None)
            if given is not None:
                self._settings["transformers.loss_per_item"] = True
            return original(*args, **kwargs)

        self._undo.assign(module, "fixed_cross_entropy", fixed_cross_entropy)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._state.faults.note("frameworks", error)

    def _note(self, owner: str, built: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        self._built[owner] = weakref.ref(built)
        given = {name: value for name, value in kwargs.items() if value is not None}
        match owner:
            case "transformers":
                optimizers = kwargs.get("optimizers") or (None, None)
                self._settings["transformers.own_optimizer"] = optimizers[0] is not None
                self._settings["transformers.own_scheduler"] = optimizers[1] is not None
            case "lightning":
                self._settings["lightning.plugins"] = "plugins" in given
            case "deepspeed":
                self._settings.setdefault("deepspeed.divides", False)
            case _:
                self._settings["accelerate.plugin"] = "gradient_accumulation_plugin" in given
                self._settings.setdefault("accelerate.accumulates", False)

    def settings(self) -> dict[str, Value]:
        """Return the current settings of the frameworks, as in ``transformers.optim``."""
        readers: dict[str, Callable[[Any], dict[str, Any]]] = {
            "transformers": _of_trainer,
            "lightning": _of_lightning,
            "accelerate": _of_accelerator,
            "deepspeed": _of_engine,
        }
        for owner, reference in self._built.items():
            built = reference()
            if built is not None:
                self._guarded(functools.partial(self._read, owner, readers[owner], built))
        return dict(self._settings)

    def _read(self, owner: str, reader: Callable[[Any], dict[str, Any]], built: Any) -> None:
        found = reader(built)
        plain = {k: v for k, v in found.items() if isinstance(v, (bool, int, float, str))}
        self._settings.update({f"{owner}.{name}": value for name, value in plain.items()})


def _of_trainer(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    names = (
        *("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "torch_compile"),
        *("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers"),
        "dataloader_pin_memory",
    )
    optim = getattr(args, "optim", None)
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    counts = getattr(trainer, "model_accepts_loss_kwargs", False)
    counts = bool(counts or getattr(trainer, "compute_loss_func", None))
    divides = not (counts if scaled is None else scaled)
    return {
        **{name: getattr(args, name, None) for name in names},
        "optim": str(getattr(optim, "value", optim)),
        "deepspeed": bool(getattr(args, "deepspeed", None)),
        "divides": divides,
        "takes_items": not divides and _takes_items(trainer),
        "own_loss": _computes_loss(trainer),
        "router_loss": _routes(trainer),
    }


def _routes(trainer: Any) -> bool:
    """Return whether a mixture of experts adds its router's loss, which is no sum over items."""
    config = getattr(getattr(trainer, "model", None), "config", None)
    inner = getattr(config, "text_config", None)
    return any(getattr(held, "output_router_logits", False) is True for held in (config, inner))


def _computes_loss(trainer: Any) -> bool:
    """Return whether the script's code computes the loss, in a subclass or a passed function."""
    base = next((c for c in type(trainer).__mro__ if c.__module__ == "transformers.trainer"), None)
    plain = getattr(base, "compute_loss", None) is getattr(type(trainer), "compute_loss", None)
    given = getattr(trainer, "compute_loss_func", None)
    return not plain or (given is not None and not _takes_items(trainer))


def _takes_items(trainer: Any) -> bool:
    """Return whether the loss computation takes the number of items as its divisor.

    Label smoothing replaces the model's loss by the Trainer's, which takes the number in newer versions.
    """
    computes = getattr(trainer, "compute_loss_func", None) or getattr(trainer, "label_smoother", None)
    computes = computes or getattr(getattr(trainer, "model", None), "forward", None)
    try:
        return computes is not None and "num_items_in_batch" in inspect.signature(computes).parameters
    except (TypeError, ValueError):
        return False


def _of_lightning(trainer: Any) -> dict[str, Any]:
    module = getattr(trainer, "lightning_module", None)
    limit = getattr(trainer, "limit_train_batches", None)
    counts = any(isinstance(span, int) for span in (limit, getattr(trainer, "val_check_interval", None)))
    return {
        "accumulate_grad_batches": getattr(trainer, "accumulate_grad_batches", None),
        "precision": getattr(trainer, "precision", None),
        # A fraction of the batches is rounded, and need not be a whole number of steps.
        "counts_batches": counts or (isinstance(limit, float) and limit != 1.0),
        "after_backward": any(map(_acts_after_backward, (module, *getattr(trainer, "callbacks", ())))),
        "automatic_optimization": getattr(module, "automatic_optimization", None),
    }


def _acts_after_backward(hooked: Any) -> bool:
    """Return whether the script's code runs after every backward pass, in its module or a callback."""
    for cls in type(hooked).__mro__:
        if "on_after_backward" in cls.__dict__:
            return not cls.__module__.startswith(_LIGHTNING)
    return False


def _of_accelerator(accelerator: Any) -> dict[str, Any]:
    return {
        "gradient_accumulation_steps": getattr(accelerator, "gradient_accumulation_steps", None),
        "mixed_precision": str(getattr(accelerator, "mixed_precision", None)),
    }


def _of_engine(engine: Any) -> dict[str, Any]:
    autocast = getattr(engine, "torch_autocast_enabled", None)
    managed = getattr(engine, "managed_gradient_accumulation", None)
    stage = getattr(engine, "zero_optimization_stage", None)
    return {
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "torch_autocast": None if autocast is None else bool(autocast()),
        "pipeline": any(kind.__name__ == "PipelineEngine" for kind in type(engine).__mro__),
        "managed": managed is None or bool(managed()),
        "zero": None if stage is None else int(stage()),
        "reduce_bucket_size": _called(engine, "zero_reduce_bucket_size"),
        "overlap_comm": _called(engine, "zero_overlap_comm"),
        # Called once per step, by the engine itself.
        "own_schedule": getattr(engine, "lr_scheduler", None) is not None
        and getattr(engine, "client_lr_scheduler", None) is None,
    }


def _called(engine: Any, name: str) -> Any:
    """Return what a method without arguments returns; None where this version has none."""
    method = getattr(engine, name, None)
    return None if method is None else method()


def let_divide(trainer: Any) -> None:
    """Have the transformers Trainer divide the loss by the parts of a step, for any model."""
    # Newer versions have a switch; older ones check whether the model takes a count to divide by.
    new = hasattr(type(trainer), "loss_is_scaled_for_ga")
    setattr(trainer, "loss_is_scaled_for_ga" if new else "model_accepts_loss_kwargs", False)


@contextlib.contextmanager
def without_stronger(spelling: Keyword) -> Generator[None]:
    """Remove the variable that overrides this argument from the environment; keep the framework's changes."""
    name = _STRONGER.get((spelling.target, spelling.name), "")
    held = os.environ.pop(name, None) if name else None
    try:
        yield
    finally:
        if held is not None:
            os.environ.setdefault(name, held)


def runs_once(closure: Any, optimizer: Any) -> bool:
    """Return whether a closure is one of Lightning's, with one backward pass like each of its steps."""
    base: Any = getattr(sys.modules.get("torch.optim"), "LBFGS", ())
    if isinstance(optimizer, base):
        return False
    # Wrapped by the Trainer's precision plugin: the model, the optimizer, and the closure itself.
    inner = closure.args[-1] if isinstance(closure, functools.partial) and closure.args else closure
    return type(inner).__module__.startswith(_LIGHTNING)
