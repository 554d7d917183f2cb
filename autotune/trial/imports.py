"""Callbacks once a module's body has run, without importing anything the script would not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class AfterImport:
    """A finder in front of all others that finds nothing itself.

    It asks the others for the module and lets the loader they found call back after its body. An
    early import of ours would change the script: variables of the environment that it sets above
    its own ``import torch`` would come too late.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, list[Callable[[Any], None]]] = {}

    def on(self, name: str, callback: Callable[[Any], None]) -> None:
        """Call back with the module once its body has run; at once if it is loaded already."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            callback(module)
            return
        self._wanted.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Take the finder out again."""
        self._wanted.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's question; answered only for awaited modules."""
        if fullname not in self._wanted:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(fullname, path, target)
            if spec is not None:
                self._arm(spec, fullname)
                return spec
        return None

    def _arm(self, spec: ModuleSpec, fullname: str) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Another hook of this kind may have taken the attribute away, or put its own there.
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            for callback in self._wanted.pop(fullname, ()):
                callback(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return
