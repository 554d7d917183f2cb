"""Observation of the graphs that dynamo passes to a compiler.

Compiled code runs without the hooks, so its contents can be read only during compilation.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from autotune.trial.hooks.model.number_formats import in_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class Graphs:
    """Notifies observers of each graph of training code, before it is compiled.

    An observer is called with the names of the functions in the graph and its inner graphs (checkpointed
    parts).
    """

    def __init__(self, state: RuntimeState, undo: Undo, hooks: AfterImport) -> None:
        self._state = state
        self._undo = undo
        self._hooks = hooks
        self._torch: Any = None
        self._observers: list[Callable[[list[str]], None]] = []
        self.count = 0
        self.formats: Counter[str] = Counter()
        """Number of elements produced by matrix products in these graphs, by format."""

    def watch(self, observer: Callable[[list[str]], None]) -> None:
        """Add an observer."""
        self._observers.append(observer)

    def install(self, torch: Any) -> None:
        """Register a callback for dynamo's import; import nothing."""
        self._torch = torch
        self._hooks.on("torch._dynamo.output_graph", self._arm)

    def _arm(self, module: Any) -> None:
        try:
            self._wrap(module.OutputGraph)
        except Exception as error:
            self._state.faults.note("graphs", error)

    def _wrap(self, cls: Any) -> None:
        original = cls.call_user_compiler

        @functools.wraps(original)
        def call_user_compiler(this: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
            if self._state.active and self._torch.is_grad_enabled():
                try:
                    self._notify(graph)
                except Exception as error:
                    self._state.faults.note("graphs", error)
            return original(this, graph, *args, **kwargs)

        self._undo.assign(cls, "call_user_compiler", call_user_compiler)

    def _notify(self, graph: Any) -> None:
        self.count += 1
        try:
            self.formats += in_compiled(graph)
        except Exception as error:
            self._state.faults.note("formats", error)
        names = list(_called(graph))
        for observer in self._observers:
            observer(names)


def _called(module: Any) -> Iterator[str]:
    for inner in module.modules():
        for node in getattr(getattr(inner, "graph", None), "nodes", ()):
            if node.op == "call_function":
                yield str(getattr(node.target, "__name__", node.target))
