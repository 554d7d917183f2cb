"""State of the process itself, read from the system: variables, libraries, memory."""

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

_NAMED = {"libjemalloc": "jemalloc", "libtcmalloc": "tcmalloc", "libc.": "glibc", "libc-": "glibc"}
_OPENMP = {"libgomp": "gnu", "libiomp5": "intel", "libomp": "llvm"}
_HUGE_FLAG = "hg"
_PROBE_BYTES = 64 << 20
_THREADS = "OMP_NUM_THREADS"


class TrainingProcess:
    """Implements `ProcessHook`."""

    def __init__(self) -> None:
        self._at_start = dict(os.environ)
        self._at_import: dict[str, str] = {}
        self._first: tuple[str, ...] = ()
        self._openmp = ""
        self.sets_threads = False
        """The script called `torch.set_num_threads`, while no variable sets the number."""

    def torch_imported(self) -> None:
        """Store the variables that the libraries have just read, and their values before."""
        self._at_import = dict(os.environ)
        try:
            self._first = _with_an_openmp_before_torch()
        except Exception:
            # Inspecting foreign modules can raise any error.
            self._first = ()

    def watch_threads(self, torch: Any, state: RuntimeState, undo: Undo) -> None:
        """Detect from now on whether the script sets the number of threads itself."""
        original = torch.set_num_threads

        @functools.wraps(original)
        def set_num_threads(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            frame = caller(1)
            if state.here() and frame is not None and not is_ours(frame.f_code.co_filename):
                sets = _THREADS in frame.f_code.co_consts
                self.sets_threads = self.sets_threads or not sets
            return result

        undo.assign(torch, "set_num_threads", set_num_threads)

    def variable(self, name: str) -> str:
        """Return an environment variable as of the import of torch; empty if unset."""
        return self._at_import.get(name, "")

    def changed(self) -> tuple[str, ...] | None:
        """Return the variables changed between the start and the import of torch; None before the import."""
        before, then = self._at_start, self._at_import
        if not then:
            return None
        return tuple(sorted(name for name in {*before, *then} if before.get(name) != then.get(name)))

    def loaded_first(self) -> tuple[str, ...]:
        """Return the packages loaded before torch, if another one than torch has loaded an OpenMP."""
        return self._first

    def malloc(self) -> str:
        """Return the process's `malloc`: ``glibc``, ``jemalloc``, ``tcmalloc``; empty if unknown."""
        return self._malloc

    @functools.cached_property
    def _malloc(self) -> str:
        found = _word(_library_of("malloc"), _NAMED)
        if found:
            return found
        # A program at a fixed address resolves to its own table entry: use the lookup order.
        mapped = [_word(path, _NAMED) for path in _mapped_files()]
        return next((word for word in ("jemalloc", "tcmalloc", "glibc") if word in mapped), "")

    def huge_pages(self) -> bool:
        """Return whether a large memory block is marked for transparent huge pages on allocation."""
        return self._huge_pages

    @functools.cached_property
    def _huge_pages(self) -> bool:
        try:
            library = ctypes.CDLL(None)
            library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
            library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
            # Allocated and freed untouched: it costs only address space.
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
        """Return torch's OpenMP: ``gnu``, ``intel``, ``llvm``; empty if unknown."""
        if self._at_import and not self._openmp:
            self._openmp = _loaded_openmp()
        return self._openmp

    def blocktime_ms(self) -> int | None:
        """Return the spin time of threads in Intel's or LLVM's OpenMP; None for another one."""
        try:
            return int(ctypes.CDLL(None).kmp_get_blocktime())
        except (AttributeError, OSError):
            return None


def _with_an_openmp_before_torch() -> tuple[str, ...]:
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    # torch always loads numpy, which has no OpenMP.
    known = {"numpy", *getattr(sys, "stdlib_module_names", ())}
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        if name == "torch":
            break
        if name.partition(".")[0] not in known and str(getattr(module, "__file__", "")).endswith(suffixes):
            found.add(name.partition(".")[0])
    if not found or len({path for path in _mapped_files() if _word(path, _OPENMP)}) < 2:
        return ()
    return tuple(sorted(found))


def _word(path: str, words: dict[str, str]) -> str:
    name = os.path.basename(path)
    return next((word for begin, word in words.items() if name.startswith(begin)), "")


def _loaded_openmp() -> str:
    path = _library_of("GOMP_parallel") or _library_of("__kmpc_fork_call")
    if path:
        return _word(path, _OPENMP)
    words = {word for path in _mapped_files() if (word := _word(path, _OPENMP))}
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
