"""Assignments that a training loop repeats, from its source. Pure.

The objects that they change are determined in the running process (`autotune.trial.loop.assignments`).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.source.loops import loops_around

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ITEM: Final = ""
"""Name of a target that is an item of its owner, or the content of a container."""
_MUTATING: Final = frozenset(
    {"append", "appendleft", "extend", "insert", "update", "setdefault", "pop", "popitem", "clear", "add"}
)
_NESTED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Part(NamedTuple):
    """Repeated code of one frame of a stack.

    Args:
        depth: Index of the frame; 0 is the innermost.
        node: A loop, or a whole function.
        inside: It runs once per batch, not once per pass.
        without: A loop in it that is a separate part.
    """

    depth: int
    node: ast.AST
    inside: bool
    without: ast.AST | None = None


class Target(NamedTuple):
    """Target of an assignment.

    Args:
        owner: Expression of the changed object; None for a plain name.
        name: The attribute or the plain name; `ITEM` for the content of a container.
        line: Its line.
        text: ``noise.strength``.
    """

    owner: ast.expr | None
    name: str
    line: int
    text: str


def repeated(stack: Sequence[tuple[ast.Module, int, str]]) -> list[Part]:
    """Return code that runs once per batch or once per pass, from the stack of a backward pass.

    Args:
        stack: Tree, line and function name of each frame, innermost first.
    """
    found: list[Part] = []
    last = 0
    passes = False
    for depth, place in enumerate(stack):
        function, loops = loops_around(*place)
        if not loops:
            found.append(Part(depth, function, inside=not passes))
            continue
        if not passes:
            found.append(Part(depth, loops[-1], inside=True))
            if len(loops) > 1:
                found.append(Part(depth, loops[0], inside=False, without=loops[-1]))
        else:
            found.append(Part(depth, loops[0], inside=False))
        passes, last = True, len(found)
    # Code outside of every loop runs once.
    return found[:last]


def nodes_of(
    part: ast.AST, *, without: ast.AST | None = None, dead: Sequence[ast.AST] = ()
) -> Iterator[ast.AST]:
    """Yield nodes of a part, without nested functions and branches that never run."""
    pending: list[ast.AST] = [part]
    while pending:
        node = pending.pop()
        if node is without or (isinstance(node, _NESTED) and node is not part) or node in dead:
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


def targets(node: ast.AST) -> Iterator[Target]:
    """Yield the targets that this node itself assigns."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _of(target)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        if node.value is not None:
            yield from _of(node.target)
    elif isinstance(node, ast.Call):
        function, given = node.func, node.args
        if isinstance(function, ast.Name) and function.id == "setattr" and len(given) == 3:
            owner, name = given[0], given[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield Target(owner, name.value, node.lineno, f"{ast.unparse(owner)}.{name.value}")
        elif isinstance(function, ast.Attribute) and _mutates(function.attr):
            yield Target(function.value, ITEM, node.lineno, ast.unparse(function.value))


def _of(target: ast.expr) -> Iterator[Target]:
    match target:
        case ast.Attribute(value=owner, attr=name):
            yield Target(owner, name, target.lineno, ast.unparse(target))
        case ast.Subscript(value=owner):
            yield Target(owner, ITEM, target.lineno, ast.unparse(target))
        case ast.Name(id=name):
            yield Target(None, name, target.lineno, name)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _of(part)
        case ast.Starred(value=inner):
            yield from _of(inner)
        case _:
            return


def _mutates(name: str) -> bool:
    # A tensor's in-place methods end with an underscore.
    return name in _MUTATING or (name.endswith("_") and not name.startswith("_"))
