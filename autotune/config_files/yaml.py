"""Reader for untrusted YAML: small, flat, without tags, and with line numbers.

A subset of YAML: scalars, lists and mappings with text keys. ``true`` and ``false`` alone are booleans, so
that ``off``, ``on``, ``yes`` and ``no`` stay text; ``1e-3`` is a number; dates stay text. Everything that can
make a small file large is bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import yaml
from yaml.composer import Composer
from yaml.resolver import BaseResolver

from autotune.errors import InvalidSpace, UsageError

MAX_BYTES: Final = 128 << 10
MAX_LINES: Final = 20_000
MAX_DEPTH: Final = 32
MAX_ALIASES: Final = 100
MAX_NODES: Final = 50_000
"""In the text, and after aliases are followed: some hundred aliases can stand for billions of values."""

_INT: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NULL: Final = frozenset({"", "~", "null"})


class Lines(dict[str, Any]):
    """Mapping with the line, from 1, of each of its keys."""

    def __init__(self, values: dict[str, Any], *, lines: dict[str, int], line: int) -> None:
        super().__init__(values)
        self.lines = lines
        self.line = line


class Items(list[Any]):
    """List with the line, from 1, of each of its items."""

    def __init__(self, values: list[Any], *, lines: list[int], line: int) -> None:
        super().__init__(values)
        self.lines = lines
        self.line = line


def load(
    text: str, *, source: str, error: type[UsageError] = InvalidSpace, max_bytes: int = MAX_BYTES
) -> Any:
    """Return the one document in `text` as plain data; mappings are `Lines`, lists are `Items`.

    Args:
        text: Contents of the file.
        source: Name of the file, for messages.
        error: Class of raised errors.
        max_bytes: Limit of the text as UTF-8.

    Raises:
        UsageError: As the class `error`: too large, too deep, too many aliases, a tag, a
            duplicate key, or not YAML.
    """
    if len(text.encode("utf-8", "surrogatepass")) > max_bytes:
        raise error(f"{source} is larger than {max_bytes >> 10} KiB", hint="Such a file has a few kilobytes.")
    if text.count("\n") > MAX_LINES:
        raise error(f"{source} has more than {MAX_LINES} lines")
    try:
        node = _Composer(_checked_events(text, source, error)).get_single_node()
    except yaml.YAMLError as bad:
        raise error(f"{_place(source, bad)}: this is no YAML: {_problem(bad)}") from bad
    return None if node is None else _Building(source, error).value(node, 0)


def scalar(text: str) -> bool | int | float | str | None:
    """Return the value of an unquoted word: ``true``, ``64``, ``1e-3``; everything else is text."""
    if text in ("true", "false"):
        return text == "true"
    if text in _NULL:
        return None
    if _INT.fullmatch(text) and len(text) <= 19:
        return int(text)
    if not _FLOAT.fullmatch(text) or _INT.fullmatch(text):
        return text
    number = float(text)
    return number if math.isfinite(number) else text


def line_at(data: Any, path: Sequence[str | int]) -> int:
    """Return the line of the deepest existing part of a path."""
    lines: list[int] = [getattr(data, "line", 1), *(line for _, line, _ in steps(data, path))]
    return lines[-1]


def steps(data: Any, path: Sequence[str | int]) -> Iterator[tuple[str | int, int, Any]]:
    """Parts of a path that name something in the file, with line and value; others are skipped.

    pydantic's locations hold names of types beside those of keys.
    """
    here = data
    for part in path:
        found = _step(here, part)
        if found is not None:
            line, here = found
            yield part, line, here


def _step(data: Any, part: str | int) -> tuple[int, Any] | None:
    """Line and value of one part, where it exists."""
    if isinstance(data, Lines) and isinstance(part, str) and part in data:
        return data.lines[part], data[part]
    if isinstance(data, Items) and isinstance(part, int) and part < len(data):
        return data.lines[part], data[part]
    return None


class _Composer(Composer, BaseResolver):
    """Nodes of events that were parsed and checked already; parsing is most of the work.

    It resolves no scalar by itself; `scalar` does.
    """

    yaml_implicit_resolvers: Final = {}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, events: list[yaml.Event]) -> None:
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._events = events[::-1]

    def check_event(self, *choices: type[yaml.Event]) -> bool:
        return bool(self._events) and (not choices or isinstance(self._events[-1], choices))

    def peek_event(self) -> yaml.Event | None:
        return self._events[-1] if self._events else None

    def get_event(self) -> yaml.Event | None:
        return self._events.pop() if self._events else None


def _checked_events(text: str, source: str, error: type[UsageError]) -> list[yaml.Event]:
    """Return the events after a check of their limits, before any object is built."""
    events: list[yaml.Event] = []
    depth = aliases = documents = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        events.append(event)
        line = event.start_mark.line + 1
        if count > MAX_NODES:
            raise error(f"{source}:{line}: more than {MAX_NODES} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise error(f"{source}:{line}: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            if aliases > MAX_ALIASES:
                raise error(f"{source}:{line}: more than {MAX_ALIASES} aliases")
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise error(f"{source}:{line}: a second document begins; there can be only one")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise error(f"{source}:{line}: tags are not allowed, found {tag}")
    return events


@dataclass(slots=True)
class _Building:
    """Builds data from nodes, counting what aliases expand to."""

    source: str
    error: type[UsageError]
    nodes: int = 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        self.nodes += 1
        line = node.start_mark.line + 1
        if self.nodes > MAX_NODES:
            raise self.error(f"{self.source}:{line}: aliases expand to more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise self.error(f"{self.source}:{line}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, yaml.ScalarNode):
            plain = node.style is None
            return scalar(node.value) if plain else node.value
        if isinstance(node, yaml.SequenceNode):
            children = cast("list[yaml.Node]", node.value)
            values = [self.value(child, depth + 1) for child in children]
            return Items(values, lines=[c.start_mark.line + 1 for c in children], line=line)
        return self.mapping(cast("yaml.MappingNode", node), depth)

    def mapping(self, node: yaml.MappingNode, depth: int) -> Lines:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error(f"{self.source}:{line}: a key must be text")
            key = str(key_node.value)
            if key in values:
                raise self.error(f'{self.source}:{line}: "{key}" is set twice, first on line {lines[key]}')
            values[key] = self.value(value_node, depth + 1)
            lines[key] = line
        return Lines(values, lines=lines, line=node.start_mark.line + 1)


def _place(source: str, bad: yaml.YAMLError) -> str:
    mark = getattr(bad, "problem_mark", None) or getattr(bad, "context_mark", None)
    return source if mark is None else f"{source}:{mark.line + 1}"


def _problem(bad: yaml.YAMLError) -> str:
    return str(getattr(bad, "problem", None) or getattr(bad, "reason", None) or "it cannot be read")
