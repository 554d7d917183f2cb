"""Callbacks once a module's body has run, and the time of imports; imports nothing the script would not."""

from __future__ import annotations

import sys
import threading
import time
from importlib.machinery import ExtensionFileLoader, SourceFileLoader, SourcelessFileLoader
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


_OF_FILES = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader)


class AfterImport:
    """A finder in front of all others that finds nothing itself.

    It asks the others for the module and lets the loader they found call back after its body. An
    early import of ours would change the script: variables of the environment that it sets above
    its own ``import torch`` would come too late.
    """

    _depth: ClassVar[int] = 0
    """Timed imports under way, of all finders: finders that time each other search exponentially often."""

    def __init__(self) -> None:
        self._wanted: dict[str, list[Callable[[Any], None]]] = {}
        self._timed_thread = 0
        self._spent_ns = 0

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

    def start_timing(self) -> None:
        """Add up from now on how long this thread's outermost imports take."""
        self._timed_thread = threading.get_ident()
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop_timing(self) -> int:
        """Stop that; nanoseconds since it was started that were spent in imports."""
        self._timed_thread = 0
        return self._spent_ns

    def remove(self) -> None:
        """Take the finder out again."""
        self._wanted.clear()
        self._timed_thread = 0
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's question; answered only for awaited modules and for timed imports."""
        is_timed = not AfterImport._depth and self._timed_thread == threading.get_ident()
        if fullname not in self._wanted and not is_timed:
            return None
        begin_ns = time.perf_counter_ns() if is_timed else 0
        # A finder that imports something for itself is part of this import.
        AfterImport._depth += is_timed
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec = find(fullname, path, target)
                if spec is not None:
                    self._arm(spec, fullname, begin_ns)
                    return spec
        finally:
            AfterImport._depth -= is_timed
        return None

    def _arm(self, spec: ModuleSpec, fullname: str, begin_ns: int) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        # Other loaders may be shared by many modules, or be classes.
        is_timed = bool(begin_ns) and isinstance(loader, _OF_FILES)
        if execute is None or (fullname not in self._wanted and not is_timed):
            return

        def exec_module(module: ModuleType) -> None:
            AfterImport._depth += is_timed
            try:
                execute(module)
            finally:
                AfterImport._depth -= is_timed
                self._spent_ns += time.perf_counter_ns() - begin_ns if is_timed else 0
            # Another hook of this kind may have taken the attribute away, or put its own there.
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            for callback in self._wanted.pop(fullname, ()):
                callback(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return
