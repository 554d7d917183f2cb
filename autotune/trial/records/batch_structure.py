"""Number of samples in batches of any structure. Standard library only."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.trial.records.objects import WIDE, attribute_of, held_by, length_of

_LEVELS = 5
How = tuple[str, tuple[Any, ...], int]
"""Kind, path and dimension, as `find_count` returns them."""
_Item = tuple[tuple[Any, ...], Any]
"""Path and value of a part of a batch."""


class AttributeName(str):
    """Name of an attribute, in a path through an object of the script's own class."""

    __slots__ = ()


def find_count(batch: Any, expected: int | None) -> How:
    """Return how to count the samples in batches of this structure.

    Outer lists are searched first, since inner ones belong to single samples. The count is the first
    dimension of a tensor, or the length of a list whose elements are samples. The loader's own batch size
    decides between candidates, including other dimensions.

    Returns:
        (kind, path, dimension), the argument of `count`.
    """
    own = _own_count(batch)
    if own is not None and (expected is None or count(batch, own) == expected):
        return own
    items: list[_Item] = [((), batch)]
    fallback: How | None = None
    for _ in range(_LEVELS):
        items = _without_mappings(items)
        graphs = next((path for path, item in items if _is_graphs(item)), None)
        if graphs is not None:
            return ("graphs", graphs, 0)
        sized = [(path, shape) for path, item in items if (shape := _shape(item))]
        lists = [(path, item) for path, item in items if isinstance(item, (list, tuple)) and item]
        # A top-level list holds the fields of a batch, unless its elements have the form of samples.
        samples = [(path, item) for path, item in lists if path or _are_samples(item, expected)]
        found = None if expected is None else _expected_among(sized, samples, expected)
        if found is not None:
            return found
        if sized:
            fallback = fallback or ("dim", sized[0][0], 0)
        elif samples:
            fallback = fallback or ("len", samples[0][0], 0)
        if fallback is not None and (expected is None or any(path for path, _ in (*sized, *samples))):
            break
        items = [((*path, index), inner) for path, item in lists for index, inner in enumerate(item[:WIDE])]
    if fallback is None and isinstance(batch, (list, tuple)):
        fallback = ("len", (), 0)
    return own or fallback or ("one", (), 0)


def _own_count(batch: Any) -> How | None:
    """Return where a batch class of the script stores its size: an attribute or its length; else None.

    This has priority over its content: the first may be field names, or the neighbours of each node.
    """
    if _shape(batch) is not None or isinstance(batch, (list, tuple, str, bytes, Mapping)):
        return None
    size = attribute_of(batch, "batch_size")
    if type(size) is int and size > 0:
        return ("size", (), 0)
    # The length of a mapping is its number of fields.
    return ("len", (), 0) if not _is_mapping(batch) and length_of(batch, 0) > 0 else None


def is_batch_of_one(item: Any, depth: int = _LEVELS) -> bool:
    """Return whether this has the form of a batch with one sample, not of the sample itself."""
    shape = _shape(item)
    if shape is not None:
        return shape[:1] == (1,)
    if item is None or not depth:
        return item is None
    if _is_graphs(item):
        return int(item.num_graphs) == 1
    if isinstance(item, (list, tuple)):
        if len(item) == 1 and _shape(item[0]) is None:
            return True
        return bool(item) and all(is_batch_of_one(part, depth - 1) for part in item)
    own = _own_count(item)
    if own is not None:
        return count(item, own) == 1
    if _is_mapping(item):
        keys = keys_of(item)
        return bool(keys) and all(is_batch_of_one(item[key], depth - 1) for key in keys)
    shapes = [shape for value in held_by(item).values() if (shape := _shape(value)) is not None]
    return bool(shapes) and all(shape[:1] == (1,) for shape in shapes)


def _expected_among(
    sized: list[tuple[tuple[Any, ...], tuple[int, ...]]], lists: list[_Item], expected: int
) -> How | None:
    for path, shape in sized:
        if shape[0] == expected:
            return ("dim", path, 0)
    for path, item in lists:
        if len(item) == expected:
            return ("len", path, 0)
    for path, item in lists:
        shapes = [_shape(element) for element in item]
        if all(shape and shape[0] == expected for shape in shapes):
            return ("dim", (*path, 0), 0)  # views of all samples, not one sample each
    for path, shape in sized:
        if expected in shape:
            return ("dim", path, shape.index(expected))
    return None


def _are_samples(items: Any, expected: int | None) -> bool:
    """Return whether these are samples of a batch, not its fields: all of one form."""
    shapes = [_shape(item) for item in items]
    if all(shape is not None for shape in shapes):
        alike = len({len(shape) for shape in shapes if shape is not None}) == 1
        return alike and len(items) == expected and not any(s and s[0] == expected for s in shapes)
    if all(isinstance(item, tuple) for item in items):
        return isinstance(items, list) and len({tuple(type(part) for part in item) for item in items}) == 1
    if all(isinstance(item, Mapping) for item in items):
        return True
    return not any(shapes) and not any(isinstance(item, (list, tuple, Mapping)) for item in items)


def _without_mappings(items: list[_Item]) -> list[_Item]:
    """Return the items with mappings replaced by their contents."""
    found: list[_Item] = []
    pending = items[::-1]
    while pending:
        path, item = pending.pop()
        inner: list[_Item] = []
        try:
            if _shape(item) is not None or len(path) >= _LEVELS or _is_graphs(item):
                pass
            elif _is_mapping(item):
                inner = [((*path, key), item[key]) for key in keys_of(item)[:WIDE]]
            elif not path and not isinstance(item, (list, tuple)):
                # A batch of the script's own class; inside another structure it may be one sample.
                inner = [((AttributeName(name),), held) for name, held in list(held_by(item).items())[:WIDE]]
        except Exception:
            inner = []  # an object of the script that only resembles one
        if inner:
            pending += inner[::-1]
        else:
            found.append((path, item))
    return found


def _is_graphs(item: Any) -> bool:
    return isinstance(attribute_of(item, "num_graphs"), int)


def keys_of(item: Any) -> list[Any]:
    """Return the keys of a mapping or a similar object; some have `keys` as a property."""
    keys: Any = item.keys
    if callable(keys):
        keys = keys()
    return list(keys)


def _is_mapping(item: Any) -> bool:
    return isinstance(item, Mapping) or (hasattr(item, "keys") and hasattr(item, "__getitem__"))


def _shape(item: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None for anything else."""
    shape = attribute_of(item, "shape")
    if shape is None or callable(shape):
        return None
    try:
        return tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        return None


def count(batch: Any, how: How) -> int:
    """Return the number of samples in a batch."""
    kind, path, dimension = how
    if kind == "one":
        return 1
    for key in path:
        batch = getattr(batch, key) if isinstance(key, AttributeName) else batch[key]
    if kind == "dim":
        return int(batch.shape[dimension])
    if kind == "len":
        return len(batch)
    return int(batch.batch_size if kind == "size" else batch.num_graphs)
