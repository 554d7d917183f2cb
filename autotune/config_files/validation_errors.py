"""Messages for invalid values of a file, for its writer in place of the validator's. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_WANTED: Final[Mapping[str, str]] = {
    "missing": "it is missing",
    "string": "expected text",
    "int": "expected a whole number",
    "float": "expected a number",
    "bool": "expected true or false",
    "list": "expected a list",
    "tuple": "expected a list",
    "dict": "expected a mapping: key: value",
    "model": "expected a mapping: key: value",
}
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
}


def wanted(fault: Mapping[str, Any]) -> str:
    """Return the requirement of one validator error.

    Args:
        fault: As pydantic lists it: ``type``, ``msg``, ``ctx``.
    """
    kind, context = str(fault["type"]), fault.get("ctx") or {}
    if choices := choices_of(fault):
        return f"expected one of {', '.join(choices)}"
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
