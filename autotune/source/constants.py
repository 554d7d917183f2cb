"""Named constants of a source file: found in its syntax tree, and replaced there.

Names are dotted paths: ``batch_size``; ``CONFIG.train.batch_size`` for an entry of a dictionary;
``Settings.batch_size`` for a field. ``train.batch_size`` is a variable of the function `train`,
``train(batch_size)`` the default of its argument, and ``train(batch_size=)`` a keyword of a call.
``--batch-size`` is the default of an option. Standard library only.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.model.config import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_LOADERS: Final = ("DataLoader", "StatefulDataLoader")
"""Their keywords are handled by another delivery."""
_DECLARE: Final = ("add_argument", "option")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_LARGEST: Final = 2**63
"""Bound of all settings and computed powers."""


class Named(NamedTuple):
    """One named value.

    Args:
        name: The dotted path.
        node: Its expression.
        value: Its value.
        times: Number of assignments to this name in the file.
    """

    name: str
    node: ast.expr
    value: Value
    times: int = 1

    @property
    def key(self) -> str:
        """The last part of the name, without case, dashes and underscores: ``batchsize``."""
        return key_of(self.name)


def key_of(name: str) -> str:
    """Return the last part of a name, without case, dashes and underscores."""
    last = name.rpartition("(")[2].rstrip("=)").rpartition(".")[2]
    return last.lower().replace("_", "").replace("-", "")


def rank_of(name: str) -> int:
    """Return 0 for a direct name, 1 for a keyword of one call, 2 for the default of an argument."""
    return 0 if not name.endswith(")") else 1 if name.endswith("=)") else 2


def constant_value(node: ast.expr | None, known: Mapping[str, Value] | None = None) -> Value | None:
    """Return the value of a literal or of arithmetic with literals (``5 * 8``); None for anything else.

    Args:
        node: The expression.
        known: Names permitted in it, with their values.
    """
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return None if isinstance(value, float) and abs(value) == float("inf") else value
        case ast.Name(id=name) if known is not None:
            return known.get(name)
        case ast.UnaryOp(op=ast.USub()):
            inner = _number(constant_value(node.operand, known))
            return None if inner is None else -inner
        case ast.BinOp():
            return _worked_out(node, known)
        case _:
            return None


def named_values(tree: ast.Module, *, is_script: bool = True) -> list[Named]:
    """Return every literal value with a name in the file, in order.

    Args:
        tree: Syntax tree of the file.
        is_script: It runs as the script; in other files the main guard is left out.
    """
    found: list[tuple[str, ast.expr | None]] = list(_body(tree.body, "", {}, is_script=is_script))
    times = Counter(name for name, _ in found)
    values = ((name, node, constant_value(node)) for name, node in found if node is not None)
    return [Named(name, node, value, times[name]) for name, node, value in values if value is not None]


def rewritten(tree: ast.Module, changes: Mapping[str, tuple[Value, Value]]) -> list[str]:
    """Replace values in a tree in place, so that lines do not change.

    Args:
        tree: Syntax tree of the file; changed.
        changes: Name -> its present value, and the new one.

    Returns:
        Names that do not have the present value exactly once in the file.
    """
    meant = [
        found
        for found in named_values(tree)
        if found.name in changes and found.times == 1 and found.value == changes[found.name][0]
    ]
    _Replace({id(found.node): changes[found.name][1] for found in meant}).visit(tree)
    replaced = {found.name for found in meant}
    return [name for name in changes if name not in replaced]


class _Replace(ast.NodeTransformer):
    def __init__(self, places: Mapping[int, Value]) -> None:
        self._places = places

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace an expression by its new constant."""
        if id(node) in self._places:
            return ast.copy_location(ast.Constant(self._places[id(node)]), node)
        return self.generic_visit(node)


# What gives a name a value --------------------------------------------------------------------


def _body(
    body: Sequence[ast.stmt], scope: str, outside: Mapping[str, str], *, is_script: bool
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield names and their values; None for a value that is not a literal.

    Args:
        body: Statements.
        scope: Name of the function or class, followed by a dot.
        outside: Names that a function declares as global.
        is_script: As for `named_values`.
    """
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _arguments(node, scope)
                for call in (n for d in node.decorator_list for n in ast.walk(d) if isinstance(n, ast.Call)):
                    yield from _call(call)
                shared = {name: "" for n in ast.walk(node) if isinstance(n, ast.Global) for name in n.names}
                yield from _body(node.body, f"{scope}{node.name}.", shared, is_script=is_script)
            case ast.ClassDef():
                yield from _body(node.body, f"{scope}{node.name}.", {}, is_script=is_script)
            case ast.If() if _is_main_guard(node) and not is_script:
                continue
            case _:
                yield from _statement(node, scope, outside)
                for part in ("body", "orelse", "finalbody"):
                    yield from _body(getattr(node, part, ()), scope, outside, is_script=is_script)
                for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                    yield from _body(handler.body, scope, outside, is_script=is_script)


def _statement(
    node: ast.stmt, scope: str, outside: Mapping[str, str]
) -> Iterator[tuple[str, ast.expr | None]]:
    held: set[int] = set()
    match node:
        case ast.Assign():
            pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
        case ast.AnnAssign(value=ast.expr() as value):
            pairs = [(node.target, _default(value))]
        case ast.AugAssign():
            pairs = [(node.target, None)]
        case ast.For() | ast.AsyncFor():
            pairs = [(target, None) for target in _targets(node.target)]
        case _:
            pairs = []
    for target, value in pairs:
        name = _path(target)
        if name:
            first = name.partition(".")[0]
            place = outside.get(first, scope) if isinstance(target, ast.Name) else ""
            yield from _given(f"{place}{name}", value, held)
    for call in (n for part in _expressions(node) for n in ast.walk(part) if isinstance(n, ast.Call)):
        if id(call) not in held:
            yield from _call(call)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr | None]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        return [(target, value)]
    if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(each, None) for each in target.elts]


def _targets(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _given(name: str, value: ast.expr | None, held: set[int]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield a name with its value, or with the entries of that value."""
    if isinstance(value, ast.Dict):
        for key, inner in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield from _given(f"{name}.{key.value}", inner, held)
    elif isinstance(value, ast.Call):
        held.add(id(value))
        if last_name(value.func) in _LOADERS:
            return
        for keyword in value.keywords:
            if keyword.arg is not None:
                yield from _given(f"{name}.{keyword.arg}", keyword.value, held)
        for argument in value.args:
            if isinstance(argument, (ast.Dict, ast.Call)):
                yield from _given(name, argument, held)
    else:
        yield name, value


def _default(value: ast.expr) -> ast.expr:
    """Return the default of a field: for ``field(default=32)`` its argument."""
    if isinstance(value, ast.Call) and last_name(value.func) in ("field", "Field"):
        given = next((k.value for k in value.keywords if k.arg == "default"), None)
        return given or (value.args[0] if value.args else value)
    return value


def _call(call: ast.Call) -> Iterator[tuple[str, ast.expr | None]]:
    name = last_name(call.func)
    if name in _DECLARE:
        words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        option = next((w for w in words if w.startswith("--")), "")
        default = next((k.value for k in call.keywords if k.arg == "default"), None)
        if option and default is not None:
            yield option.partition("/")[0].rstrip(), default
    elif name and name not in _LOADERS:
        yield from ((f"{name}({k.arg}=)", k.value) for k in call.keywords if k.arg is not None)


def _arguments(
    node: ast.FunctionDef | ast.AsyncFunctionDef, scope: str
) -> Iterator[tuple[str, ast.expr | None]]:
    given = [*node.args.posonlyargs, *node.args.args]
    pairs = [*zip(reversed(given), reversed(node.args.defaults), strict=False)]
    pairs += [
        (a, v) for a, v in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if v is not None
    ]
    yield from ((f"{scope}{node.name}({argument.arg})", default) for argument, default in pairs)


def _path(target: ast.expr) -> str:
    """Return ``a.b`` for ``a.b`` and for ``a["b"]``; empty for anything else."""
    match target:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=last):
            outer = _path(target.value)
        case ast.Subscript(slice=ast.Constant(value=str() as last)):
            outer = _path(target.value)
        case _:
            return ""
    return f"{outer}.{last}" if outer else ""


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement itself, not those of nested statements."""
    yield from (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    for item in getattr(node, "items", ()):
        yield item.context_expr


def last_name(node: ast.expr) -> str:
    """Return ``C`` for ``a.b.C``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_main_guard(node: ast.If) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))


def _worked_out(node: ast.BinOp, known: Mapping[str, Value] | None) -> Value | None:
    act = _OPERATORS.get(type(node.op))
    left, right = _number(constant_value(node.left, known)), _number(constant_value(node.right, known))
    if act is None or left is None or right is None:
        return None
    if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > _LARGEST):
        return None
    try:
        found = act(left, right)
    except (ArithmeticError, ValueError):
        return None
    return found if isinstance(found, (int, float)) and abs(found) < _LARGEST else None


def _number(value: Value | None) -> int | float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
