"""Assignments that a training loop repeats, from its source. Pure.

They may change what a dataset reads, which loader workers would not see. The innermost loop around the
backward pass is taken for the one over batches, the outermost for the one over epochs. The changed objects
are determined in the running process (`autotune.trial.loop.assignments`).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.source.loops import loops_around

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ITEM: Final = ""
"""`Target.name` where an item or the whole content of the owner changes, not one attribute."""
_MUTATING_METHODS: Final = frozenset(
    [
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "insert",
        "update",
        "setdefault",
        "pop",
        "popleft",
        "popitem",
        "clear",
        "add",
        "remove",
        "discard",
        "sort",
        "reverse",
        "rotate",
    ]
)
"""Methods of lists, deques, dictionaries and sets that change them."""
_NESTED_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Part(NamedTuple):
    """Code of one stack frame that runs repeatedly.

    Args:
        depth: Index of the frame; 0 is the innermost.
        node: A loop, or a whole function.
        inside: It runs once per batch; else once per epoch.
        without: A loop in it that is a part of its own.
    """

    depth: int
    node: ast.AST
    inside: bool
    without: ast.AST | None = None


class Target(NamedTuple):
    """One change that a statement makes.

    Args:
        owner: Expression of the changed object; None for a plain name.
        name: The attribute or the plain name; `ITEM` for the content of a container.
        line: Its line in the file, from 1.
        text: Its source, such as ``noise.strength``.
    """

    owner: ast.expr | None
    name: str
    line: int
    text: str


def repeated(stack: Sequence[tuple[ast.Module, int, str]]) -> list[Part]:
    """Return code that runs once per batch or once per epoch, from the stack of a backward pass.

    Args:
        stack: Tree, line and function name of each frame, innermost first.
    """
    found: list[Part] = []
    kept = 0
    in_loop = False
    for depth, place in enumerate(stack):
        function, loops = loops_around(*place)
        if not loops:
            found.append(Part(depth, function, inside=not in_loop))
            continue
        if not in_loop:
            found.append(Part(depth, loops[-1], inside=True))
            if len(loops) > 1:
                found.append(Part(depth, loops[0], inside=False, without=loops[-1]))
        else:
            found.append(Part(depth, loops[0], inside=False))
        in_loop, kept = True, len(found)
    # Functions that call the outermost loop run once.
    return found[:kept]


def nodes_of(
    part: ast.AST, *, without: ast.AST | None = None, dead: Sequence[ast.AST] = ()
) -> Iterator[ast.AST]:
    """Yield nodes of a part in no particular order, without nested functions and classes.

    Args:
        part: A loop or a function.
        without: A node that is left out with all below it.
        dead: Branches that never run, left out likewise.
    """
    pending: list[ast.AST] = [part]
    while pending:
        node = pending.pop()
        if node is without or (isinstance(node, _NESTED_SCOPES) and node is not part) or node in dead:
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


def targets(node: ast.AST) -> Iterator[Target]:
    """Yield what this node itself changes.

    These are targets of assignments and of ``setattr`` with a constant name, and receivers of methods that
    change them in place. Targets of ``for``, ``with`` and ``:=`` are not included.
    """
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _of(target)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        # An annotation alone assigns nothing.
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
    return name in _MUTATING_METHODS or (name.endswith("_") and not name.startswith("_"))
