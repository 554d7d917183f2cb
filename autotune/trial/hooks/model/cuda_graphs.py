"""What became of the CUDA graphs that a mode of `torch.compile` promises.

Inductor records none where it finds a reason not to (work on the CPU in between, inputs changed in
place), says so in a log and runs the compiled code as in the mode without. Such a run is not what was
asked for.
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
        self._told = False
        self._torch: Any = None

    def install(self, torch: Any) -> None:
        """Once torch is there."""
        self._torch = torch

    def note(self, told: tuple[Any, ...]) -> None:
        """A compile began; newer versions of torch tell what kind it is."""
        self._told = self._told or any(
            getattr(getattr(a, "callback_trigger", None), "name", "") == _RECORDING for a in told
        )

    def missing(self) -> str | None:
        """Why no graph was recorded, as a sentence; None where one was, or where none could be."""
        if self._torch is None or not self._torch.cuda.is_initialized() or self._told:
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
