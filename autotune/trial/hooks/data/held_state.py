"""State that a fetch changes: generators, positions, counters and containers in a loader's parts.

A snapshot gives a token to each piece of state reachable from the roots; two snapshots around a fetch show
its changes. The global generators of Python, NumPy and PyTorch are left out: a loader seeds them in each
worker, and `autotune.trial.hooks.model.rng_usage` observes them.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dis
import io
import itertools
import mmap
import operator
import random
import sys
import zlib
from collections import deque
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.trial.hooks.data.object_walk import Node, Walk, is_opaque_iterator
from autotune.trial.records.objects import CachedFunction, attribute_of, held_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

GENERATOR: Final = "generator"
CURSOR: Final = "cursor"
VALUE: Final = "value"
CONTAINER: Final = "container"
ARRAY: Final = "array"
OBJECT: Final = "object"
_KINDS: Final = (GENERATOR, CURSOR, VALUE, CONTAINER, ARRAY, OBJECT)
"""Order of reporting if a fetch changes several kinds."""
SEQUENTIAL: Final = frozenset({GENERATOR, CURSOR})
"""Each fetch takes the next item, so this is never a cache, even if a repeated fetch is equal."""

_MOST_TEXT: Final = 256
_MOST_NUMBERS: Final = 4096
_ARRAY_BYTES: Final = 8 << 20
_ALL_BYTES: Final = 16 << 20
"""Summed at about 1 GB/s, so that arrays take up to 20 ms of a snapshot; larger ones are left out."""
_WORDS: Final = {
    GENERATOR: "draws from its own generator",
    CURSOR: "goes on from where its last fetch ended",
    VALUE: "changes what it holds",
    CONTAINER: "collects what it has fetched",
    ARRAY: "writes into what it holds",
    OBJECT: "changes what it holds",
}


class Piece(NamedTuple):
    """One piece of state and its location."""

    kind: str
    token: Any
    node: Node


class StateSnapshot:
    """The state below some roots at one moment.

    Args:
        roots: ``dataset``, ``collate_fn`` -> object.
        torch: The module.
    """

    def __init__(self, roots: Mapping[str, Any], torch: Any) -> None:
        walk = Walk(roots)
        self.codes: list[CodeType] = walk.codes
        self.pieces: dict[str, Piece] = {}
        tokens = _Tokens(torch)
        for node in walk.nodes:
            found = tokens.of(node.value)
            if found is not None:
                self.pieces.setdefault(node.path, Piece(*found, node))

    def moved_since(self, before: StateSnapshot) -> list[Piece]:
        """Return the pieces in both snapshots that differ, sorted by kind."""
        moved = [
            piece
            for path, piece in self.pieces.items()
            if (old := before.pieces.get(path)) is not None and old[:2] != piece[:2]
        ]
        return sorted(moved, key=lambda piece: _KINDS.index(piece.kind))

    def tokens(self, paths: Sequence[str]) -> list[Any]:
        """Return the tokens of some pieces, for comparison with another process."""
        return [repr(self.pieces[path].token) for path in paths if path in self.pieces]


class _Tokens:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._numpy: Any = sys.modules.get("numpy")
        self._left_bytes = _ALL_BYTES
        self._global = {id(attribute_of(random, "_inst")), id(attribute_of(torch, "default_generator"))}
        legacy = sys.modules.get("numpy.random.mtrand")
        shared = attribute_of(legacy, "_rand")
        self._global |= {id(shared), id(attribute_of(shared, "_bit_generator"))}

    def of(self, value: Any) -> tuple[str, Any] | None:
        """Return kind and token; None for an object without readable state of its own."""
        try:
            return self._of(value)
        except Exception:
            return None

    def _of(self, value: Any) -> tuple[str, Any] | None:
        kind = type(value)
        if value is None or kind in (bool, int, float, complex):
            return VALUE, repr(value)
        if kind in (str, bytes):
            return VALUE, value if len(value) <= _MOST_TEXT else (len(value), value[:64], value[-64:])
        if id(value) in self._global:
            return None
        if issubclass(kind, (list, tuple, deque, set, dict)):
            return CONTAINER, (len(value), _content(value))
        if issubclass(kind, CachedFunction):
            return CONTAINER, value.cache_info().misses
        generator = self._generator(value)
        if generator is not None:
            return GENERATOR, generator
        if issubclass(kind, self._torch.Tensor):
            return ARRAY, (tuple(value.shape), value._version, self._sum_of_tensor(value))
        if self._numpy is not None and issubclass(kind, self._numpy.ndarray):
            return ARRAY, (value.shape, self._sum_of_array(value))
        if self._numpy is not None and issubclass(kind, self._numpy.generic):
            return VALUE, repr(value)
        if issubclass(kind, (io.BytesIO, io.StringIO, mmap.mmap)):
            return CURSOR, value.tell()
        if issubclass(kind, itertools.count):
            return CURSOR, repr(value)
        if issubclass(kind, GeneratorType):
            frame = value.gi_frame
            return CURSOR, None if frame is None else frame.f_lasti
        if is_opaque_iterator(value):
            return CURSOR, operator.length_hint(value, -1)
        return OBJECT, (kind.__qualname__, len(held_by(value)))

    def _generator(self, value: Any) -> Any:
        kind = type(value)
        if issubclass(kind, random.Random):
            return hash(value.getstate())
        if issubclass(kind, self._torch.Generator):
            state = value.get_state() if value.device.type == "cpu" else None
            return None if state is None else zlib.crc32(bytes(state.tolist()))
        made = sys.modules.get("numpy.random")
        if made is None:
            return None
        if issubclass(kind, made.RandomState):
            return _digest(value.get_state(legacy=False))
        if issubclass(kind, made.Generator):
            return None if id(value.bit_generator) in self._global else _digest(value.bit_generator.state)
        return _digest(value.state) if issubclass(kind, made.BitGenerator) else None

    def _sum_of_tensor(self, tensor: Any) -> int:
        size = tensor.numel() * tensor.element_size()
        if tensor.device.type != "cpu" or not self._takes(size) or not tensor.is_contiguous():
            return 0
        try:
            return zlib.crc32(memoryview(tensor.detach().reshape(-1).view(self._torch.uint8).numpy()))
        except (RuntimeError, TypeError, ValueError):  # a format without raw bytes; its version is used
            return 0

    def _sum_of_array(self, array: Any) -> int:
        mapped = isinstance(array, self._numpy.memmap) or isinstance(array.base, mmap.mmap)
        if mapped or array.dtype.hasobject or not array.flags.c_contiguous or not self._takes(array.nbytes):
            return 0
        return zlib.crc32(memoryview(array).cast("B"))

    def _takes(self, size: int) -> bool:
        if not 0 < size <= min(_ARRAY_BYTES, self._left_bytes):
            return False
        self._left_bytes -= size
        return True


def _content(value: Any) -> int:
    """Return a digest of plain numbers in order, or of keys in any order, as caches may reorder them."""
    if isinstance(value, tuple) or len(value) > _MOST_NUMBERS:
        return 0
    in_order = isinstance(value, (list, deque))
    kinds = (bool, int, float) if in_order else (bool, int, float, str, bytes)
    items = tuple(value)
    return hash(items if in_order else frozenset(items)) if all(type(i) in kinds for i in items) else 0


def _digest(state: Any) -> int:
    """Return a digest of a NumPy generator's state, a dictionary with arrays."""
    if isinstance(state, dict):
        return hash(tuple((name, _digest(item)) for name, item in sorted(state.items())))
    return zlib.crc32(state.tobytes()) if hasattr(state, "tobytes") else hash(state)


# In words -----------------------------------------------------------------------------------


def described(piece: Piece, codes: Sequence[CodeType], place: Callable[[str, int], str]) -> str:
    """Return ``your dataset draws from its own generator (rng) at data.py:31``: the start of a sentence.

    Args:
        piece: The changed piece.
        codes: Functions that may have changed it.
        place: Formats a file and a line.
    """
    node = piece.node
    name = node.name or _last_name(node.path)
    where = _place_of(name, codes, place)
    named = f" ({name})" if name != node.root else ""
    return f"your {_owner(node)} {_WORDS[piece.kind]}{named}{f' at {where}' if where else ''}"


def _owner(node: Node) -> str:
    if "transform" in node.path.lower():
        return "transform"
    return {"collate_fn": "collate function", "sampler": "sampler"}.get(node.root, "dataset")


def _last_name(path: str) -> str:
    """Return ``made`` for ``dataset.made['a'][0]``."""
    return path.partition("[")[0].rpartition(".")[2].removesuffix("()")


def _place_of(name: str, codes: Sequence[CodeType], place: Callable[[str, int], str]) -> str:
    """Return where a function of the user names an attribute or a global; empty if none does."""
    found = ""
    for code in codes:
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            # Python 3.13 stores the number elsewhere, and a flag in its old place.
            line = getattr(instruction, "line_number", instruction.starts_line) or line
            if instruction.argval != name or "NAME" in instruction.opname or "CONST" in instruction.opname:
                continue
            if instruction.opname.startswith("STORE"):
                return place(code.co_filename, line)
            found = found or place(code.co_filename, line)
    return found
