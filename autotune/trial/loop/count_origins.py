"""Whether a step count of the script is computed from the constant of its batch size, from its source."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import inspect
import linecache
import re
from typing import TYPE_CHECKING, Final

from autotune.knobs.batch.batching import BATCH_CONSTANTS
from autotune.source.constants import key_of
from autotune.source.derivation import argument, assigned_values, called_name, computed_from, last_name
from autotune.source.loops import parsed
from autotune.trial.loop.assignments import MISSING, found_in
from autotune.trial.records.objects import names_of
from autotune.trial.runtime.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

MOST_CALLERS: Final = 4
"""Largest number of frames that are followed outwards."""
_BATCH: Final = frozenset(key_of(name) for name in BATCH_CONSTANTS.names)
_RATE: Final = re.compile(r"lr$|rate|eta|optim|gamma|factor|momentum|^self$")
"""Parameters of schedules that are no step counts."""


def is_by_batch(nodes: Iterable[ast.AST], tree: ast.Module, frame: FrameType) -> bool:
    """Return whether a count is computed from the script's batch size.

    Args:
        nodes: Expressions of the count.
        tree: Their file.
        frame: The function that computes it.
    """
    names = names_of(frame)
    for text in _reached(nodes, tree, frame):
        if key_of(last_name(text)) in _BATCH:
            value = found_in(ast.parse(text, mode="eval").body, names)
            if value is MISSING or type(value) is int:
                return True
    return False


def length_arguments(statement: ast.stmt, kind: type) -> Iterator[ast.AST]:
    """Yield the arguments of a schedule's construction that may be step counts."""
    for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
        if not call.args and not call.keywords:
            continue
        names: Sequence[str] = ()
        if called_name(call) == kind.__name__:
            names = list(inspect.signature(kind).parameters)
        for position, value in enumerate(call.args):
            if position and not (position < len(names) and _RATE.search(names[position])):
                yield value
        yield from (k.value for k in call.keywords if k.arg and not _RATE.search(k.arg))


def _reached(nodes: Iterable[ast.AST], tree: ast.Module, frame: FrameType) -> set[str]:
    """Return the names that counts are computed from, also in the functions that hand them over."""
    found = computed_from(nodes, assigned_values(tree))
    outer: FrameType | None = frame
    for _ in range(MOST_CALLERS):
        code, inner = outer.f_code, outer
        outer = outer.f_back
        if outer is None or not is_user_file(outer.f_code.co_filename):
            break
        outside, parameters = source_tree(outer.f_code.co_filename), parameters_of(inner)
        statement = None if outside is None else statement_at(outside, outer.f_lineno)
        if outside is None or statement is None:
            break
        given: list[ast.expr] = []
        for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
            if called_name(call) == code.co_name:
                first = int(parameters[:1] == ("self",))
                wanted = [(i, name) for i, name in enumerate(parameters[first:]) if name in found]
                given += (g for i, name in wanted if (g := argument(call, i, name)) is not None)
        if not given:
            break
        found |= computed_from(given, assigned_values(outside))
    return found


def parameters_of(frame: FrameType) -> tuple[str, ...]:
    """Return the names of a function's parameters."""
    code = frame.f_code
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def statement_at(tree: ast.Module, line: int) -> ast.stmt | None:
    """Return the innermost statement around a line."""
    inside = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    )
    return min(inside, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)


def source_tree(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it cannot be read."""
    return parsed("".join(linecache.getlines(file)))
