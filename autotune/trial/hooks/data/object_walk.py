"""Bounded traversal of the objects reachable from a dataset, a collate function or a sampler.

It follows attributes, slots, and items of dictionaries, lists, tuples and deques (the first few and the
last). It follows closures, partial functions, running generators and iterators. Of the user's functions it
follows the globals and class attributes that they name.

It avoids the script's code: attributes are read from ``__dict__``, and properties are not evaluated.
Overridden methods of containers, and ``__str__`` of keys, may run; their errors are ignored.
"""

# Values have arbitrary types, so pyright reports partly unknown ones after each check.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import sys
import time
import warnings
from collections import deque
from itertools import islice
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.trial.records.objects import (
    WIDE,
    CachedFunction,
    attribute_of,
    function_of,
    held_by,
    locals_of,
)
from autotune.trial.runtime.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_NODES: Final = 4096
_MAX_DEPTH: Final = 8
_TIME_LIMIT_S: Final = 0.02
"""4,096 objects take about 10 ms on an Intel Xeon; slower machines have twice that."""
_NODES_PER_CLOCK_CHECK: Final = 64
_LEAF_TYPES: Final = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    range,
    slice,
    type,
    ModuleType,
)
_CONTAINERS: Final = (dict, list, tuple, deque)
_FUNCTIONS: Final = (FunctionType, MethodType, functools.partial)
_SKIPPED_MODULES: Final = (
    "autotune",
    "logging",
    "threading",
    "_thread",
    "multiprocessing",
    "weakref",
    "concurrent",
)
"""Packages whose objects are not followed: they hold no state of a dataset, or share it by design."""
_NOT_CALLED_BY_FETCH: Final = frozenset({"__init__", "__del__", "__repr__", "__str__"})
"""Methods that are not called while a batch is fetched; the globals that they use are not followed."""
_DATAPIPES: Final = "torch.utils.data.datapipes."
"""Start of the modules of datapipes, whose private attributes DataLoader sets in each worker."""


class Node(NamedTuple):
    """One object and the path to it.

    Args:
        path: Path from a root, such as ``dataset.transform.rng``.
        value: The object.
        holder: The object that references it, None for a root.
        name: Attribute, variable or argument that references it; empty for items of containers.
        root: Name of the root that it was reached from.
        depth: Number of references from the root.
    """

    path: str
    value: Any
    holder: Any = None
    name: str = ""
    root: str = ""
    depth: int = 0


class Walk:
    """Breadth-first traversal from some roots.

    `nodes` are the visited objects, roots included; `codes` are those of the user's functions among them.
    The traversal ends without notice at a number of nodes, a depth and a time.

    Args:
        roots: Name -> object.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.nodes: list[Node] = []
        self.codes: list[CodeType] = []
        seen: dict[int, Any] = {}
        deadline_s = time.monotonic() + _TIME_LIMIT_S
        pending = deque(Node(path, value, root=path) for path, value in roots.items())
        while pending and len(self.nodes) < _MAX_NODES:
            node = pending.popleft()
            # Small numbers and interned texts share an id, so each path to one is a node.
            if id(node.value) in seen and not issubclass(type(node.value), _LEAF_TYPES):
                continue
            # Kept alive, as another object could get the id of a freed one.
            seen[id(node.value)] = node.value
            self.nodes.append(node)
            if len(self.nodes) % _NODES_PER_CLOCK_CHECK == 0 and time.monotonic() > deadline_s:
                break
            if node.depth < _MAX_DEPTH:
                # Attribute access on objects may raise any error.
                with contextlib.suppress(Exception):
                    for item in self._children(node):
                        pending.append(item._replace(root=node.root, depth=node.depth + 1))

    def _children(self, node: Node) -> Iterator[Node]:
        # `type`, not `isinstance`, which reads `__class__`; a lazy proxy would create its target for it.
        value, kind = node.value, type(node.value)
        if issubclass(kind, _LEAF_TYPES) or _is_skipped(kind):
            return
        if issubclass(kind, _FUNCTIONS):
            yield from self._children_of_function(node)
        elif issubclass(kind, dict):
            for key, item in list(islice(value.items(), WIDE)):
                yield Node(f"{node.path}[{str(key)[:20]!r}]", item, value)
        elif issubclass(kind, (list, tuple, deque)):
            for place in _sampled_indices(len(value)):
                yield Node(f"{node.path}[{place}]", value[place], value)
        # Subclasses of containers may have attributes as well.
        if kind in _CONTAINERS:
            return
        if issubclass(kind, GeneratorType):
            frame = value.gi_frame
            for name, item in ({} if frame is None else locals_of(frame)).items():
                yield Node(f"{node.path}.{name}", item, value, name)
        elif is_opaque_iterator(value):
            for place, item in enumerate(_iterator_parts(value)):
                yield Node(f"{node.path}[{place}]", item, value)
        elif not issubclass(kind, _FUNCTIONS):
            yield from self._children_of_object(node)

    def _children_of_object(self, node: Node) -> Iterator[Node]:
        held = held_by(node.value)
        if type(node.value).__module__.startswith(_DATAPIPES):
            held = {name: item for name, item in held.items() if not name.startswith("_")}
        for cls in type(node.value).__mro__:
            slots = vars(cls).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__"):
                    held.setdefault(name, attribute_of(node.value, name))
        for name, item in held.items():
            if not str(name).startswith("_autotune"):
                yield Node(f"{node.path}.{name}", item, node.value, name)
        for cls in type(node.value).__mro__:
            if not _is_user_class(cls):
                continue
            for name, item in list(vars(cls).items()):
                function = function_of(item)
                if isinstance(item, CachedFunction):
                    yield Node(f"{node.path}.{name}", item, node.value, name)
                if function is not None and name not in _NOT_CALLED_BY_FETCH:
                    yield Node(f"{node.path}.{name}()", function, node.value, name)
                elif function is None and not name.startswith("__") and name not in held:
                    yield Node(f"{node.path}.{name}", item, node.value, name)

    def _children_of_function(self, node: Node) -> Iterator[Node]:
        value: Any = node.value
        if isinstance(value, MethodType):
            yield Node(node.path, value.__self__, value, node.name)
            yield Node(f"{node.path}()", value.__func__, value, node.name)
            return
        if isinstance(value, functools.partial):
            yield Node(f"{node.path}()", value.func, value, node.name)
            named = {**{str(n): item for n, item in enumerate(value.args)}, **value.keywords}
            for name, item in named.items():
                yield Node(f"{node.path}.{name}", item, value, name)
            return
        code = value.__code__
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield Node(f"{node.path}.{name}", cell.cell_contents, value, name)
            except ValueError:  # not bound yet
                continue
        for name, item in [*held_by(value).items(), *(value.__kwdefaults__ or {}).items()]:
            yield Node(f"{node.path}.{name}", item, value, name)
        for place, item in enumerate(value.__defaults__ or ()):
            yield Node(f"{node.path}.default{place}", item, value, "")
        if not is_user_file(code.co_filename):
            return
        self.codes.append(code)
        names = list(_names_in(code))
        for name in names:
            item = value.__globals__.get(name)
            if isinstance(item, ModuleType):
                if is_user_file(str(attribute_of(item, "__file__") or "<")):
                    for inner in names:
                        if inner in vars(item):
                            yield Node(f"{name}.{inner}", vars(item)[inner], item, inner)
            elif isinstance(item, type):
                if _is_user_class(item):
                    for inner, held in list(vars(item).items()):
                        if not inner.startswith("__") and function_of(held) is None:
                            yield Node(f"{name}.{inner}", held, item, inner)
            elif name in value.__globals__:
                yield Node(name, item, value, name)


def _is_skipped(kind: type) -> bool:
    module = str(attribute_of(kind, "__module__"))
    if module.partition(".")[0] in _SKIPPED_MODULES:
        return True
    # The dataset, the sampler and the collate function of a loader are roots of their own.
    return module == "torch.utils.data.dataloader" and kind.__name__ == "DataLoader"


def _is_user_class(cls: type) -> bool:
    module = sys.modules.get(str(attribute_of(cls, "__module__")))
    return is_user_file(str(attribute_of(module, "__file__") or "<"))


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield names of globals and attributes in a function and its nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _sampled_indices(length: int) -> Iterator[int]:
    """Yield the first `WIDE` indices of a sequence, and the last one."""
    yield from range(min(length, WIDE))
    if length > WIDE:
        yield length - 1


def is_opaque_iterator(value: Any) -> bool:
    """Return whether an iterator is implemented in C, without attributes to follow."""
    return hasattr(type(value), "__next__") and not hasattr(value, "__dict__")


def _iterator_parts(iterator: Any) -> list[Any]:
    """Return the objects inside an iterator: arguments of ``__reduce__`` if built in, else referents."""
    # Those of dictionaries and sets hold all remaining items, so long ones are not copied.
    is_short = operator.length_hint(iterator, 0) <= _MAX_NODES
    if is_short and type(iterator).__module__ in ("builtins", "itertools"):
        with contextlib.suppress(Exception), warnings.catch_warnings():
            # Python 3.12 deprecates copies of itertools objects.
            warnings.simplefilter("ignore")
            return list(iterator.__reduce__()[1:])
    return gc.get_referents(iterator)
