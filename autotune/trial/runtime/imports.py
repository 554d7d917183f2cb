"""Callbacks after a module's execution, and the time of imports; never imports a module itself."""

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
    """First finder in `sys.meta_path`; it finds no modules itself.

    It delegates to the other finders and wraps the loader that they return, to call back after the module's
    execution. An early import would change the script: environment variables set before its own ``import
    torch`` would come too late.
    """

    _depth: ClassVar[int] = 0
    """Depth of timed imports over all finders; nested timing would search exponentially often.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, list[Callable[[Any], None]]] = {}
        self._timed_thread = 0
        self._spent_ns = 0

    def on(self, name: str, callback: Callable[[Any], None]) -> None:
        """Call back with the module after its execution; at once if it is loaded already."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            callback(module)
            return
        self._wanted.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def start_timing(self) -> None:
        """Sum up the time of this thread's outermost imports from now on."""
        self._timed_thread = threading.get_ident()
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop_timing(self) -> int:
        """Stop timing; return the nanoseconds spent in imports since the start."""
        self._timed_thread = 0
        return self._spent_ns

    def remove(self) -> None:
        """Remove the finder."""
        self._wanted.clear()
        self._timed_thread = 0
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for awaited modules and timed imports; None otherwise."""
        is_timed = not AfterImport._depth and self._timed_thread == threading.get_ident()
        if fullname not in self._wanted and not is_timed:
            return None
        begin_ns = time.perf_counter_ns() if is_timed else 0
        # Imports by a finder itself are part of this import.
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
            # Another hook of this kind may have removed or replaced the attribute.
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            for callback in self._wanted.pop(fullname, ()):
                callback(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return
