"""What the process itself is: its variables, its libraries, its memory. Read from the system."""

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
        """The script called `torch.set_num_threads`, where it asks no variable for their number."""

    def torch_imported(self) -> None:
        """Remember the variables that its libraries have read just now, and what was there before them."""
        self._at_import = dict(os.environ)
        try:
            self._first = _with_an_openmp_before_torch()
        except Exception:
            # Other people's modules were looked at.
            self._first = ()

    def watch_threads(self, torch: Any, state: RuntimeState, undo: Undo) -> None:
        """Note from now on whether the script sets the threads of operations itself."""
        original = torch.set_num_threads

        @functools.wraps(original)
        def set_num_threads(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            frame = caller(1)
            if state.here() and frame is not None and not is_ours(frame.f_code.co_filename):
                asks = _THREADS in frame.f_code.co_consts
                self.sets_threads = self.sets_threads or not asks
            return result

        undo.assign(torch, "set_num_threads", set_num_threads)

    def variable(self, name: str) -> str:
        """An environment variable when torch had been imported; empty where it was not set."""
        return self._at_import.get(name, "")

    def changed(self) -> tuple[str, ...] | None:
        """Variables that were changed between the start and the import of torch; None before it."""
        before, then = self._at_start, self._at_import
        if not then:
            return None
        return tuple(sorted(name for name in {*before, *then} if before.get(name) != then.get(name)))

    def loaded_first(self) -> tuple[str, ...]:
        """Packages that were loaded before torch, where not only torch has brought an OpenMP along."""
        return self._first

    def malloc(self) -> str:
        """Whose `malloc` the process uses: ``glibc``, ``jemalloc``, ``tcmalloc``; empty where unknown."""
        return self._malloc

    @functools.cached_property
    def _malloc(self) -> str:
        found = _word(_library_of("malloc"), _NAMED)
        if found:
            return found
        # A program linked at a fixed address answers with its own table entry: take the order of search.
        mapped = [_word(path, _NAMED) for path in _mapped_files()]
        return next((word for word in ("jemalloc", "tcmalloc", "glibc") if word in mapped), "")

    def huge_pages(self) -> bool:
        """A large block of memory is marked for transparent huge pages when it is taken."""
        return self._huge_pages

    @functools.cached_property
    def _huge_pages(self) -> bool:
        try:
            library = ctypes.CDLL(None)
            library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
            library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
            # Taken and given back, never touched: it costs address space alone.
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
        """Whose OpenMP torch uses: ``gnu``, ``intel``, ``llvm``; empty where unknown."""
        if self._at_import and not self._openmp:
            self._openmp = _loaded_openmp()
        return self._openmp

    def blocktime_ms(self) -> int | None:
        """How long a thread of Intel's or LLVM's OpenMP spins; None under another one."""
        try:
            return int(ctypes.CDLL(None).kmp_get_blocktime())
        except (AttributeError, OSError):
            return None


def _with_an_openmp_before_torch() -> tuple[str, ...]:
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    # numpy comes along with torch in any case, and brings none.
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
    """The file that a C symbol of this process comes from; empty where there is none."""
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
    """The kernel's flags of the mapping around an address."""
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
