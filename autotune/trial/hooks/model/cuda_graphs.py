"""Detection of missing CUDA graphs under a `torch.compile` mode that requires them.

If Inductor finds an obstacle (CPU work in between, inputs changed in place), it logs the reason and runs the
compiled code as in the mode without graphs. Such a run does not have the requested configuration.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORDING = "CUDAGRAPH_RECORDING"


class CudaGraphs:
    """Recorded CUDA graphs of this process."""

    def __init__(self) -> None:
        self._recorded = False
        self._torch: Any = None

    def install(self, torch: Any) -> None:
        """Bind torch after its import."""
        self._torch = torch

    def note(self, args: tuple[Any, ...]) -> None:
        """Record the start of a compile; newer versions of torch report its kind."""
        self._recorded = self._recorded or any(
            getattr(getattr(a, "callback_trigger", None), "name", "") == _RECORDING for a in args
        )

    def missing(self) -> str | None:
        """Return why no graph was recorded, as a sentence; None if one was, or none was possible."""
        if self._torch is None or not self._torch.cuda.is_initialized() or self._recorded:
            return None
        if any(roots for manager in self._managers() for roots in dict(manager.roots or {}).values()):
            return None
        utils: Any = sys.modules.get("torch._dynamo.utils")
        skips = int(getattr(utils, "counters", {}).get("inductor", {}).get("cudagraph_skips", 0))
        if skips:
            return f"No CUDA graph was recorded: the compiler found {skips} parts that cannot be."
        return "No CUDA graph was recorded."

    @staticmethod
    def _managers() -> Iterator[Any]:
        trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is None:
            return
        for container in dict(trees.get_obj(trees.local, "tree_manager_containers")).values():
            if container.tree_manager is not None:
                yield container.tree_manager
