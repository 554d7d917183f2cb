"""Assignments of the training loop to objects that loader workers have a copy of.

The source of the loop contains all of them, including those of the last epochs
(`autotune.source.assignments`). Their owners are looked up in the frames of a backward pass, and compared
with the state read by a fetch (`autotune.trial.records.fetch_state`). No code of the script is called,
properties included.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import functools
import linecache
from collections import ChainMap
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.source.assignments import Target, nodes_of, repeated, targets
from autotune.source.loops import parsed
from autotune.trial.records.loader_stats import BETWEEN, INSIDE
from autotune.trial.records.objects import held_by, names_of
from autotune.trial.runtime.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from autotune.trial.records.fetch_state import FetchReads

MISSING: Final = object()
"""Result of `found_in` for an expression that it cannot resolve."""
_MOST_CALLS: Final = 3
"""Largest depth at which functions called by the loop are followed."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Assigned(NamedTuple):
    """One assignment to state read by a fetch."""

    when: str
    """`INSIDE` of a pass over the loader, or `BETWEEN` two."""
    text: str
    """``noise.strength (train.py:52)``."""


class _Scope(NamedTuple):
    """Scope in which names are looked up."""

    file: str
    names: Mapping[str, Any]
    space: dict[str, Any]
    """Namespace of the module."""
    is_module: bool
    code: Any

    def parameters(self) -> set[str]:
        """Return names whose value may differ in each call of a function."""
        return set() if self.is_module else set(self.code.co_varnames[: self.code.co_argcount])


def find(
    frames: Sequence[FrameType], state: FetchReads, loader: Any, place: Callable[[str, int], str]
) -> Assigned | None:
    """Return the most harmful assignment on a stack; None if there is none.

    Args:
        frames: Frames of a backward pass, innermost first; only the user's are searched.
        state: State read by a fetch.
        loader: Loader of the pass.
        place: Formats a file and a line.
    """
    frames = [frame for frame in frames if is_user_file(frame.f_code.co_filename)]
    trees = [tree_of(frame.f_code.co_filename) for frame in frames]
    known = [(frame, tree) for frame, tree in zip(frames, trees, strict=True) if tree is not None]
    scopes = [_scope(frame) for frame, _ in known]
    try:
        parts = repeated([(tree, frame.f_lineno, frame.f_code.co_name) for frame, tree in known])
        passes = any(_iterates_over(part.node, part.inside, scopes[part.depth], loader) for part in parts)
        found: list[Assigned] = []
        outermost = max((part.depth for part in parts), default=0)
        for part in parts:
            when = INSIDE if part.inside or not passes else BETWEEN
            scope = scopes[part.depth]
            moving = {name for other in parts if other.depth == part.depth for name in _stored(other.node)}
            if part.depth < outermost:
                moving |= scope.parameters()
            found += _Search(state, place, when).of(part.node, scope, moving, part.without)
        return min(found, key=lambda one: one.when != INSIDE, default=None)
    finally:
        # A tree takes some forty times the memory of its source.
        tree_of.cache_clear()
        definition_of.cache_clear()


class _Search:
    """Search of code that runs repeatedly, and of the functions that it calls."""

    def __init__(self, state: FetchReads, place: Callable[[str, int], str], when: str) -> None:
        self._state = state
        self._place = place
        self._when = when
        self._known: set[tuple[int, ...]] = set()

    def of(
        self, part: ast.AST, scope: _Scope, moving: set[str], without: ast.AST | None = None, depth: int = 0
    ) -> Iterator[Assigned]:
        nodes = list(nodes_of(part, without=without, dead=_dead(part, scope.names, moving)))
        declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        for node in nodes:
            for target in targets(node):
                if self._is_read(target, scope, declared):
                    yield Assigned(self._when, f"{target.text} ({self._place(scope.file, target.line)})")
            if isinstance(node, ast.Call) and depth < _MOST_CALLS:
                yield from self._called(node, scope, depth)

    def _is_read(self, target: Target, scope: _Scope, declared: set[str]) -> bool:
        if target.owner is not None:
            owner = found_in(target.owner, scope.names)
            return owner is not MISSING and self._state.reaches(owner, target.name)
        if scope.is_module or target.name in declared:
            return (id(scope.space), target.name) in self._state.globals
        # A variable of a function that a nested function reads.
        codes = {id(code) for code in getattr(scope.code, "co_consts", ()) if hasattr(code, "co_code")}
        return any((code, target.name) in self._state.cells for code in codes)

    def _called(self, node: ast.Call, scope: _Scope, depth: int) -> Iterator[Assigned]:
        called = found_in(node.func, scope.names)
        given = [found_in(arg, scope.names) for arg in node.args]
        if isinstance(called, MethodType):
            given.insert(0, called.__self__)
            called = called.__func__
        if not isinstance(called, FunctionType) or not is_user_file(called.__code__.co_filename):
            return
        code = called.__code__
        named = {k.arg: found_in(k.value, scope.names) for k in node.keywords if k.arg is not None}
        bound = {**dict(zip(code.co_varnames[: code.co_argcount], given, strict=False)), **named}
        key = (id(code), *(id(value) for value in bound.values()))
        definition = definition_of(code.co_filename, code.co_firstlineno, code.co_name)
        if key in self._known or definition is None:
            return
        self._known.add(key)
        for name, cell in zip(code.co_freevars, called.__closure__ or (), strict=True):
            try:
                bound.setdefault(name, cell.cell_contents)
            except ValueError:  # empty
                continue
        space = called.__globals__
        # A name assigned in the function is not the module's.
        own = dict.fromkeys(code.co_varnames, MISSING)
        names = ChainMap(bound, own, space)
        inner = _Scope(code.co_filename, names, space, is_module=False, code=code)
        moving = _stored(definition) | inner.parameters()
        yield from self.of(definition, inner, moving, depth=depth + 1)


def _scope(frame: FrameType) -> _Scope:
    code, space = frame.f_code, frame.f_globals
    names = names_of(frame)
    return _Scope(code.co_filename, names, space, names is space, code)


def found_in(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the current object of an expression of names, attributes and constant indices."""
    match node:
        case ast.Name(id=name):
            return names.get(name, MISSING)
        case ast.Attribute(value=inner, attr=name):
            return _attribute(found_in(inner, names), name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            owner = found_in(inner, names)
            if type(owner) not in (list, tuple, dict):
                return MISSING
            try:
                return owner[key]
            except (LookupError, TypeError):
                return MISSING
        case ast.Constant(value=value):
            return value
        case _:
            return MISSING


def _attribute(owner: Any, name: str) -> Any:
    if owner is MISSING:
        return MISSING
    held = held_by(owner)
    if name in held:
        return held[name]
    for kind in type(owner).__mro__:
        if name in vars(kind):
            value = vars(kind)[name]
            if isinstance(value, FunctionType):
                return MethodType(value, owner)
            return MISSING if hasattr(value, "__get__") else value
    return MISSING


def _dead(part: ast.AST, names: Mapping[str, Any], moving: set[str]) -> list[ast.AST]:
    """Return branches that never run, as their conditions depend only on settings constant in the loop."""
    found: list[ast.AST] = []
    for node in ast.walk(part):
        if isinstance(node, ast.If):
            holds = _holds(node.test, names, moving)
            found += [] if holds is None else node.orelse if holds else node.body
    return found


def _holds(test: ast.expr, names: Mapping[str, Any], moving: set[str]) -> bool | None:
    """Return whether a condition always holds, or never does; None if unknown."""
    match test:
        case ast.BoolOp(op=op, values=parts):
            known = [_holds(part, names, moving) for part in parts]
            decides = isinstance(op, ast.Or)
            if decides in known:
                return decides
            return None if None in known else not decides
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            held = _holds(inner, names, moving)
            return None if held is None else not held
        case ast.Compare(
            left=left, ops=[ast.Eq() | ast.Is() | ast.NotEq() | ast.IsNot() as op], comparators=[right]
        ):
            one, other = _setting(left, names, moving), _setting(right, names, moving)
            if MISSING in (one, other):
                return None
            return (one == other) is isinstance(op, (ast.Eq, ast.Is))
        case _:
            value = _setting(test, names, moving)
            return None if value is MISSING else bool(value)


def _setting(node: ast.expr, names: Mapping[str, Any], moving: set[str]) -> Any:
    """Return a plain value that nothing in the loop changes."""
    value = found_in(node, names)
    is_plain = value is None or type(value) in (bool, int, float, str)
    return value if is_plain and not _parts(node) & moving else MISSING


def _stored(part: ast.AST) -> set[str]:
    return {ast.unparse(n) for n in ast.walk(part) if isinstance(getattr(n, "ctx", None), ast.Store)}


def _parts(node: ast.AST) -> set[str]:
    """Return ``a.b.c``, ``a.b`` and ``a``."""
    return {ast.unparse(inner) for inner in ast.walk(node) if isinstance(inner, (ast.Name, ast.Attribute))}


def _iterates_over(part: ast.AST, inside: bool, scope: _Scope, loader: Any) -> bool:
    """Return whether a pass over a loader starts here: in the loop itself, or once per run of this part."""
    if inside and not isinstance(part, (ast.For, ast.AsyncFor)):
        return False
    pending: list[ast.AST] = [part.iter] if isinstance(part, (ast.For, ast.AsyncFor)) and inside else [part]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            continue
        if isinstance(node, (ast.Name, ast.Attribute)) and _is_loader(found_in(node, scope.names), loader):
            return True
        pending.extend(ast.iter_child_nodes(node))
    return False


def _is_loader(item: Any, loader: Any) -> bool:
    return loader is not None and (item is loader or any(v is loader for v in held_by(item).values()))


@functools.lru_cache(maxsize=32)
def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it cannot be read."""
    return parsed("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=256)
def definition_of(file: str, line: int, name: str) -> ast.AST | None:
    """Return the function of this name whose code begins at a line of a file; None without one."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, _FUNCTIONS) or node.name != name:
            continue
        # Code begins with the first decorator.
        if min([node.lineno, *(d.lineno for d in node.decorator_list)]) == line:
            return node
    return None
