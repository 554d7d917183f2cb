"""Number of iterations of a script's loop, computed from its source for another batch size.

Supported are ``range(0, len(x), size)``, ``torch.randperm(n).split(size)``, generator functions with such a
loop, and names derived from them. No code of the script is called.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import inspect
import math
from collections import ChainMap, deque
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from autotune.knobs.batch.batching import BATCH_CONSTANTS
from autotune.source.assignments import nodes_of
from autotune.source.constants import key_of
from autotune.source.derivation import assigned_values, called_name
from autotune.trial.loop.assignments import MISSING, definition_of, found_in
from autotune.trial.loop.schedules import ARITHMETIC
from autotune.trial.records.objects import attribute_of, length_of
from autotune.trial.runtime.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KEYS: Final = frozenset(key_of(name) for name in BATCH_CONSTANTS.names)
_SAME_ITEMS: Final = frozenset({"enumerate", "tqdm", "list", "tuple", "iter", "reversed", "sorted"})
"""Calls that return as many items as their argument has."""
_SIZED: Final = (list, tuple, dict, range, str, bytes, deque)
_DEEPEST: Final = 8
_LEAVES: Final = (ast.Continue, ast.Break, ast.Return)

Values = dict[str, list[ast.AST]]


class LoopSource:
    """Computes the number of iterations of a loop for another batch size.

    Args:
        names: Values of the names in its source.
        values: Expressions assigned to them in the source.
        batch: Batch size in this process.
        size: Batch size for the result.
    """

    def __init__(
        self,
        names: Mapping[str, Any],
        values: Values,
        batch: int,
        size: int,
        bound: Mapping[str, float] | None = None,
        depth: int = 0,
    ) -> None:
        self._names = names
        self._values = values
        self._batch = batch
        self._size = size
        self._bound = bound or {}
        """Arguments of a function that are numbers."""
        self._depth = depth
        self.slices = False

    def batches(self, node: ast.AST) -> int | None:
        """Return the number of iterations of a loop over this expression; None if unknown."""
        if not isinstance(node, ast.Call):
            held, deeper = self._once(node), self._deeper()
            if held is not None and (found := deeper.batches(held)) is not None:
                self.slices = deeper.slices
                return found
            value = found_in(node, self._names) if isinstance(node, ast.expr) else MISSING
            function = _method_of(value, "__iter__")
            return None if function is None else self._yielded(function, [], {}, value)
        name, given = called_name(node), node.args
        if name in ("range", "trange"):
            numbers = [self.number(arg) for arg in given]
            whole = [int(n) for n in numbers if n is not None and n == int(n)]
            return len(range(*whole)) if len(whole) == len(numbers) and 0 not in whole[2:] else None
        if name == "split":
            return self._split(node)
        if name in _SAME_ITEMS:
            return self.batches(given[0]) if given else None
        if name == "zip":
            return next((n for n in map(self.batches, given) if n is not None), None)
        function = found_in(node.func, self._names)
        this: Any = MISSING
        if isinstance(function, MethodType):
            function, this = function.__func__, function.__self__
        if not isinstance(function, FunctionType):
            return None
        return self._yielded(function, given, {k.arg: k.value for k in node.keywords if k.arg}, this)

    def _split(self, node: ast.Call) -> int | None:
        """Evaluate ``torch.split(x, n)`` and ``x.split(n)``."""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        given = list(node.args)
        if owner is not None and not isinstance(found_in(owner, self._names), ModuleType):
            given.insert(0, owner)
        if node.keywords:
            return None
        length = self.length(given[0]) if len(given) == 2 else None
        each = self.number(given[1]) if len(given) == 2 else None
        if length is None or not each:
            return None
        self.slices = True
        return math.ceil(length / each)

    def _yielded(
        self, function: FunctionType, given: Sequence[ast.expr], named: Mapping[str, ast.expr], this: Any
    ) -> int | None:
        """Return the number of items of a generator function of the script with one loop."""
        code = function.__code__
        if not code.co_flags & inspect.CO_GENERATOR or not is_user_file(code.co_filename):
            return None
        definition = definition_of(code.co_filename, code.co_firstlineno, code.co_name)
        loops = [n for n in nodes_of(definition) if isinstance(n, (ast.For, ast.While))] if definition else []
        if definition is None or len(loops) != 1 or not isinstance(loop := loops[0], ast.For):
            return None
        yields = [n for n in nodes_of(definition) if isinstance(n, (ast.Yield, ast.YieldFrom))]
        direct = [s.value for s in loop.body if isinstance(s, ast.Expr)]
        if len(yields) != 1 or yields[0] not in direct or leaves_out(loop):
            return None
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        held = {} if this is MISSING else {parameters[0]: this}
        words = dict(zip([p for p in parameters if p not in held], given, strict=False)) | dict(named)
        bound = {name: n for name, node in words.items() if (n := self.number(node)) is not None}
        space = _given_to(function) | held | {n: found_in(node, self._names) for n, node in words.items()}
        inner = LoopSource(
            ChainMap(space, function.__globals__),
            assigned_values(definition),
            self._batch,
            self._size,
            bound,
            self._depth + 1,
        )
        found = inner.batches(loop.iter) if self._depth < _DEEPEST else None
        self.slices = inner.slices or is_sliced(loop)
        return found

    def number(self, node: ast.AST) -> float | None:
        """Return the value of an expression for the other batch size."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                found = self.number(inner)
                return None if found is None else -found
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                one, other = self.number(left), self.number(right)
                try:
                    return None if one is None or other is None else ARITHMETIC[type(op)](one, other)
                except ArithmeticError:
                    return None
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=ast.Constant(value=0)):
                return self.length(owner)
            case ast.Call(args=given):
                return self._called(node, called_name(node), given)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._setting(node)
            case _:
                return None

    def _called(self, node: ast.Call, name: str, given: Sequence[ast.expr]) -> float | None:
        if name == "len" and len(given) == 1:
            return self.length(given[0])
        if name == "size" and isinstance(node.func, ast.Attribute) and _is_zero(given):
            return self.length(node.func.value)
        found = self.number(given[0]) if len(given) == 1 else None
        if found is None or name not in ("int", "ceil", "floor"):
            return None
        return math.ceil(found) if name == "ceil" else math.floor(found)

    def _setting(self, node: ast.Name | ast.Attribute | ast.Subscript) -> float | None:
        """Return the value of a name: the batch size, a value derived from it, or the current value."""
        text = ast.unparse(node)
        if text in self._bound:
            return self._bound[text]
        value = found_in(node, self._names)
        is_number = type(value) in (int, float)
        if is_number and value == self._batch and key_of(_last_of(node)) in _KEYS:
            return self._size
        held = self._once(node)
        if held is None or (value is not MISSING and not is_number):
            return value if is_number else None
        if not is_number or self._deeper(self._batch).number(held) == value:
            return self._deeper().number(held)
        return value

    def length(self, node: ast.AST) -> int | None:
        """Return the number of items in an object."""
        if isinstance(node, ast.Call):
            name, given = called_name(node), node.args
            if name in ("randperm", "arange") and given:
                ends = [self.number(arg) for arg in given[:2]]
                low, high = (0, ends[0]) if len(ends) == 1 or name == "randperm" else ends
                return None if low is None or high is None else max(0, int(high - low))
            if name == "permutation" and len(given) == 1:
                found = self.number(given[0])
                return self.length(given[0]) if found is None else int(found)
            return self.length(given[0]) if name in _SAME_ITEMS and given else None
        value = found_in(node, self._names) if isinstance(node, ast.expr) else MISSING
        if value is MISSING:
            held = self._once(node)
            return None if held is None else self._deeper().length(held)
        shape = attribute_of(value, "shape")
        if isinstance(shape, tuple) and shape and type(shape[0]) is int:
            return shape[0]
        return length_of(value, None) if type(value) in _SIZED else None

    def _once(self, node: ast.AST) -> ast.AST | None:
        """Return the expression assigned to a name, if there is only one."""
        held = self._values.get(ast.unparse(node), ())
        return held[0] if len(held) == 1 and self._depth < _DEEPEST else None

    def _deeper(self, size: int | None = None) -> LoopSource:
        size = self._size if size is None else size
        return LoopSource(self._names, self._values, self._batch, size, self._bound, self._depth + 1)


def _method_of(value: Any, name: str) -> FunctionType | None:
    """Return a method that a class of the script defines; None for anything else."""
    found = next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)
    return found if isinstance(found, FunctionType) and value is not MISSING else None


def _given_to(function: FunctionType) -> dict[str, Any]:
    """Return the names known in a function before its call: enclosing variables and defaults."""
    code, given = function.__code__, function.__defaults__ or ()
    found: dict[str, Any] = dict.fromkeys(code.co_varnames, MISSING)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # empty
            continue
    found |= zip(reversed(code.co_varnames[: code.co_argcount]), reversed(given), strict=False)
    return found | (function.__kwdefaults__ or {})


def leaves_out(loop: ast.For) -> bool:
    """Return whether the loop skips batches, or ends, depending on their contents."""
    return any(isinstance(node, _LEAVES) for node in nodes_of(loop))


def is_sliced(loop: ast.For) -> bool:
    """Return whether a batch is a slice starting at the loop variable, or at a value derived from it."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in loop.body:
        if isinstance(node, ast.Assign) and names & _names_in(node.value):
            names |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    slices = (n for node in loop.body for n in ast.walk(node) if isinstance(n, ast.Slice))
    return any(part.lower is not None and names & _names_in(part.lower) for part in slices)


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _last_of(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
        case _:
            return ""


def _is_zero(given: Sequence[ast.expr]) -> bool:
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value == 0
