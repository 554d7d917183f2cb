"""A script's source with its syntax tree, and edits that keep every other character. Pure."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value

_NEWLINE: Final = re.compile(r"\r\n|\r|\n")
"""Ends of lines in Python; `str.splitlines` also splits at others."""
_LOOPS: Final = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Lambda,
)


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters ``start`` up to ``end`` become ``text``."""

    start: int
    end: int
    text: str


class ScriptSource:
    """A Python file in which literals are searched.

    Args:
        name: Name of the file in a diff.
        data: Content of the file.

    Raises:
        ValueError: It is not UTF-8.
        SyntaxError: It is no Python.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.text = data.decode("utf-8")
        mark = int(self.text.startswith("\ufeff"))
        self.tree = ast.parse(self.text[mark:])
        self._starts = [mark, *(found.end() for found in _NEWLINE.finditer(self.text))]

    def span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """Return start and end of a node in the text."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._position(node.lineno, node.col_offset),
            self._position(node.end_lineno, node.end_col_offset),
        )

    def written(self, node: ast.expr) -> str:
        """Return the source text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def line_of(self, position: int) -> int:
        """Return the line number, from 1, of a position."""
        return bisect_right(self._starts, position)

    def calls(self, *names: str) -> list[ast.Call]:
        """Return the calls of these names, and of the names under which they were imported."""
        known = {*names, *self._aliases(set(names))}
        found = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return sorted(
            (call for call in found if last_name(call.func) in known),
            key=lambda c: (c.lineno, c.col_offset),
        )

    def only_value_of(self, name: ast.Name) -> ast.expr | None:
        """Return the literal of a name that is assigned once and read once, or None."""
        if self.calls("exec", "globals", "eval"):
            return None
        given: list[ast.expr] = []
        bound = read = 0
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id == name.id:
                bound += not isinstance(node.ctx, ast.Load)
                read += isinstance(node.ctx, ast.Load)
            elif isinstance(node, ast.arg):
                bound += node.arg == name.id
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                bound += name.id in node.names
            elif isinstance(node, ast.alias):
                bound += name.id in (node.asname, node.name)
            value = _assigned(node, name.id)
            if value is not None:
                given.append(value)
        alone = len(given) == 1 and bound == 1 and read == 1
        return given[0] if alone and is_literal(given[0]) else None

    def constants(self, name: str) -> list[ast.expr]:
        """Return the values that the module itself assigns to a name, in order."""
        values = (_assigned(node, name) for node in self.tree.body)
        return [value for value in values if value is not None]

    def runs_once(self, call: ast.Call) -> bool:
        """Return whether a call is in no loop, and in no function that is referenced more than once."""
        outer = [node for node in ast.walk(self.tree) if _holds(node, call)]
        if any(isinstance(node, _LOOPS) for node in outer):
            return False
        names = {n.name for n in outer if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
        named = [
            last_name(node)
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        ]
        return all(named.count(name) <= 1 for name in names)

    def with_arguments(self, call: ast.Call, words: Sequence[str]) -> list[Edit]:
        """Return the edits that add arguments to a call, after its last one and in its style.

        Args:
            call: Call without ``*`` and ``**``.
            words: Arguments as ``name=value``.
        """
        close = self.span(call)[1] - 1
        given = [*call.args, *call.keywords]
        if not given:
            return [Edit(close, close, ", ".join(words))]
        start, end = max((self.span(node) for node in given), key=lambda span: span[1])
        after, comma = self._after(end, close)
        anchor = after if comma is None else comma + 1
        newline = _NEWLINE.search(self.text, anchor, close)
        begin = self._starts[self.line_of(start) - 1]
        indent = self.text[begin:start]
        rest = "" if newline is None else self.text[anchor : newline.start()].strip()
        if newline is None or indent.strip() or (rest and not rest.startswith("#")):
            return [Edit(after, after, "".join(f", {word}" for word in words))]
        lines = [f"{newline.group()}{indent}{word}" for word in words]
        if comma is not None:
            return [Edit(newline.start(), newline.start(), "".join(f"{line}," for line in lines))]
        if after == newline.start():
            return [Edit(after, after, "".join(f",{line}" for line in lines))]
        return [Edit(after, after, ","), Edit(newline.start(), newline.start(), ",".join(lines))]

    def edited(self, edits: Sequence[Edit]) -> str:
        """Return the text with these edits, which may not overlap.

        Raises:
            SyntaxError: It would be no Python any more.
        """
        parts: list[str] = []
        at = 0
        for edit in sorted(edits, key=lambda e: (e.start, e.end)):
            parts += [self.text[at : edit.start], edit.text]
            at = edit.end
        text = "".join([*parts, self.text[at:]])
        ast.parse(text.removeprefix("\ufeff"))
        return text

    def _position(self, line: int, column: int) -> int:
        """Return the position of a place of the syntax tree, whose columns count bytes of UTF-8."""
        start = self._starts[line - 1]
        # A character has a byte at least, so these characters are never too few.
        return start + len(self.text[start : start + column].encode()[:column].decode())

    def _aliases(self, names: set[str]) -> set[str]:
        imports = (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom))
        return {a.asname for node in imports for a in node.names if a.name in names and a.asname}

    def _after(self, end: int, close: int) -> tuple[int, int | None]:
        """Return the end of the last argument with brackets around it, and the comma after it or None."""
        after, at = end, end
        while at < close:
            char = self.text[at]
            if char == ",":
                return after, at
            if char == "#":
                newline = _NEWLINE.search(self.text, at)
                at = close if newline is None else newline.start()
            at += 1
            if char == ")":
                after = at
        return after, None


def _holds(outer: ast.AST, inner: ast.expr) -> bool:
    """Return whether one node lies within another."""
    if not isinstance(outer, (ast.stmt, ast.expr)) or outer is inner:
        return False
    begin, end = (outer.lineno, outer.col_offset), (outer.end_lineno or 0, outer.end_col_offset or 0)
    first, last = (inner.lineno, inner.col_offset), (inner.end_lineno or 0, inner.end_col_offset or 0)
    return begin <= first and last <= end


def last_name(node: ast.expr) -> str:
    """Return the last part of a name: ``a.b.C`` -> ``C``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_literal(node: ast.expr) -> bool:
    """Return whether a node is a number, a text, True, False or None; negative numbers too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.Constant)


def literal_of(node: ast.expr | None) -> Value | None:
    """Return the value of a literal, or None for None and for other nodes."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal_of(node.operand)
        return -value if isinstance(value, (int, float)) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        return node.value
    return None


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a call's keyword argument, or None."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def is_open(call: ast.Call) -> bool:
    """Return whether ``*`` or ``**`` may hold any argument, or the only one is a bare generator."""
    loose = any(isinstance(arg, (ast.Starred, ast.GeneratorExp)) for arg in call.args)
    return loose or any(keyword.arg is None for keyword in call.keywords)


def _assigned(node: ast.AST, name: str) -> ast.expr | None:
    """Return the value that a statement assigns to one name alone, or None."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return None
    target = targets[0]
    return value if len(targets) == 1 and isinstance(target, ast.Name) and target.id == name else None
