"""Names that a number is computed from by arithmetic, from its source. Pure."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MOST_NAMES: Final = 200
_PASSED_THROUGH: Final = frozenset({"int", "float", "round", "max", "min", "ceil", "floor", "abs"})
"""Functions whose result is a number of the same kind as their arguments."""


def computed_from(nodes: Iterable[ast.AST], values: Mapping[str, Sequence[ast.AST]]) -> set[str]:
    """Return the names that numbers are computed from, such as ``BATCH`` or ``config['rows']``.

    Arguments of other calls do not count: an optimizer is not computed from its learning rate.

    Args:
        nodes: Expressions of the numbers, and functions that read them.
        values: Values assigned to names, and the bodies of functions.
    """
    found: set[str] = set()
    pending = list(nodes)
    while pending and len(found) < _MOST_NAMES:
        node = pending.pop()
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            text = ast.unparse(node)
            if text not in found:
                found.add(text)
                pending += values.get(text, ())
        elif isinstance(node, ast.Call):
            name = called_name(node)
            pending += node.args if name in _PASSED_THROUGH else values.get(name, ())
        elif isinstance(node, (ast.stmt, ast.Lambda)):
            pending += (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))
        else:
            pending += ast.iter_child_nodes(node)
    return found


def called_name(node: ast.Call) -> str:
    """Return ``randperm`` for ``torch.randperm(n)``; empty for a call without a name."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def last_name(text: str) -> str:
    """Return ``batch`` for ``config.train.batch``, and ``rows`` for ``config['rows']``."""
    return text.rstrip("]'\"").replace('"', "'").rpartition("'")[2].rpartition(".")[2]


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return the expression that a call gives for a parameter; None if it gives none."""
    given = next((k.value for k in call.keywords if k.arg == name), None)
    if given is None and position < len(call.args):
        before = call.args[: position + 1]
        return None if any(isinstance(arg, ast.Starred) for arg in before) else before[-1]
    return given


def assigned_values(tree: ast.AST) -> dict[str, list[ast.AST]]:
    """Return the values assigned to names and attributes, and function definitions, anywhere in a file."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found.setdefault(ast.unparse(target), []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found.setdefault(ast.unparse(node.target), []).append(node.value)
        elif isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).extend(node.body)
    return found
