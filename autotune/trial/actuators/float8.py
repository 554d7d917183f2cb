"""Linear layers with 8-bit matrix products, by torchao."""

from __future__ import annotations

import importlib
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.trial.hooks.model.dynamo_graphs import Graphs
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_LAYER: Final = "Float8Linear"
_RECIPES: Final = {"tensorwise": "tensorwise", "axiswise": "rowwise"}
_DIVISOR: Final = 16
_NODES: Final = frozenset({"autograd_function_apply", "trampoline_autograd_apply"})


class Float8:
    """Implements `Float8Hook`; a part of the root (`RootPart`)."""

    def __init__(self, state: RuntimeState, undo: Undo, root: TrainedModules, graphs: Graphs) -> None:
        self._state = state
        self._undo = undo
        self._root = root
        self._torch: Any = None
        self._recipe = "off"
        self._turned: list[tuple[weakref.ref[Any], str, Any]] = []
        self._in_graphs = False
        self._observed: str | None = None
        graphs.watch(self._compiled)

    def install(self, torch: Any) -> None:
        """Bind torch."""
        self._torch = torch

    @property
    def wanted(self) -> bool:
        """Whether layers are to be converted."""
        return self._recipe != "off"

    def set(self, recipe: str) -> None:
        """Set ``off``, or one of torchao's recipes: ``tensorwise``, ``rowwise``."""
        self._recipe = recipe
        self._undo.then(self._release)

    def observed(self) -> str | None:
        """Return the recipe of the compiled layers in trained modules; ``off``: none."""
        if self._state.faults.off & {"root", "graphs"}:
            return None
        modules = [m for m in (call.module() for call in self._root.calls) if m is not None]
        if not modules:
            return self._observed
        layers = [m for root in modules for m in root.modules() if type(m).__name__ == _LAYER]
        if not layers:
            self._observed = None if self.wanted else "off"
        elif self._in_graphs:
            kinds = {_RECIPES.get(_granularity(layer), "other") for layer in layers}
            self._observed = kinds.pop() if len(kinds) == 1 else "mixed"
        return self._observed

    def _compiled(self, names: list[str]) -> None:
        self._in_graphs = self._in_graphs or not _NODES.isdisjoint(names)

    # Root part

    def convert(self, module: Any) -> None:
        """Replace the layers of a newly found root; the parameters are the same."""
        nn = self._torch.nn
        found = {
            f"{prefix}.{name}" if prefix else name: (part, name, child)
            for prefix, part in module.named_modules()
            for name, child in part.named_children()
            if type(child) is nn.Linear and _fits(child)
        }
        if not found:
            self._refuse("No linear layer of the trained module has sizes that are multiples of 16.")
            return

        def among(_layer: Any, name: str) -> bool:
            return name in found

        try:
            torchao: Any = importlib.import_module("torchao.float8")
            config = torchao.Float8LinearConfig.from_recipe_name(self._recipe)
            torchao.convert_to_float8_training(module, config=config, module_filter_fn=among)
        except (ImportError, AttributeError, AssertionError, TypeError, ValueError) as error:
            self._refuse(f"torchao could not convert the layers: {type(error).__name__}: {error}.")
            return
        for part, name, old in found.values():
            new = getattr(part, name)
            if new is not old:
                new.train(old.training)
                self._turned.append((weakref.ref(part), name, old))

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the root's inputs unchanged."""
        return args, kwargs

    def _refuse(self, reason: str) -> None:
        self._state.refusals.setdefault("fp8", reason)

    def _release(self) -> None:
        for reference, name, old in self._turned:
            part = reference()
            if part is not None:
                setattr(part, name, old)
        self._turned.clear()
        self._recipe = "off"


def _fits(layer: Any) -> bool:
    """Return whether a layer's sizes fit 8-bit products, and no hooks would be lost."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
    return not any(hooks) and layer.in_features % _DIVISOR == 0 and layer.out_features % _DIVISOR == 0


def _granularity(layer: Any) -> str:
    return str(layer.config.cast_config_input.scaling_granularity.value)
