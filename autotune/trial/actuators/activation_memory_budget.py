"""Share of activations that compiled code may store for its backward pass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.trial.hooks.model.dynamo_graphs import Graphs
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_CONFIG: Final = "torch._functorch.config"
_OPTION: Final = "activation_memory_budget"


class ActivationBudget:
    """Implements `BudgetHook`."""

    def __init__(self, state: RuntimeState, undo: Undo, hooks: AfterImport, graphs: Graphs) -> None:
        self._state = state
        self._undo = undo
        self._hooks = hooks
        self._seen: float | None = None
        graphs.watch(self._compiled)

    def set(self, share: float) -> None:
        """Set the compiler's option once its settings are imported; import nothing for it."""

        def arm(config: Any) -> None:
            if not hasattr(config, _OPTION):
                self._state.refusals["memory_budget"] = f"This PyTorch has no {_OPTION}."
                return
            self._undo.assign(config, _OPTION, float(share))

        self._hooks.on(_CONFIG, arm)

    def observed(self) -> float | None:
        """Return the share in force at the last compilation; None before one."""
        return None if "graphs" in self._state.faults.off else self._seen

    def _compiled(self, _names: list[str]) -> None:
        self._seen = float(getattr(sys.modules[_CONFIG], _OPTION))
