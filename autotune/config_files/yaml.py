"""Reader of a bounded subset of YAML from untrusted files; records the line of each value.

Scalars, lists, and mappings with text keys; no tags. Only ``true`` and ``false`` are booleans, so that
``off``, ``on``, ``yes`` and ``no`` stay text; ``1e-3`` is a number; dates stay text. Size, nesting and the
expansion of aliases are limited.
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
"""Limit of parser events, and of values once aliases are expanded: a hundred can stand for billions."""

_INT: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NULL: Final = frozenset({"", "~", "null"})


class LocatedDict(dict[str, Any]):
    """Mapping with the line of each of its keys in `lines`, and its first line in `line`, from 1."""

    def __init__(self, values: dict[str, Any], *, lines: dict[str, int], line: int) -> None:
        super().__init__(values)
        self.lines = lines
        self.line = line


class LocatedList(list[Any]):
    """List with the line of each of its items in `lines`, and its first line in `line`, from 1."""

    def __init__(self, values: list[Any], *, lines: list[int], line: int) -> None:
        super().__init__(values)
        self.lines = lines
        self.line = line


def load(
    text: str, *, source: str, error: type[UsageError] = InvalidSpace, max_bytes: int = MAX_BYTES
) -> Any:
    """Return the one document in `text`: `LocatedDict`, `LocatedList` or a scalar; None for an empty one.

    Args:
        text: Contents of the file.
        source: Name of the file, for messages.
        error: Class of exceptions to raise.
        max_bytes: Largest size, in bytes of UTF-8.

    Raises:
        UsageError: As the class `error`. The text is no valid YAML, exceeds a limit, or has a tag, a key
            twice or a second document.
    """
    if len(text.encode("utf-8", "surrogatepass")) > max_bytes:
        raise error(
            f"{source} is larger than {max_bytes >> 10} KiB",
            hint="check that this is the right file; usual ones have a few KiB",
        )
    if text.count("\n") > MAX_LINES:
        raise error(f"{source} has more than {MAX_LINES} lines")
    try:
        node = _Composer(_checked_events(text, source, error)).get_single_node()
    except yaml.YAMLError as invalid:
        raise error(f"{_place(source, invalid)}: not valid YAML: {_problem(invalid)}") from invalid
    return None if node is None else _Builder(source, error).value(node, 0)


def scalar(text: str) -> bool | int | float | str | None:
    """Return the value of an unquoted scalar: a boolean, None, a number, or the text itself."""
    if text in ("true", "false"):
        return text == "true"
    if text in _NULL:
        return None
    if _INT.fullmatch(text):
        # Longer ones may not fit into 64 bits.
        return int(text) if len(text) <= 19 else text
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    return number if math.isfinite(number) else text


def line_at(data: Any, path: Sequence[str | int]) -> int:
    """Return the line of the deepest existing part of a path; 1 without one."""
    lines: list[int] = [getattr(data, "line", 1), *(line for _, line, _ in steps(data, path))]
    return lines[-1]


def steps(data: Any, path: Sequence[str | int]) -> Iterator[tuple[str | int, int, Any]]:
    """Yield part, line and value for each part of a path that exists in the data.

    Others are skipped, as pydantic's locations also contain names of types.
    """
    here = data
    for part in path:
        found = _step(here, part)
        if found is not None:
            line, here = found
            yield part, line, here


def _step(data: Any, part: str | int) -> tuple[int, Any] | None:
    """Return line and value of one part; None if it does not exist."""
    if isinstance(data, LocatedDict) and isinstance(part, str) and part in data:
        return data.lines[part], data[part]
    if isinstance(data, LocatedList) and isinstance(part, int) and part < len(data):
        return data.lines[part], data[part]
    return None


class _Composer(Composer, BaseResolver):
    """Composes nodes of events that were parsed and checked before, so that the text is parsed once.

    Scalars stay text; `scalar` converts them.
    """

    yaml_implicit_resolvers: Final = {}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, events: list[yaml.Event]) -> None:
        Composer.__init__(self)
        BaseResolver.__init__(self)
        # Reversed, so that the next one is popped from the end.
        self._events = events[::-1]

    def check_event(self, *choices: type[yaml.Event]) -> bool:
        return bool(self._events) and (not choices or isinstance(self._events[-1], choices))

    def peek_event(self) -> yaml.Event | None:
        return self._events[-1] if self._events else None

    def get_event(self) -> yaml.Event | None:
        return self._events.pop() if self._events else None


def _checked_events(text: str, source: str, error: type[UsageError]) -> list[yaml.Event]:
    """Return the parsed events, whose limits are checked before any object is built."""
    events: list[yaml.Event] = []
    depth = aliases = documents = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        events.append(event)
        line = event.start_mark.line + 1
        if count > MAX_NODES:
            raise error(f"{source}:{line}: more than {MAX_NODES} elements")
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
                raise error(f"{source}:{line}: a second document starts here; only one is allowed")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise error(f"{source}:{line}: tags are not allowed, found {tag}")
    return events


@dataclass(slots=True)
class _Builder:
    """Builds data from nodes, counting what aliases expand to."""

    source: str
    error: type[UsageError]
    nodes: int = 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        self.nodes += 1
        line = node.start_mark.line + 1
        if self.nodes > MAX_NODES:
            raise self.error(f"{self.source}:{line}: aliases expand to more than {MAX_NODES} values")
        # Again, as aliases can nest deeper than the text.
        if depth > MAX_DEPTH:
            raise self.error(f"{self.source}:{line}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, yaml.ScalarNode):
            plain = node.style is None
            return scalar(node.value) if plain else node.value
        if isinstance(node, yaml.SequenceNode):
            children = cast("list[yaml.Node]", node.value)
            values = [self.value(child, depth + 1) for child in children]
            return LocatedList(values, lines=[c.start_mark.line + 1 for c in children], line=line)
        return self.mapping(cast("yaml.MappingNode", node), depth)

    def mapping(self, node: yaml.MappingNode, depth: int) -> LocatedDict:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error(f"{self.source}:{line}: a key cannot be a list or a mapping")
            key = str(key_node.value)
            if key in values:
                raise self.error(f'{self.source}:{line}: "{key}" is set twice, first on line {lines[key]}')
            values[key] = self.value(value_node, depth + 1)
            lines[key] = line
        return LocatedDict(values, lines=lines, line=node.start_mark.line + 1)


def _place(source: str, invalid: yaml.YAMLError) -> str:
    mark = getattr(invalid, "problem_mark", None) or getattr(invalid, "context_mark", None)
    return source if mark is None else f"{source}:{mark.line + 1}"


def _problem(invalid: yaml.YAMLError) -> str:
    return str(getattr(invalid, "problem", None) or getattr(invalid, "reason", None) or "it cannot be read")
