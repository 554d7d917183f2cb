"""Step counts that the script computes itself: lengths of schedules, and batches of a pass.

A count derived from the loader's length follows a batch size changed at the loader. A count derived from the
constant of the batch size does not. Observed in the baseline, and under `apply` of such a batch size.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import functools
import operator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.source.assignments import repeated
from autotune.source.derivation import assigned_values, called_name
from autotune.source.loops import loops_around, sets_rate
from autotune.trial.loop.assignments import found_in
from autotune.trial.loop.count_origins import (
    MOST_CALLERS,
    is_by_batch,
    length_arguments,
    parameters_of,
    source_tree,
    statement_at,
)
from autotune.trial.records.objects import held_by, names_of
from autotune.trial.runtime.state import caller, is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from autotune.trial.runtime.undo import Undo

_LENGTHS: Final = ("total_steps", "T_max", "T_0", "total_iters", "step_size", "num_training_steps")
_EXACT: Final = ("total_steps",)
"""Lengths beyond which a schedule raises an error."""
_MOST: Final = 32
_MOST_NAMES: Final = 200
ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}


class _Count(NamedTuple):
    """A step count computed by the script."""

    what: str
    """``OneCycleLR of {} steps (train.py:21)``, with a placeholder for the number."""
    numbers: tuple[int, ...]
    exact: bool
    follows: bool
    """The count is, or may be, derived from the length of a loader, according to the source."""
    is_certain: bool = False
    """The count certainly is."""
    is_pass: bool = False
    """The count is the number of batches in a pass."""
    by_batch: bool = False
    """The count is derived from the constant of the batch size, according to the source."""


class Schedules:
    """Step counts observed in the baseline."""

    def __init__(self, place: Callable[[str, int], str]) -> None:
        self._place = place
        self._counts: list[_Count] = []
        self._requested = False
        """Code of the script has requested the length of a loader."""
        self._loaders: tuple[type, ...] = ()
        self.on_schedule: Callable[[], None] | None = None
        """Called after the length of a schedule was recorded."""

    def install(self, torch: Any, undo: Undo) -> None:
        """Observe constructions of schedules and requests for a loader's length."""
        self._loaders = (torch.utils.data.DataLoader, torch.utils.data.BatchSampler)
        base = torch.optim.lr_scheduler.LRScheduler
        original, length = base.__init__, torch.utils.data.DataLoader.__len__

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            if len(self._counts) < _MOST:
                try:
                    self._note_schedule(this, caller(0))
                except Exception:  # an unreadable value is not known to be fixed
                    return

        @functools.wraps(length)
        def length_(this: Any) -> int:
            frame = caller(1)
            self._requested = self._requested or (
                frame is not None and is_user_file(frame.f_code.co_filename)
            )
            return length(this)

        undo.assign(base, "__init__", init)
        undo.assign(torch.utils.data.DataLoader, "__len__", length_)

    def note_loop(self, frames: Sequence[FrameType]) -> None:
        """Record a backward pass in a loop that may have a fixed number of batches."""
        frames = [frame for frame in frames if is_user_file(frame.f_code.co_filename)]
        stack: list[tuple[ast.Module, int, str]] = []
        for frame in frames:
            tree = source_tree(frame.f_code.co_filename)
            if tree is None:
                return
            stack.append((tree, frame.f_lineno, frame.f_code.co_name))
        for part in repeated(stack):
            loop, frame = part.node, frames[part.depth]
            self._note_rates(loop, stack[part.depth][0], frame)
            if not part.inside or not isinstance(loop, ast.For):
                continue
            limit = _limit(loop.iter)
            number = None if limit is None else _number(limit, names_of(frame))
            if limit is not None and number is not None:
                self._note_pass(loop, limit, number, stack[part.depth][0], frame)

    def note_passes(self, frames: Sequence[FrameType]) -> None:
        """Record loops of running functions that count their batches or set a learning rate.

        Args:
            frames: Where a pass over a loader starts, innermost first, before its first batch.
        """
        for frame in frames[:MOST_CALLERS]:
            tree = source_tree(frame.f_code.co_filename)
            if tree is None or len(self._counts) >= _MOST:
                return
            function = loops_around(tree, frame.f_lineno, frame.f_code.co_name)[0]
            self._note_rates(function, tree, frame)
            for loop in ast.walk(function):
                limit = _limit(loop.iter) if isinstance(loop, ast.For) and _requests(loop) else None
                number = None if limit is None else _number(limit, names_of(frame))
                if isinstance(loop, ast.For) and limit is not None and number is not None:
                    self._note_pass(loop, limit, number, tree, frame)

    def _note_pass(
        self, loop: ast.For, limit: ast.expr, number: int, tree: ast.Module, frame: FrameType
    ) -> None:
        what = f"a pass of {{}} batches ({self._place(frame.f_code.co_filename, loop.lineno)})"
        follows, is_certain = self._follows(limit, tree, frame)
        by_batch = is_by_batch([limit], tree, frame)
        found = _Count(
            what,
            (number,),
            exact=False,
            follows=follows,
            is_certain=is_certain,
            is_pass=True,
            by_batch=by_batch,
        )
        if found not in self._counts:
            self._counts.append(found)

    def _note_rates(self, part: ast.AST, tree: ast.Module, frame: FrameType) -> None:
        """Record assignments of a learning rate that is computed from the batch size."""
        for node in (n for n in ast.walk(part) if sets_rate(n)):
            if is_by_batch([node.value], tree, frame):
                what = f"steps for the learning rate ({self._place(frame.f_code.co_filename, node.lineno)})"
                found = _Count(what, (0,), exact=False, follows=False, by_batch=True)
                if found not in self._counts:
                    self._counts.append(found)

    def following(self, length: int = 0) -> str:
        """Return the schedule whose length is derived from that of a loader; empty if none is known.

        Args:
            length: Batches of a pass; 0 if unknown. One that may be derived counts if it is a multiple of it.
        """
        for count in self._counts:
            fits = length > 1 and any(n >= length and n % length == 0 for n in count.numbers)
            if count.follows and not count.is_pass and (count.is_certain or fits):
                return count.what.format(max(count.numbers))
        return ""

    def fixed(self, length: int | None, *, per_step: bool, counted: bool, passes_only: bool = False) -> str:
        """Return the count that would not follow another batch size of the loader; empty if none is known.

        Args:
            length: Batches of a pass at the script's own batch size; None if unknown.
            per_step: Schedules advance once per step.
            counted: The loop ends after a number of steps, so that a schedule over these is right.
            passes_only: Schedules keep their length in steps, as accumulation keeps the effective batch.
        """
        fixed = [c for c in self._counts if not c.follows and (c.is_pass or not passes_only)]
        if (found := next((c for c in fixed if c.by_batch and not c.is_pass), None)) is not None:
            return found.what.format(max(found.numbers))
        if not length or length < 2:
            return ""
        for count in fixed:
            if count.is_pass:
                number = count.numbers[0]
                if number == length or (count.by_batch and number and number % length == 0):
                    return count.what.format(number)
            elif per_step and not counted:
                fits = [n for n in count.numbers if count.exact or (n >= length and n % length == 0)]
                if fits:
                    return count.what.format(max(fits))
        return ""

    def _note_schedule(self, schedule: Any, frame: FrameType | None) -> None:
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            if _is_frameworks(frame):
                return
            frame = frame.f_back
        if frame is None:
            return
        held = held_by(schedule)
        numbers = [held[name] for name in _LENGTHS if type(held.get(name)) is int]
        numbers += [n for f in held.get("lr_lambdas") or () for n in _numbers_of(f)]
        exact = any(type(held.get(name)) is int for name in _EXACT)
        file = frame.f_code.co_filename
        tree = source_tree(file)
        statement = None if tree is None else statement_at(tree, frame.f_lineno)
        if not numbers or tree is None or statement is None:
            return
        follows, is_certain = self._follows(statement, tree, frame)
        by_batch = is_by_batch(length_arguments(statement, type(schedule)), tree, frame)
        what = f"{type(schedule).__name__} of {{}} steps ({self._place(file, frame.f_lineno)})"
        self._counts.append(
            _Count(
                what,
                tuple(numbers),
                exact=exact,
                follows=follows,
                is_certain=is_certain,
                by_batch=by_batch,
            )
        )
        if self.on_schedule is not None:
            self.on_schedule()

    def _follows(self, node: ast.AST, tree: ast.Module, frame: FrameType) -> tuple[bool, bool]:
        """Return whether an expression may be, and whether it is, derived from the length of a loader."""
        names = names_of(frame)
        values = assigned_values(tree)
        pending: list[ast.AST] = [node]
        known: set[str] = set()
        open_ends = False
        while pending and len(known) < _MOST_NAMES:
            for inner in ast.walk(pending.pop()):
                if isinstance(inner, ast.Call) and called_name(inner) == "len" and len(inner.args) == 1:
                    if isinstance(found_in(inner.args[0], names), self._loaders):
                        return True, True
                    # The length of an unknown object may be that of a loader.
                    open_ends = open_ends or "load" in ast.unparse(inner.args[0]).lower()
                if not isinstance(inner, (ast.Name, ast.Attribute)):
                    continue
                text = ast.unparse(inner)
                if text in known:
                    continue
                known.add(text)
                pending += values.get(text, ())
                open_ends = open_ends or (
                    isinstance(inner, ast.Name) and text in parameters_of(frame) and text not in values
                )
        return self._requested and open_ends, False


def _is_frameworks(frame: FrameType) -> bool:
    """Return whether code belongs to a library that counts training steps itself."""
    name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return name in ("lightning", "pytorch_lightning", "accelerate", "deepspeed", "keras") or (
        name == "transformers" and "trainer" in frame.f_code.co_filename
    )


def _limit(node: ast.expr) -> ast.expr | None:
    """Return the limit of a loop: ``range(n)``, ``trange(n)`` or ``islice(x, n)``, also in ``tqdm(...)``."""
    if not isinstance(node, ast.Call):
        return None
    name, given = called_name(node), node.args
    if name in ("range", "trange") and given:
        return given[min(1, len(given) - 1)]
    if name == "islice" and len(given) == 2:
        return given[1]
    return next((found for arg in given if (found := _limit(arg)) is not None), None)


def _requests(loop: ast.For) -> bool:
    """Return whether the loop requests batches of an iterator by `next`."""
    return any(isinstance(n, ast.Call) and called_name(n) == "next" for n in ast.walk(loop))


def _number(node: ast.expr, names: Mapping[str, Any]) -> int | None:
    """Return the integer value of arithmetic on known values."""
    value = _value(node, names)
    return (
        int(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
        else None
    )


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = _value(node.left, names), _value(node.right, names)
        try:
            return ARITHMETIC[type(node.op)](left, right)
        except (TypeError, ArithmeticError):
            return None
    value = found_in(node, names)
    return value if type(value) in (int, float) else None


def _numbers_of(function: Any) -> Iterator[int]:
    """Yield integers that a function of the step reads beside its argument."""
    if isinstance(function, functools.partial):
        yield from (v for v in (*function.args, *function.keywords.values()) if type(v) is int)
        return
    if not isinstance(function, FunctionType):
        yield from (v for v in held_by(function).values() if type(v) is int)
        return
    for cell in function.__closure__ or ():
        try:
            found = cell.cell_contents
        except ValueError:  # empty
            continue
        if type(found) is int:
            yield found
        elif isinstance(found, FunctionType) and found is not function:
            yield from _numbers_of(found)
    yield from (v for v in function.__defaults__ or () if type(v) is int)
    for code in (function.__code__, *(c for c in function.__code__.co_consts if isinstance(c, CodeType))):
        yield from (value for name in code.co_names if type(value := function.__globals__.get(name)) is int)
