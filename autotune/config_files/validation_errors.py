"""Messages for invalid values of a file, for its writer in place of the validator's. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_WANTED: Final[Mapping[str, str]] = {
    "missing": "it is missing",
    "string": "text is wanted",
    "int": "a whole number is wanted",
    "float": "a number is wanted",
    "bool": "expected true or false",
    "list": "a list is wanted",
    "tuple": "a list is wanted",
    "dict": "expected a mapping: key: value",
    "model": "expected a mapping: key: value",
}
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("gt", "more than {} is wanted"),
    "greater_than_equal": ("ge", "at least {} is wanted"),
    "less_than": ("lt", "less than {} is wanted"),
    "less_than_equal": ("le", "at most {} is wanted"),
}


def wanted(fault: Mapping[str, Any]) -> str:
    """Return the requirement of one validator error.

    Args:
        fault: As pydantic lists it: ``type``, ``msg``, ``ctx``.
    """
    kind, context = str(fault["type"]), fault.get("ctx") or {}
    if choices := choices_of(fault):
        return f"one of {', '.join(choices)} is wanted"
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        return text.format(context.get(name))
    # Its kinds are called string_type, int_parsing, model_attributes_type and the like.
    known = _WANTED.get(kind) or _WANTED.get(kind.partition("_")[0])
    return known or str(fault["msg"]).removeprefix("Value error, ")


def choices_of(fault: Mapping[str, Any]) -> list[str]:
    """Return the permitted words of a value; empty for any other error."""
    if fault["type"] not in ("literal_error", "enum"):
        return []
    return re.findall(r"'([^']*)'", str((fault.get("ctx") or {}).get("expected", "")))
