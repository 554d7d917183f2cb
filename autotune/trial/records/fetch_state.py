"""State read by a fetch: objects reachable from a loader's dataset and functions, by names in their code.

A worker has a copy of this state, made when the worker starts. Standard library only.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import dis
import functools
import zlib
from collections import deque
from itertools import islice
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.records.objects import WIDE, CachedFunction, attribute_of, function_of, held_by
from autotune.trial.records.sample_caches import SampleCaches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_OBJECTS: Final = 512
_MOST_FUNCTIONS: Final = 512
_ARRAY_BYTES: Final = 1 << 20
"""Largest array that is compared by its values; a checksum takes 1 ms per MB."""
_ENTRIES: Final = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "__call__"})
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_SHARED: Final = frozenset({"multiprocessing", "ctypes", "threading", "_thread", "logging"})
"""Packages whose objects are shared by design, or are no state of a fetch."""

Key = tuple[int, str]
"""Identity of an object, namespace or cell, and a name in it; empty name: its content."""


class FetchReads:
    """Objects and names that a fetch can reach.

    Args:
        roots: The dataset first, then the collate function and the worker initialization.
    """

    def __init__(self, *roots: Any) -> None:
        self.objects: dict[int, Any] = {}
        """By identity; referenced, so that ids are not reused."""
        self.names: set[str] = set()
        """Attributes and globals used by the code of a fetch."""
        self.globals: dict[Key, dict[str, Any]] = {}
        """Names of plain values in a module's namespace -> that namespace."""
        self.cells: dict[Key, CellType] = {}
        """Free variables of functions: identity of their code and name -> the cell."""
        self._caches = SampleCaches(roots[0] if roots else None)
        self._methods: dict[str, list[FunctionType]] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._taken: set[int] = set()
        self._pending: list[Any] = [root for root in roots if root is not None]
        while self._pending and len(self.objects) < _MOST_OBJECTS:
            # Attribute access on the script's objects may raise any error.
            with contextlib.suppress(Exception):
                self._add(self._pending.pop())

    def reaches(self, item: Any, name: str) -> bool:
        """Return whether a fetch reads this attribute of an object, or a container's content (empty name).

        Attributes of caches do not count.
        """
        if id(item) not in self.objects or self.objects[id(item)] is not item:
            return False
        return name in self.names if name else not self._caches.holds(item)

    def changed(self, before: Mapping[Key, Any], now: Mapping[Key, Any]) -> Key | None:
        """Return the difference between two snapshots, without caches.

        Missing entries in either of them do not count.
        """
        differ = (key for key, value in before.items() if now.get(key, value) != value)
        return next((key for key in differ if not self._is_cache(key)), None)

    def _is_cache(self, key: Key) -> bool:
        return not key[1] and self._caches.holds(self.objects[key[0]])

    def snapshot(self) -> dict[Key, Any]:
        """Return the current state: numbers and strings by value, the rest by identity.

        None is left out, as such an attribute may be created on first use.
        """
        found: dict[Key, Any] = {}
        for key, item in self.objects.items():
            if isinstance(item, _CONTAINERS):
                found[key, ""] = (len(item), *(_mark(v) for v in _first(item)))
                continue
            held = vars(item) if isinstance(item, type) else held_by(item)
            for name in self.names & held.keys():
                if held[name] is not None and not isinstance(held[name], (FunctionType, property)):
                    found[key, name] = _mark(held[name])
        for (key, name), space in self.globals.items():
            if space.get(name) is not None:
                found[key, name] = _mark(space[name])
        for (key, name), cell in self.cells.items():
            try:
                found[key, name] = _mark(cell.cell_contents)
            except ValueError:  # empty
                continue
        return found

    def text(self, key: Key) -> str:
        """Return ``Noise.strength``: class and attribute, or a plain name."""
        item = self.objects.get(key[0])
        if item is None or key in self.globals or key in self.cells:
            return key[1]
        if not key[1]:
            return self._name_of(item) or f"a {type(item).__name__}"
        return f"{_kind_of(item).__name__}.{key[1]}"

    def _name_of(self, container: Any) -> str:
        """Return the attribute or global that holds a container; empty if none does."""
        for (key, name), space in self.globals.items():
            if space.get(name) is container:
                return self.text((key, name))
        for item in self.objects.values():
            for name, value in held_by(item).items():
                if value is container and not isinstance(item, ModuleType):
                    return f"{_kind_of(item).__name__}.{name}"
        return ""

    # The walk

    def _add(self, item: Any) -> None:
        if isinstance(item, _PLAIN) or id(item) in self.objects or _is_shared(item):
            return
        self.objects[id(item)] = item
        if isinstance(item, ModuleType):
            return
        if isinstance(item, FunctionType):
            self._take(item)
        elif isinstance(item, CachedFunction):
            self._pending.append(function_of(item))
        elif isinstance(item, MethodType):
            self._pending += [item.__self__, item.__func__]
        elif isinstance(item, functools.partial):
            self._pending += [item.func, *item.args, *item.keywords.values()]
        elif isinstance(item, _CONTAINERS):
            self._pending += _first(item)
        elif isinstance(item, type):
            self._add_methods(item)
        elif _leads_on(item):
            self._pending += (kind for kind in type(item).__mro__ if kind is not object)
            for name, value in held_by(item).items():
                self._hold(name, value)

    def _add_methods(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            function = function_of(value)
            if function is not None:
                self._methods.setdefault(name, []).append(function)
                if name in _ENTRIES or name in self.names:
                    self._take(function)
            elif not name.startswith("__"):
                self._hold(name, value)

    def _hold(self, name: str, value: Any) -> None:
        if name in self.names:
            self._pending.append(value)
        else:
            self._waiting.setdefault(name, []).append(value)

    def _take(self, function: FunctionType) -> None:
        """Follow a function that a fetch may call."""
        if id(function) in self._taken or len(self._taken) >= _MOST_FUNCTIONS:
            return
        self._taken.add(id(function))
        self._pending += function.__defaults__ or ()
        self._pending += (function.__kwdefaults__ or {}).values()
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.cells[id(function.__code__), name] = cell
            try:
                self._pending.append(cell.cell_contents)
            except ValueError:  # empty
                continue
        for code in _codes(function.__code__):
            for name in _globals_of(code):
                self._read_global(function.__globals__, name)
            for name in set(code.co_names) - self.names:
                self.names.add(name)
                self._pending += self._waiting.pop(name, ())
                for method in self._methods.get(name, ()):
                    self._take(method)

    def _read_global(self, space: dict[str, Any], name: str) -> None:
        if name not in space:
            return
        value = space[name]
        if not isinstance(value, (FunctionType, type, ModuleType)):
            self.globals[id(space), name] = space
        if not isinstance(value, type):
            self._pending.append(value)


def _kind_of(item: Any) -> type:
    return item if isinstance(item, type) else type(item)


def _leads_on(item: Any) -> bool:
    """Return whether an object's contents are followed: not those of tensors, arrays and models."""
    names = {kind.__name__ for kind in type(item).__mro__}
    return not names & {"Tensor", "ndarray", "Module", "DataFrame", "Series"}


def _is_shared(item: Any) -> bool:
    """Return whether workers share writes to this object, or it is made for use across processes."""
    kind = type(item)
    if str(attribute_of(kind, "__module__")).partition(".")[0] in _SHARED:
        return True
    names = {base.__name__ for base in kind.__mro__}
    if "Tensor" in names:
        return bool(attribute_of(item, "is_cuda") or (attribute_of(item, "is_shared") or bool)())
    # An array that does not own its memory may be a view of shared memory or of a file.
    return "ndarray" in names and attribute_of(item, "base") is not None


def _first(item: Any) -> list[Any]:
    # Copied in one call: another thread of the script may change it.
    return list(islice(item.values() if isinstance(item, dict) else item, WIDE))


def _mark(value: Any) -> Any:
    if type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return repr(value)
    if _is_shared(value):
        return id(value)
    if type(value).__name__ == "ndarray":
        return id(value), _sum_of(value)
    # A tensor has a version counter of its writes.
    return (id(value), version) if type(version := attribute_of(value, "_version")) is int else id(value)


def _sum_of(array: Any) -> int:
    """Return a checksum of a NumPy array, which has no count of its writes; 0 for a large or strided one."""
    if array.nbytes > _ARRAY_BYTES or array.dtype.hasobject or not array.flags.c_contiguous:
        return 0
    return zlib.crc32(array.reshape(-1).view("uint8"))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


@functools.lru_cache(maxsize=512)
def _globals_of(code: CodeType) -> frozenset[str]:
    """Return names that code reads from its module; `co_names` also contains attributes."""
    wanted = ("LOAD_GLOBAL", "LOAD_NAME")
    return frozenset(str(i.argval) for i in dis.get_instructions(code) if i.opname in wanted)
