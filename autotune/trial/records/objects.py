"""Safe access to the script's objects, whose methods may raise any error. Standard library only."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import ChainMap
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

WIDE: Final = 16
"""Largest number of members of a list or mapping that are examined."""
CachedFunction: Final = type(functools.lru_cache(len))
"""Type of a function with a cache in C, by `functools.cache` or `functools.lru_cache`."""


def attribute_of(item: Any, name: str) -> Any:
    """Return an attribute; None if it is missing or its access fails."""
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def held_by(item: Any) -> dict[str, Any]:
    """Return an object's own attributes; never raises.

    A custom `__getattribute__` is bypassed: it may trigger lazy loading.
    """
    try:
        return dict(object.__getattribute__(item, "__dict__"))
    except Exception:
        return {}


def function_of(member: Any) -> FunctionType | None:
    """Return the function of a class member, whatever its decorator; None for anything else."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    elif isinstance(member, (functools.cached_property, functools.partialmethod)):
        member = member.func
    if isinstance(member, CachedFunction):
        member = attribute_of(member, "__wrapped__")
    return member if isinstance(member, FunctionType) else None


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's variables, without side effects on the frame or the script's `locals()`.

    Before Python 3.13 a function has a single dictionary: the one that the script's `locals()` returned,
    which would be filled with later variables. Such a function has no copy here. A frame also retains the
    returned dictionary, which may reference a whole graph, so it is cleared.
    """
    code = frame.f_code
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if "locals" in code.co_names:
        return {}
    held = frame.f_locals
    found = dict(held)
    held.clear()
    return found


def names_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the names in a frame; for a module, its namespace itself."""
    space = frame.f_globals
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    return space if not is_function and frame.f_locals is space else ChainMap(locals_of(frame), space)


def length_of(sized: Any, default: Any) -> Any:
    """Return the length, or the default if it cannot be read."""
    try:
        return len(sized)
    except Exception:
        return default
