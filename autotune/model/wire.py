"""Values across a process border or the disk: plain JSON, typed on both sides. Standard library only.

Every dataclass, enum and container of a study crosses through here and nowhere else.
Unknown fields are ignored on reading, so that a newer writer does not break an older reader;
fields are only ever added, with a default.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from autotune.model.config import Config
from autotune.model.measurement import LossTrace

SCHEMA_VERSION = 1

_MODULES = (
    "model.change",
    "model.effect",
    "model.facts",
    "model.measurement",
    "model.objective",
    "model.space",
    "model.study",
    "model.trial",
    "answer.answer",
    "compare.comparison",
    "statistics.intervals",
)

OLD_MEMBERS: Final = {
    ("Stage", "START"): "INITIAL",
    ("Stage", "SENTINEL"): "DRIFT_CHECK",
    ("Stage", "WHY"): "DIAGNOSE",
    ("TrialState", "ASKED"): "WAITING",
    ("TrialState", "TOLD"): "FINISHED",
}
"""(enum, member) as older journals have it -> today's member."""

OLD_FIELDS: Final[Mapping[tuple[str, str], str]] = {
    ("InputFacts", "said"): "batch_size",
    ("InputFacts", "told"): "reported_per_sample",
}
"""(dataclass, field) as older journals have it -> today's field."""

OLD_VALUES: Final = {
    ("samples_source", "told"): "reported",
    ("stage", "start"): "initial",
    ("stage", "sentinel"): "drift",
    ("stage", "why"): "diagnose",
}
"""(key, text) as older journals have it -> today's text."""

OLD_EVENTS: Final = {"asked": "proposed", "told": "finished"}
"""Kind of event as older journals have it -> today's kind."""

T = TypeVar("T")


def to_wire(value: Any) -> Any:
    """JSON-ready form of any core value; dataclasses carry their class name under ``"_"``.

    Raises:
        TypeError: A value that has no place on the wire (a function, say).
    """
    if isinstance(value, Config):
        return dict(value)
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_wire(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"_": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): to_wire(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, LossTrace)):
        return [to_wire(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"_": "float", "v": repr(value)}
    message = f"{type(value).__name__} has no place on the wire"
    raise TypeError(message)


def dumps(value: Any) -> str:
    """Return one line of strict JSON."""
    return json.dumps(to_wire(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def loads(kind: type[T], text: str) -> T:
    """Return the inverse of `dumps` for a value of this type."""
    return from_wire(kind, json.loads(text))


def from_wire(kind: type[T], data: Any) -> T:
    """Rebuild a value of type `kind` from `to_wire`'s form.

    Raises:
        TypeError, KeyError, ValueError: The data is not of that type.
    """
    return typing.cast("T", _read(kind, data))


@functools.cache
def _classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for name in _MODULES:
        module = importlib.import_module(f"autotune.{name}")
        for thing in vars(module).values():
            if isinstance(thing, type) and dataclasses.is_dataclass(thing):
                found[thing.__name__] = thing
    return found


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, data: Any) -> Any:
    if isinstance(data, dict) and data.get("_") == "float":
        return float(data["v"])
    if kind is Any or kind is object:
        return data
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(typing.get_args(kind), data)
    if origin is not None:
        return _read_container(origin, typing.get_args(kind), data)
    if kind is Config:
        return Config(data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[OLD_MEMBERS.get((kind.__name__, str(data)), str(data))]
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    return data


def _read_union(options: tuple[Any, ...], data: Any) -> Any:
    if data is None:
        return None
    if isinstance(data, dict) and "_" in data and data["_"] in _classes():
        return _read_dataclass(_classes()[data["_"]], data)
    plain = [o for o in options if o is not type(None)]
    if len(plain) == 1:
        return _read(plain[0], data)
    return data


def _read_container(origin: Any, arguments: tuple[Any, ...], data: Any) -> Any:
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(arguments[0], item) for item in data)
        return tuple(_read(a, item) for a, item in zip(arguments, data, strict=True))
    if origin is Sequence:
        return tuple(_read(arguments[0], item) for item in data)
    if origin in (list, set, frozenset):
        return origin(_read(arguments[0], item) for item in data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        # JSON has only string keys.
        as_key: Any = int if arguments[0] is int else str
        return {as_key(key): _read(arguments[1], item) for key, item in data.items()}
    return data


def _read_dataclass(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        message = f"a {kind.__name__} was expected, found {type(data).__name__}"
        raise TypeError(message)
    hints = _hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    name, fields = str(kind.__name__), typing.cast("Mapping[str, Any]", data)
    named = {OLD_FIELDS.get((name, key), key): item for key, item in fields.items()}
    return kind(**{key: _read(hints[key], today(key, named[key])) for key in named.keys() & known})


def today(key: str, text: Any) -> Any:
    """Return today's form of a text of an older journal; anything else unchanged."""
    return OLD_VALUES.get((key, text), text) if isinstance(text, str) else text
