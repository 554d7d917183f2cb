"""Objects of the script's, which may answer any question with any error. Standard library only."""

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
"""So many members of a list or of a mapping are looked at."""


def attribute_of(item: Any, name: str) -> Any:
    """An attribute, None where there is none or the object does not say."""
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def held_by(item: Any) -> dict[str, Any]:
    """What an object of the script's holds in itself; some answer questions about it with any error.

    A `__getattribute__` of its own is passed by: it may load what has been put off until now.
    """
    try:
        return dict(object.__getattribute__(item, "__dict__"))
    except Exception:
        return {}


def function_of(member: Any) -> FunctionType | None:
    """The function of a member of a class, however it is decorated; None for anything else."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    elif isinstance(member, (functools.cached_property, functools.partialmethod)):
        member = member.func
    return member if isinstance(member, FunctionType) else None


def locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's variables; the frame and the script's own `locals()` stay as they are.

    Before Python 3.13 a function has one dictionary for all who ask: `locals()` of the script is that
    one, and would be filled with later variables. Such a function has none here. A frame also keeps what
    it has handed over, which may be a whole graph, so it is emptied again.
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
    """What the names in a frame stand for; of a module its namespace itself."""
    space = frame.f_globals
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    return space if not is_function and frame.f_locals is space else ChainMap(locals_of(frame), space)


def length_of(sized: Any, default: Any) -> Any:
    """How long it is, or the default where it does not say."""
    try:
        return len(sized)
    except Exception:
        return default
