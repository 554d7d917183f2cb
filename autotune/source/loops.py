"""Hazards in the source of a training loop for accumulation and scaled gradients. Pure.

Accumulation turns one step of the script's loop into a part of a step. If a loop counts steps, or does more
with gradients, weights or the learning rate than calling the optimizer, the training changes. The loop is
identified when a backward pass runs, by the frames on the stack.

Only names are available, so a finding is a hazard and not certain. Standard library only.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

STEP_COUNTED: Final = "step_counted_loop"
"""The loop, or one around it, ends after a number of steps."""
STEP_EVALUATED: Final = "step_evaluated_loop"
"""The loop evaluates every several steps."""
OWN_GRADIENT: Final = "own_gradient"
"""Code of the script reads or changes gradients between backward pass and step."""
OWN_AVERAGE: Final = "own_average"
"""Code of the script changes weights once per step, as a moving average does."""
OWN_RATE: Final = "own_rate"
"""The loop sets the learning rate itself."""
OWN_DRAWS: Final = "own_draws"
"""The loop draws from its own generator, which cannot be observed; only for loops observed running."""
CARRIED: Final = "carried_state"
"""The model's output for one batch is an input of its next call, like a hidden state; observed in a run."""
OWN_CLIPPING: Final = "own_clipping"
"""The loop clips gradients without a check of Accelerate's ``sync_gradients``.

No hazard if a knob defers steps, since the clipping is then deferred as well; only for loops observed
running.
"""
COLLECTED: Final = "collected_batch"
"""The loop collects its training data while it trains.

It steps an environment, or samples from a replay memory that it fills; only for loops observed running.
"""
GROWN: Final = "grown_dataset"
"""The loop adds samples to the dataset of a loader while it trains; only for loops observed running."""
UNREAD: Final = "unread_loop"
"""The source of the loop could not be read, or the backward pass is in no loop."""

_COUNTER: Final = re.compile(r"step|iter|idx|count|n_?batch", re.IGNORECASE)
_ORDERED: Final = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq)
_COUNTING: Final = frozenset({"range", "trange", "count", "islice"})
_EXITS: Final = frozenset({"exit", "quit", "_exit"})
_EVALUATES: Final = ("eval", "valid")
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_AVERAGES: Final = frozenset({"ema", "swa", "polyak"})
_OF_WEIGHTS: Final = frozenset(
    {"update", "encoder", "key", "target", "teacher", "weights", "params", "parameters"}
)
_OVER_WEIGHTS: Final = re.compile(r"\b(parameters|named_parameters|buffers|named_buffers|state_dict)\(")
_WHOLE_GRADIENTS: Final = frozenset({"clip_grads_with_norm_", "get_total_norm", "adaptive_clip_grad"})
_HARMLESS: Final = frozenset({"requires_grad_", "zero_", "clip_grad_norm_", "clip_grad_value_"})
_OPTIMIZERS: Final = re.compile(r"Optim|^(SGD|Adam\w*|RMSprop|Adagrad|Adadelta|Rprop|LBFGS|NAdam|RAdam)$")
_NOT_FOLLOWED: Final = frozenset({"backward", "zero_grad"})
_CLIPS: Final = frozenset({"clip_grad_norm", "clip_grad_norm_", "clip_grad_value_"})
_WHOLE: Final = "sync_gradients"
_GENERATOR: Final = re.compile(r"(^|_)(rng|prng|random_state)$", re.IGNORECASE)

_GROWS: Final = frozenset(
    {"append", "appendleft", "extend", "push", "add", "store", "insert", "put", "remember"}
)
_SAMPLES: Final = re.compile(r"(^|_)(sample|choices?|randint|randrange|integers|randperm|permutation)(_|$)")
_FEWEST_OF_A_STEP: Final = 3
"""An environment returns at least an observation, a reward and an end flag."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Statement = ast.For | ast.AsyncFor | ast.While
_Loop = _Statement | _Comprehension
_Place = tuple[ast.Module, int, str]
"""A file, a line in it, and the name of the function there."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Position of one frame of a stack.

    Args:
        source: Text of its file.
        line: Line in that file, from 1.
        function: Name of its code, which distinguishes lambdas and comprehensions from their line's function.
    """

    source: str
    line: int
    function: str = ""


def running_hazards(frames: Sequence[Frame], modules: Iterable[str] = ()) -> frozenset[str]:
    """Return hazards of the loop of an observed backward pass.

    Args:
        frames: Frames of the script and its libraries, innermost first.
        modules: Sources of the script's other modules, in which functions called by the loop are
            looked up by name.

    Returns:
        Words of this module; just `UNREAD` if the loop was not found.
    """
    trees = {text: parsed(text) for text in {*(frame.source for frame in frames), *modules}}
    known = [tree for tree in trees.values() if tree is not None]
    stack = [(tree, f.line, f.function) for f in frames if (tree := trees[f.source]) is not None]
    found = _hazards(stack, known)
    if found is None or len(stack) < len(frames):
        return frozenset({UNREAD})
    return found


def written_hazards(tree: ast.Module) -> frozenset[str]:
    """Return hazards of the loops in one file that call `backward` there; empty without such a loop."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) == "backward":
            found |= _hazards([(tree, node.lineno, "")], [tree]) or frozenset()
    return frozenset(found - {OWN_CLIPPING, OWN_DRAWS, COLLECTED, GROWN})


def is_only_pass(frames: Sequence[Frame], modules: Iterable[str] = ()) -> bool:
    """Return whether the loop of a backward pass ends with its own passes over the data only.

    That loop may count the batches of a pass. No step count ends it or a loop around it, and no other loop
    calls `backward`, which may train over other passes.

    Args:
        frames: As for `running_hazards`.
        modules: As there.
    """
    trees = {text: parsed(text) for text in {*(frame.source for frame in frames), *modules}}
    known = [tree for tree in trees.values() if tree is not None]
    stack = [(tree, f.line, f.function) for f in frames if (tree := trees[f.source]) is not None]
    placed = _innermost(stack)
    if placed is None or len(stack) < len(frames) or not isinstance(placed.loop, ast.For):
        return False
    calls = Counter(_last(n.func) for tree in known for n in ast.walk(tree) if isinstance(n, ast.Call))
    names = {"backward", *(str(getattr(function, "name", "")) for function in placed.called)}
    return all(calls[name] == 1 for name in names) and not _ends_by_count(placed, known)


def parsed(source: str) -> ast.Module | None:
    """Return the tree of a source; None if it cannot be parsed."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _hazards(stack: Sequence[_Place], trees: Sequence[ast.Module]) -> frozenset[str] | None:
    """Return hazards of the innermost loop on this stack; None without one."""
    placed = _innermost(stack)
    return None if placed is None else frozenset(_of_loop(placed, trees))


class _Placed(NamedTuple):
    """A loop that runs once per step.

    Args:
        loop: The innermost one on a stack.
        called: Functions on the stack between it and the backward pass.
        around: Loops around it, innermost first.
    """

    loop: _Loop
    called: Sequence[ast.AST]
    around: Sequence[_Loop]

    @property
    def once(self) -> list[ast.AST]:
        """Return code that runs once per step."""
        return [self.loop, *self.called]


def _innermost(stack: Sequence[_Place]) -> _Placed | None:
    called: list[ast.AST] = []
    for depth, place in enumerate(stack):
        function, loops = loops_around(*place)
        if loops:
            outside = [loops_around(*further)[1] for further in stack[depth + 1 :]]
            around = [loop for inside_out in (loops[:-1], *outside) for loop in reversed(inside_out)]
            return _Placed(loops[-1], called, around)
        called.append(function)
    return None


def loops_around(tree: ast.Module, line: int, name: str) -> tuple[ast.AST, list[_Loop]]:
    """Return the function that a line belongs to, and the loops in it that run the line, outermost first."""
    function: ast.AST = tree
    loops: list[_Loop] = []
    comprehends = name.strip("<>") in ("listcomp", "setcomp", "dictcomp", "genexpr")
    node: ast.AST | None = tree
    while node is not None:
        inside = [n for n in _placed(node) if n.lineno <= line <= (n.end_lineno or n.lineno)]
        node = next((n for n in inside if _is_loop(n)), inside[0] if inside else None)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
            isinstance(node, ast.Lambda) and name == "<lambda>"
        ):
            function, loops = node, []
        elif isinstance(node, _Statement) or (comprehends and node is not None and _is_loop(node)):
            loops.append(node)
    return function, loops[-1:] if comprehends else loops


def _placed(node: ast.AST) -> Iterator[ast.stmt | ast.expr | ast.excepthandler]:
    """Yield children with a position, and the descendants of others."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.expr, ast.excepthandler)):
            yield child
        else:
            yield from _placed(child)


def _is_loop(node: ast.AST) -> TypeGuard[_Loop]:
    return isinstance(node, (_Statement, _Comprehension))


def _of_loop(placed: _Placed, trees: Sequence[ast.Module]) -> Iterator[str]:
    """Yield hazards of a loop.

    Args:
        placed: Its position.
        trees: Trees in which functions called by it are looked up.
    """
    loop, once = placed.loop, placed.once
    reached = [*once, *_reached(once, trees)]
    if (_counts(loop) and not _is_endless(loop, reached, trees)) or _ends_by_count(placed, trees):
        yield STEP_COUNTED
    if any(_evaluates_at(node, trees) for part in once for node in ast.walk(part)):
        yield STEP_EVALUATED
    nodes = [node for part in reached for node in ast.walk(part)]
    if any(_draws(node) for node in nodes):
        yield OWN_DRAWS
    if any(_uses_gradient(node) for node in nodes):
        yield OWN_GRADIENT
    if any(_writes_weights(node) for node in nodes) or any(
        _averages(node) for part in once for node in ast.walk(part)
    ):
        yield OWN_AVERAGE
    if any(sets_rate(node) for node in nodes):
        yield OWN_RATE
    if _clips_parts(once, trees):
        yield OWN_CLIPPING
    every = [*once, *placed.around]
    trains = [*every, *_reached(every, trees, evaluates=False)]
    nodes = [node for part in trains for node in ast.walk(part)]
    if _collects(nodes):
        yield COLLECTED
    if _grows_dataset(nodes, trees):
        yield GROWN


# Ends by a count


def _ends_by_count(placed: _Placed, trees: Sequence[ast.Module]) -> bool:
    """Return whether a step count ends the loop, or one around it."""
    loop = placed.loop
    counters = {name for part in placed.once for name in _counters(part)}
    return (
        any(_leaves_at(node, counters, loop) for node in _directly_in(loop))
        or any(
            _leaves_at(node, counters, part, returns=False)
            for part in placed.called
            for node in ast.walk(part)
        )
        or any(_ends_by(outer, counters) for outer in placed.around)
        or any(_epochs_by_steps(tree) for tree in trees)
    )


def _counts(loop: _Loop) -> bool:
    """Return whether the loop itself runs for a number of steps, or until an event inside it."""
    if isinstance(loop, ast.While):
        return True
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        return _is_counting(loop.iter)
    return any(_is_counting(generator.iter) for generator in loop.generators)


def _is_counting(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return _last(node.func) in _COUNTING or any(_is_counting(a) for a in node.args)


def _is_endless(loop: _Loop, reached: Sequence[ast.AST], trees: Sequence[ast.Module]) -> bool:
    """Return whether the loop never ends by itself, and so not after a number of steps."""
    match loop:
        case ast.While(test=ast.Constant(value=value)):
            endless = bool(value)
        case ast.For(iter=ast.Call(func=function)):
            endless = _last(function) == "count"
        case _:
            endless = False
    if not endless or any(isinstance(node, ast.Break) for node in _directly_in(loop)):
        return False
    if any(isinstance(node, ast.Return) for node in ast.walk(loop)):
        return False
    inside = [node for part in reached for node in ast.walk(part)]
    if any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _last(node.func) in _EXITS)
        for node in inside
    ):
        return False
    # A handler around it may treat the end of a counted iterator.
    tries = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Try))
    return not any(node is loop for attempt in tries for node in ast.walk(attempt))


def _evaluates_at(node: ast.AST, trees: Sequence[ast.Module]) -> bool:
    """Return whether an evaluation runs every several steps: more often if each is a part of one.

    Its random draws and its decisions, as on the best model or an early end, would then differ.
    """
    if not isinstance(node, ast.If):
        return False
    if not any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(node.test)):
        return False
    own = {_last(n.func) for s in node.body for n in ast.walk(s) if isinstance(n, ast.Call)}
    if any(map(_is_evaluation, own)):
        return True
    called = (n for part in _reached(node.body, trees) for n in ast.walk(part))
    return any(isinstance(n, ast.Call) and _last(n.func) == "eval" for n in called)


def _is_evaluation(name: str) -> bool:
    return any(word.lower().startswith(_EVALUATES) for word in _WORDS.findall(name))


def _counters(part: ast.AST) -> Iterator[str]:
    """Yield names that grow from step to step."""
    for node in ast.walk(part):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
            yield _last(node.target)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            terms = {_last(term) for term in (node.value.left, node.value.right)} - {""}
            yield from terms & {_last(target) for target in node.targets}
        elif isinstance(node, (ast.For, ast.AsyncFor)) and isinstance(node.iter, ast.Call):
            target = node.target
            if _last(node.iter.func) == "enumerate" and isinstance(target, ast.Tuple) and target.elts:
                yield _last(target.elts[0])


def _leaves_at(node: ast.AST, counters: set[str], part: ast.AST, *, returns: bool = True) -> bool:
    """Return whether a condition on a count leaves the loop.

    Args:
        node: Possibly such a condition.
        counters: Names known to count.
        part: Code in which a name with any other assignment is no counter.
        returns: Whether ``break`` and ``return`` leave the loop, or only an error and the process's end.
    """
    if not isinstance(node, ast.If):
        return False
    leaving = (ast.Break, ast.Return, ast.Raise) if returns else (ast.Raise,)
    inside = [inner for statement in node.body for inner in ast.walk(statement)]
    if not any(
        isinstance(n, leaving) or (isinstance(n, ast.Call) and _last(n.func) in _EXITS) for n in inside
    ):
        return False
    compares = [n for n in ast.walk(node.test) if isinstance(n, ast.Compare) and _is_ordered(n)]
    return any(_is_count(side, counters, part) for compare in compares for side in _sides(compare))


def _is_ordered(compare: ast.Compare) -> bool:
    # A comparison with a remainder holds repeatedly: it is no end.
    periodic = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(compare))
    return not periodic and any(isinstance(op, _ORDERED) for op in compare.ops)


def _sides(compare: ast.Compare) -> list[ast.expr]:
    return [compare.left, *compare.comparators]


def _is_count(side: ast.expr, counters: set[str], part: ast.AST) -> bool:
    named = {_last(n) for n in ast.walk(side) if isinstance(n, (ast.Name, ast.Attribute))}
    if named & counters or _COUNTER.search(ast.unparse(side)):
        return True
    return isinstance(side, ast.Name) and side.id not in _set_in(part)


def _set_in(part: ast.AST) -> set[str]:
    return {
        name.id
        for node in ast.walk(part)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


def _ends_by(outer: _Loop, counters: set[str]) -> bool:
    """Return whether a loop around ends by a count of the inner one."""

    def counted(test: ast.expr) -> bool:
        names = {_last(n) for n in ast.walk(test) if isinstance(n, (ast.Name, ast.Attribute))}
        return bool(names & counters)

    if isinstance(outer, ast.While) and counted(outer.test):
        return True
    if not isinstance(outer, (ast.For, ast.AsyncFor, ast.While)):
        return False
    conditions = [n for n in _directly_in(outer) if isinstance(n, ast.If)]
    return any(counted(n.test) and _leaves_at(n, counters, outer) for n in conditions)


def _epochs_by_steps(tree: ast.Module) -> bool:
    """Return whether a number of epochs is computed from a number of steps and the loader's length."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
            steps = re.search(r"(max|total|num|n)_?\w*(steps|iter)", ast.unparse(node.left), re.IGNORECASE)
            lengths = (n for n in ast.walk(node.right) if isinstance(n, ast.Call) and _last(n.func) == "len")
            if steps and any("load" in ast.unparse(n) for n in lengths):
                return True
    return False


def _directly_in(loop: _Loop) -> Iterator[ast.AST]:
    """Yield nodes of a loop's body, without nested loops and functions."""
    pending: list[ast.AST] = list(loop.body) if isinstance(loop, _Statement) else []
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (_Statement, _Function)):
            pending.extend(ast.iter_child_nodes(node))


# More than calling the optimizer


def _reached(
    parts: Sequence[ast.AST], trees: Sequence[ast.Module], *, evaluates: bool = True
) -> Iterator[ast.AST]:
    """Yield functions that the loop calls by name, and those that these call.

    Args:
        parts: The loop, and functions known to be called.
        trees: Trees in which functions are looked up.
        evaluates: Also follow functions named after an evaluation.
    """
    by_name = _by_name(trees)
    pending, known = list(parts), set[str]()
    while pending:
        part = pending.pop()
        for name in _followed(part) - known:
            known.add(name)
            if evaluates or not _is_evaluation(name):
                pending += by_name.get(name, [])
                yield from by_name.get(name, [])


def _by_name(trees: Sequence[ast.Module]) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for tree in trees:
        for name, function in _functions(tree, of_optimizer=False):
            found.setdefault(name, []).append(function)
    return found


def _functions(node: ast.AST, *, of_optimizer: bool) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            optimizer = any(_OPTIMIZERS.search(_last(base)) for base in child.bases)
            yield from _functions(child, of_optimizer=optimizer)
        else:
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not of_optimizer:
                yield child.name, child
            yield from _functions(child, of_optimizer=of_optimizer)


def _followed(part: ast.AST) -> set[str]:
    return _names_called(node for node in ast.walk(part) if not _clips_by_accelerate(node))


def _clips_by_accelerate(node: ast.AST) -> bool:
    """Return whether a call clips gradients by Accelerate's method, which unscales first."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in _CLIPS and "accelerat" in ast.unparse(node.func.value).lower()


def _names_called(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            name = _last(node.func)
            of = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if name not in _NOT_FOLLOWED and not (
                name == "step" and re.search("opt|scaler", of, re.IGNORECASE)
            ):
                found.add(name)
    return found


def _clips_parts(parts: Sequence[ast.AST], trees: Sequence[ast.Module]) -> bool:
    """Return whether gradients are clipped, here or in a called function, also on incomplete steps."""
    by_name = _by_name(trees)
    pending, known = list(parts), set[str]()
    while pending:
        called = _names_called(_of_every_part(pending.pop())) - known
        if called & _CLIPS:
            return True
        known |= called
        pending += [function for name in called for function in by_name.get(name, ())]
    return False


def _of_every_part(part: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes except those that run only on complete gradients."""
    pending = [part]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and _is_whole(node.test):
            pending += node.orelse
        else:
            pending.extend(ast.iter_child_nodes(node))


def _is_whole(test: ast.expr) -> bool:
    """Return whether a condition implies Accelerate's flag: the flag alone, or with others."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_whole(value) for value in test.values)
    return _last(test) == _WHOLE


def _draws(node: ast.AST) -> bool:
    """Return whether a call receives a generator, or is a method of one, by its name."""
    if not isinstance(node, ast.Call):
        return False
    if any(keyword.arg == "generator" for keyword in node.keywords):
        return True
    return isinstance(node.func, ast.Attribute) and bool(_GENERATOR.search(_last(node.func.value)))


def _uses_gradient(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "grad":
        return _last(node.value) != "autograd"
    return isinstance(node, ast.Call) and _last(node.func) in _WHOLE_GRADIENTS


def _writes_weights(node: ast.AST) -> bool:
    """Return whether a loop over all weights writes to them, or a call does so at once."""
    if isinstance(node, ast.Call):
        name = _last(node.func)
        return name.startswith("_foreach_") and name.endswith("_")
    if not isinstance(node, (ast.For, ast.AsyncFor)) or not _OVER_WEIGHTS.search(ast.unparse(node.iter)):
        return False
    taken = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    return any(_writes(inner, taken) for statement in node.body for inner in ast.walk(statement))


def _writes(node: ast.AST, taken: set[str]) -> bool:
    if isinstance(node, ast.Call):
        name = _last(node.func)
        return name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
    if isinstance(node, ast.AugAssign):
        return _last(node.target) in {*taken, "data"} or isinstance(node.target, ast.Subscript)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(t, ast.Subscript) or _last(t) == "data" for t in targets)


def _averages(node: ast.AST) -> bool:
    """Return whether a call updates a moving average of weights, by name; torch's is detected at run time."""
    if not isinstance(node, ast.Call) or _last(node.func) == "update_parameters":
        return False
    words = {word.lower() for word in _WORDS.findall(ast.unparse(node.func))}
    # Means of the loss move as well, and change no weight.
    moves = "momentum" in words or {"moving", "average"} <= words
    return bool(words & _AVERAGES) or (moves and bool(words & _OF_WEIGHTS) and "loss" not in words)


def _collects(nodes: Sequence[ast.AST]) -> bool:
    """Return whether a replay memory grows and is sampled, or an environment is stepped and reset."""
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    owners: dict[str, set[str]] = {}
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        owners.setdefault(call.func.attr, set()).add(ast.unparse(call.func.value))
    grown = {owner for name in _GROWS for owner in owners.get(name, ())}
    drawn = {owner for name in owners if _SAMPLES.search(name) for owner in owners[name]}
    drawn |= {
        ast.unparse(source)
        for call in nodes
        if isinstance(call, ast.Call) and _SAMPLES.search(_last(call.func))
        for source in (*call.args[:1], *_measured(call.args))
    }
    return bool(grown & drawn) or bool(_stepped(nodes) & owners.get("reset", set()))


def _grows_dataset(nodes: Sequence[ast.AST], trees: Sequence[ast.Module]) -> bool:
    """Return whether samples are added to a loader's dataset: ``buffer.rows.append(row)``."""
    calls = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call)]
    loaders = [call for call in calls if _last(call.func) == "DataLoader"]
    given = [arg for call in loaders for arg in call.args[:1]]
    given += [k.value for call in loaders for k in call.keywords if k.arg == "dataset"]
    held = {ast.unparse(arg) for arg in given if isinstance(arg, (ast.Name, ast.Attribute))}
    grown = {
        ast.unparse(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWS
    }
    return any(owner == name or owner.startswith(f"{name}.") for owner in grown for name in held)


def _measured(arguments: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Yield objects whose length is taken in these arguments: random indices into them."""
    for node in (n for argument in arguments for n in ast.walk(argument)):
        if isinstance(node, ast.Call) and _last(node.func) == "len":
            yield from node.args


def _stepped(nodes: Sequence[ast.AST]) -> set[str]:
    """Return objects whose `step` has an argument and returns several results."""
    return {
        ast.unparse(node.value.func.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and len(node.targets[0].elts) >= _FEWEST_OF_A_STEP
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "step"
        and node.value.args
    }


def sets_rate(node: ast.AST) -> TypeGuard[ast.Assign | ast.AugAssign]:
    """Return whether a statement assigns the learning rate of a parameter group."""
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AugAssign)
        else []
    )
    return any(
        isinstance(t, ast.Subscript) and isinstance(t.slice, ast.Constant) and t.slice.value == "lr"
        for t in targets
    )


def _last(node: ast.AST) -> str:
    """Return the last name of a dotted expression: ``torch.optim.LBFGS`` -> ``LBFGS``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
