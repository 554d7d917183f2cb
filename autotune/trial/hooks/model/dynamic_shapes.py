"""Treatment of sizes in compiled code: the ``dynamic`` of `torch.compile`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.trial.hooks.model.dynamo_graphs import Graphs
    from autotune.trial.runtime.state import RuntimeState

_DYNAMIC: Final[dict[str, bool | None]] = {"auto": None, "static": False, "dynamic": True}


class DynamicShapes:
    """Implements `ShapesHook`."""

    def __init__(self, state: RuntimeState, graphs: Graphs) -> None:
        self._state = state
        self._wanted = ""
        self._seen: set[str] = set()
        graphs.watch(self._compiled)

    def set(self, shapes: str) -> None:
        """Set ``auto``, ``static`` or ``dynamic``, for later compilations."""
        self._wanted = shapes

    def keywords(self) -> dict[str, Any]:
        """Return keyword arguments for `torch.compile`; empty without a request."""
        return {"dynamic": _DYNAMIC[self._wanted]} if self._wanted else {}

    def observed(self) -> str | None:
        """Return the rule in force at every compilation; None before one, or if they differ."""
        if "graphs" in self._state.faults.off or len(self._seen) != 1:
            return None
        return next(iter(self._seen))

    def _compiled(self, _names: list[str]) -> None:
        config: Any = sys.modules["torch._dynamo.config"]
        if not config.assume_static_by_default:
            self._seen.add("dynamic")
        else:
            self._seen.add("auto" if config.automatic_dynamic_shapes else "static")
