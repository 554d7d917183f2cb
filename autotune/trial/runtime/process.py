"""State of the training process: environment variables, allocator, OpenMP runtime, huge pages."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
import sys
from typing import TYPE_CHECKING, Any

from autotune.trial.runtime.state import caller, is_ours

if TYPE_CHECKING:
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_MALLOC_BY_PREFIX = {"libjemalloc": "jemalloc", "libtcmalloc": "tcmalloc", "libc.": "glibc", "libc-": "glibc"}
_OPENMP_BY_PREFIX = {"libgomp": "gnu", "libiomp5": "intel", "libomp": "llvm"}
_HUGE_FLAG = "hg"
"""In VmFlags: the mapping is marked by MADV_HUGEPAGE (proc(5))."""
_PROBE_BYTES = 64 << 20
"""So large that malloc maps it by itself."""
_THREADS_VARIABLE = "OMP_NUM_THREADS"


class TrainingProcess:
    """Implements `ProcessHook`, and records what happened before and during the import of torch."""

    def __init__(self) -> None:
        self._at_start = dict(os.environ)
        self._at_import: dict[str, str] = {}
        self._native_before_torch: tuple[str, ...] = ()
        self._openmp = ""
        self.sets_threads = False
        """The script called `torch.set_num_threads` in a function that does not mention OMP_NUM_THREADS."""

    def torch_imported(self) -> None:
        """Record the variables that libraries have just read, and packages with native code before torch."""
        self._at_import = dict(os.environ)
        try:
            self._native_before_torch = _native_packages_before_torch()
        except Exception:
            # Inspecting foreign modules can raise any error.
            self._native_before_torch = ()

    def watch_threads(self, torch: Any, state: RuntimeState, undo: Undo) -> None:
        """Wrap `torch.set_num_threads`, to notice calls of the script."""
        original = torch.set_num_threads

        @functools.wraps(original)
        def set_num_threads(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            frame = caller(1)
            # A function that carries the variable out by this call does not choose a number itself.
            if (
                state.here()
                and frame is not None
                and not is_ours(frame.f_code.co_filename)
                and _THREADS_VARIABLE not in frame.f_code.co_consts
            ):
                self.sets_threads = True
            return result

        undo.assign(torch, "set_num_threads", set_num_threads)

    def variable(self, name: str) -> str:
        """Return an environment variable as of the import of torch; empty if unset."""
        return self._at_import.get(name, "")

    def changed(self) -> tuple[str, ...] | None:
        """Return the variables changed between the start and the import of torch; None before the import."""
        before, after = self._at_start, self._at_import
        if not after:
            return None
        return tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))

    def loaded_first(self) -> tuple[str, ...]:
        """Return packages with native code loaded before torch if several OpenMP are loaded; else nothing."""
        return self._native_before_torch

    def malloc(self) -> str:
        """Return the process's `malloc`: ``glibc``, ``jemalloc``, ``tcmalloc``; empty if unknown."""
        return self._malloc

    @functools.cached_property
    def _malloc(self) -> str:
        found = _name_by_prefix(_library_of("malloc"), _MALLOC_BY_PREFIX)
        if found:
            return found
        # In a program at a fixed address the symbol resolves to the program's own linkage table.
        mapped = [_name_by_prefix(path, _MALLOC_BY_PREFIX) for path in _mapped_files()]
        return next((word for word in ("jemalloc", "tcmalloc", "glibc") if word in mapped), "")

    def huge_pages(self) -> bool:
        """Return whether malloc marks large blocks for transparent huge pages."""
        return self._huge_pages

    @functools.cached_property
    def _huge_pages(self) -> bool:
        try:
            library = ctypes.CDLL(None)
            library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
            library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
            # The block is never touched, so it takes no memory.
            address = library.malloc(_PROBE_BYTES)
            if not address:
                return False
            try:
                return _HUGE_FLAG in _flags_at(address + _PROBE_BYTES // 2)
            finally:
                library.free(address)
        except (AttributeError, OSError, ValueError):
            return False

    def openmp(self) -> str:
        """Return the OpenMP runtime of torch: ``gnu``, ``intel``, ``llvm``; empty if unknown."""
        if self._at_import and not self._openmp:
            self._openmp = _loaded_openmp()
        return self._openmp

    def blocktime_ms(self) -> int | None:
        """Return for how many ms idle threads spin, by Intel's or LLVM's OpenMP; None for other ones."""
        try:
            return int(ctypes.CDLL(None).kmp_get_blocktime())
        except (AttributeError, OSError):
            return None


def _native_packages_before_torch() -> tuple[str, ...]:
    """Return them if more than one OpenMP is loaded; else nothing."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    # numpy has no OpenMP, and torch imports it in any case.
    known = {"numpy", *getattr(sys, "stdlib_module_names", ())}
    found: set[str] = set()
    # In the order of imports.
    for name, module in list(sys.modules.items()):
        if name == "torch":
            break
        if name.partition(".")[0] not in known and str(getattr(module, "__file__", "")).endswith(suffixes):
            found.add(name.partition(".")[0])
    if not found or len({path for path in _mapped_files() if _name_by_prefix(path, _OPENMP_BY_PREFIX)}) < 2:
        return ()
    return tuple(sorted(found))


def _name_by_prefix(path: str, names: dict[str, str]) -> str:
    file = os.path.basename(path)
    return next((name for prefix, name in names.items() if file.startswith(prefix)), "")


def _loaded_openmp() -> str:
    path = _library_of("GOMP_parallel") or _library_of("__kmpc_fork_call")
    if path:
        return _name_by_prefix(path, _OPENMP_BY_PREFIX)
    words = {word for path in _mapped_files() if (word := _name_by_prefix(path, _OPENMP_BY_PREFIX))}
    return words.pop() if len(words) == 1 else ""


def _library_of(symbol: str) -> str:
    """Return the file that defines a C symbol of this process; empty if there is none."""
    try:
        function: Any = getattr(ctypes.CDLL(None), symbol)
    except (AttributeError, OSError):
        return ""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    for low, high, path in _mappings():
        if low <= address < high:
            return path
    return ""


def _flags_at(address: int) -> list[str]:
    """Return the kernel's flags of the mapping at an address."""
    inside = False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            first = line.split(None, 1)[0]
            low, dash, high = first.partition("-")
            if dash and not first.endswith(":"):
                inside = int(low, 16) <= address < int(high, 16)
            elif inside and first == "VmFlags:":
                return line.split()[1:]
    return []


def _mapped_files() -> list[str]:
    return list(dict.fromkeys(path for _, _, path in _mappings() if path.startswith("/")))


def _mappings() -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split(None, 5)
                low, _, high = words[0].partition("-")
                found.append((int(low, 16), int(high, 16), words[5].strip() if len(words) > 5 else ""))
    except OSError:
        return []
    return found
