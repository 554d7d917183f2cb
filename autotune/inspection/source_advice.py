"""Advice on the script's own code that no knob covers, with file and line.

Only syntax trees are used; no code is imported or run. The script is parsed, and the user's modules beside it
that it imports. Each hint has its line; its possible gain is estimated by `autotune.answer.advice`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.inspection.sdk_calls import calls_of, constant_samples
from autotune.inspection.sources import shown, sources
from autotune.model.facts import Advice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autotune.model.facts import HostFacts

_READS: Final = frozenset({"item", "tolist", "numpy"})
_MAKERS: Final = frozenset({"model", "net", "network", "criterion", "loss_fn", "loss_func", "loss_function"})
"""Names of callables that return tensors, also if the file does not define them."""
_FUNCTIONAL: Final = frozenset({"F", "nn.functional", "torch.nn.functional"})
_OF_TENSORS: Final = frozenset(
    {"abs", "argmax", "clone", "cpu", "detach", "float", "max", "mean", "min", "norm", "sum"}
)
"""Tensor methods that return another tensor; queries of its size or type do not synchronize."""
_OUTPUTS: Final = frozenset({"data", "grad", "logits", "loss"})
_BARS: Final = frozenset({"set_postfix", "set_postfix_str", "set_description"})
_LOGS: Final = frozenset(
    {"print", "add_scalar", "log_metric", "log_metrics", "log", "info", "debug", "write"}
)
_PIXELS: Final = frozenset(
    {"open", "imread", "imdecode", "read_image", "decode_image", "resize", "rotate", "convert", "loads"}
)
_SETTINGS: Final = frozenset(
    {"amp", "scaler", "use", "cuda", "rank", "main", "fp16", "bf16", "clip", "clipping"}
)
"""Words in the names of conditions that hold in every step."""
_ACTING: Final = frozenset(
    {"gym", "gymnasium", "pettingzoo", "skrl", "stable_baselines3", "tianshou", "torchrl"}
)
"""Packages whose users train on collected experience."""
_TENSOR_CORES: Final = (7, 0)
_MULTIPLE: Final = 8
_SIZES: Final = (
    "in_features",
    "out_features",
    "num_embeddings",
    "embedding_dim",
    "input_size",
    "hidden_size",
)
_SIZED: Final = ("Linear", "Embedding", "LSTM", "GRU", "TransformerEncoderLayer", "MultiheadAttention")


@dataclass(frozen=True, slots=True)
class _Loop:
    """Facts about one training loop: its file, names of tensors in it, whether there is a device."""

    file: str
    tensors: frozenset[str]
    has_gpu: bool


def advise(path: str, host: HostFacts | None = None) -> tuple[Advice, ...]:
    """Return hints about a script, in the order of files and lines.

    Args:
        path: Path of the script. One that is unreadable, or not Python, has none; other commands report that.
        host: The machine; hints about tensor cores require a device with them. None: without.
    """
    script = Path(path)
    has_cores = host is not None and any(d.capability >= _TENSOR_CORES for d in host.devices)
    has_gpu = host is not None and bool(host.devices)
    found: list[Advice] = []
    for file, tree in sources(script):
        name = shown(file, script.parent)
        found += _in_loops(tree, name, has_gpu=has_gpu)
        found += _constant_samples(tree, name)
        found += () if any(hint.kind == "rollout" for hint in found) else _reinforcement(tree, name)
        found += _in_datasets(tree, name)
        if has_cores:
            found += _shapes(tree, name)
        if has_gpu:
            found += _copies(tree, name)
    return tuple(dict.fromkeys(found))


# Training loops


def _in_loops(tree: ast.Module, name: str, *, has_gpu: bool) -> Iterator[Advice]:
    makers = _makers(tree)
    for loop in ast.walk(tree):
        if isinstance(loop, (ast.For, ast.While, ast.AsyncFor)) and _trains(loop):
            made = _Loop(name, _tensors(loop, makers), has_gpu)
            yield from _loop_body(loop.body, made)


def _makers(tree: ast.Module) -> frozenset[str]:
    """Return callables that make outputs and losses: objects with parameters, and loss constructors."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("parameters", "named_parameters"):
                found.add(ast.unparse(node.func.value))
        elif isinstance(node, ast.Assign) and _builds_loss(node.value):
            found |= {ast.unparse(target) for target in node.targets}
    return frozenset(found)


def _builds_loss(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _called(value).endswith("Loss")


def _tensors(loop: ast.For | ast.While | ast.AsyncFor, makers: frozenset[str]) -> frozenset[str]:
    """Return names in a loop that are certainly tensors: differentiated, or returned by a model or loss.

    A name that is also assigned a number in the loop is excluded.
    """
    found: set[str] = set()
    read: set[str] = set()
    for node in (n for statement in loop.body for n in _own(statement)):
        if isinstance(node, ast.Call) and _called(node) == "backward":
            found |= _differentiated(node)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if any(_is_read(call) for call in _calls(node.value)):
                read |= names
            elif isinstance(node.value, ast.Call) and _makes_tensors(node.value, makers):
                found |= names
    return frozenset(found - read)


def _differentiated(call: ast.Call) -> set[str]:
    """Return names in ``a.backward()``, ``(a / n).backward()`` and ``x.backward(a)``."""
    given: list[ast.expr] = list(call.args)
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not given and owner is not None:
        given = [owner.left] if isinstance(owner, ast.BinOp) else [owner]
        given = list(owner.args) if isinstance(owner, ast.Call) else given
    return {node.id for node in given if isinstance(node, ast.Name)}


def _makes_tensors(call: ast.Call, makers: frozenset[str]) -> bool:
    whole = ast.unparse(call.func)
    owner, _, last = whole.rpartition(".")
    return whole in makers or last in _MAKERS or owner in _FUNCTIONAL


def _is_read(call: ast.Call) -> bool:
    is_number = isinstance(call.func, ast.Name) and call.func.id in ("float", "int")
    return is_number or (isinstance(call.func, ast.Attribute) and call.func.attr in _READS)


def _is_tensor(node: ast.expr, tensors: frozenset[str]) -> bool:
    """Return whether this is a known tensor, or derived from one without reading a value."""
    if isinstance(node, ast.Name):
        return node.id in tensors
    if isinstance(node, ast.BinOp):
        return _is_tensor(node.left, tensors) or _is_tensor(node.right, tensors)
    if isinstance(node, ast.Attribute):
        return node.attr in _OUTPUTS and _is_tensor(node.value, tensors)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _OF_TENSORS and _is_tensor(node.func.value, tensors)
    return False


def _trains(loop: ast.For | ast.While | ast.AsyncFor) -> bool:
    """Return whether its own body, without nested loops, calls `backward` or a `step`."""
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        for statement in loop.body
        for call in _calls(statement)
    )


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield calls in a statement, without those in nested loops and functions."""
    yield from (found for found in _own(node) if isinstance(found, ast.Call))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and its parts, without nested loops and functions."""
    if isinstance(
        node, (ast.For, ast.While, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    ):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own(child)


def _loop_body(body: Sequence[ast.stmt], loop: _Loop) -> Iterator[Advice]:
    """Yield hints about calls that run in every step."""
    reported: set[int] = set()
    for call in _every_time(body, leaves=_leaves_step):
        if not isinstance(call, ast.Call):
            continue
        # A copy made to be read is reported once.
        if id(call) in reported:
            continue
        hint = _of_call(call, loop) or _synchronization(call, loop)
        if hint is not None:
            reported |= {id(inner) for inner in ast.walk(call)} if hint.kind == "read" else set()
            yield hint


def _every_time(
    body: Sequence[ast.stmt], leaves: Callable[[ast.If], bool], *, in_loops: bool = False
) -> Iterator[ast.AST]:
    """Yield nodes that run in every execution of a body; branches, handlers and functions in it may not.

    Args:
        body: Body of a loop or a function.
        leaves: Whether a branch ends the body early so often that later nodes rarely run.
        in_loops: Include nested loops, as far as their first iteration runs them.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _evaluated(statement.test)
            if _is_a_setting(statement.test):
                for branch in (statement.body, statement.orelse):
                    yield from _every_time(branch, leaves, in_loops=in_loops)
            elif leaves(statement):
                return
        elif isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
            yield from _every_time(statement.body, leaves, in_loops=in_loops)
        elif isinstance(statement, (ast.For, ast.While)):
            is_entered = isinstance(statement, ast.For) or isinstance(statement.test, ast.Constant)
            if in_loops and is_entered:
                yield statement
                yield from _every_time(statement.body, leaves, in_loops=True)
        else:
            yield from _evaluated(statement)


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement or expression that are evaluated whatever its conditions."""
    if isinstance(node, (ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    yield node
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.IfExp) and not _is_a_setting(node.test):
        parts = [node.test]
    elif isinstance(node, ast.BoolOp) and not _is_a_setting(node.values[0]):
        parts = node.values[:1]
    for part in parts:
        yield from _evaluated(part)


def _leaves_step(branch: ast.If) -> bool:
    """Return whether a branch is like ``if step % 100: continue``, after which nodes run rarely."""
    return isinstance(branch.body[-1], ast.Continue) and _counts(branch.test)


def _leaves_function(branch: ast.If) -> bool:
    """Return whether a branch is like ``if i in cache: return cache[i]``, a cache hit."""
    return isinstance(branch.body[-1], ast.Return)


def _counts(test: ast.expr) -> bool:
    """Return whether an expression contains a remainder."""
    return any(isinstance(node, ast.Mod) for node in ast.walk(test))


def _is_a_setting(test: ast.expr) -> bool:
    """Return whether a condition tests the run's settings, equal in every step; others may rarely hold."""
    if _counts(test):
        return False
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        # ``rank == 0 and step % 20 == 0``
        return all(_is_a_setting(part) for part in test.values)
    names = {n.id.lower() for n in ast.walk(test) if isinstance(n, ast.Name)}
    names |= {n.attr.lower() for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    words = {word for held in names for word in held.split("_")}
    return not _SETTINGS.isdisjoint(words)


def _of_call(call: ast.Call, loop: _Loop) -> Advice | None:
    called, name, line = _called(call), loop.file, call.lineno
    # The CPU computes synchronously, so reading a value does not wait.
    if loop.has_gpu and called in _READS and isinstance(call.func, ast.Attribute) and not call.args:
        return Advice(
            kind="read",
            file=name,
            line=line,
            part="host",
            text=f".{called}() in every step waits until the step is computed; keep the tensor (detached) "
            "and read it every so many steps.",
        )
    if called in _BARS or (called in _LOGS and _prints_tensors(call) and not _is_arithmetic(call)):
        return Advice(
            kind="log",
            file=name,
            line=line,
            part="host",
            text=f"{called}() in every step makes the loop wait for the value and for the output; log every "
            "so many steps.",
        )
    if called in ("save", "save_checkpoint", "save_pretrained", "save_state") and _is_saving(call):
        return Advice(
            kind="checkpoint",
            file=name,
            line=line,
            part="host",
            text="A checkpoint is written in every step; write one every so many steps.",
        )
    if loop.has_gpu and called == "empty_cache":
        return Advice(
            kind="read",
            file=name,
            line=line,
            part="host",
            text="empty_cache() in every step returns memory that the next step has to allocate again.",
        )
    return None


def _synchronization(call: ast.Call, loop: _Loop) -> Advice | None:
    """Return a hint for ``float(loss)`` or ``loss.cpu()``, which wait for a device if there is one."""
    if not loop.has_gpu:
        return None
    function = call.func
    is_number = isinstance(function, ast.Name) and function.id == "float" and len(call.args) == 1
    is_copied = isinstance(function, ast.Attribute) and function.attr == "cpu"
    if is_number:
        given, shown = call.args[0], "float() of a tensor"
    elif is_copied and isinstance(function, ast.Attribute):
        given, shown = function.value, ".cpu()"
    else:
        return None
    if not _is_tensor(given, loop.tensors):
        return None
    return Advice(
        kind="read",
        file=loop.file,
        line=call.lineno,
        part="host",
        text=f"{shown} in every step waits until the step is computed; keep the tensor (detached) and read "
        "it every so many steps.",
    )


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_arithmetic(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in ("torch", "np", "numpy", "math", "F")


def _prints_tensors(call: ast.Call) -> bool:
    """Return whether a loss, a gradient or the like is among the arguments."""
    given = [*call.args, *(k.value for k in call.keywords)]
    names = {n.id.lower() for a in given for n in ast.walk(a) if isinstance(n, ast.Name)}
    names |= {n.attr.lower() for a in given for n in ast.walk(a) if isinstance(n, ast.Attribute)}
    return any(word in held for held in names for word in ("loss", "grad", "logit", "output", "acc"))


def _is_saving(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "save":
        return True
    owner = call.func.value
    return isinstance(owner, ast.Name) and owner.id == "torch"


# Data sets


def _in_datasets(tree: ast.Module, name: str) -> Iterator[Advice]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name in ("__getitem__", "__getitems__"):
            yield from _of_getitem(function, name)


def _of_getitem(function: ast.FunctionDef, name: str) -> Iterator[Advice]:
    nodes = list(_every_time(function.body, _leaves_function, in_loops=True))
    # A loop with an exit draws until a sample fits, which rarely takes a second iteration.
    loops = [n for n in nodes if isinstance(n, ast.For) and not _is_left_early(n)]
    if loops:
        yield Advice(
            kind="preprocess",
            file=name,
            line=loops[0].lineno,
            part="input",
            text="A Python loop runs for every sample; do it once before training, or in NumPy or torch.",
        )
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    pixels = next((c for c in calls if _called(c) in _PIXELS), None)
    if pixels is not None:
        yield Advice(
            kind="preprocess",
            file=name,
            line=pixels.lineno,
            part="input",
            text=f"{_called(pixels)}() runs for every sample of every epoch; what does not change can be "
            "prepared once and stored ready to use.",
        )
    copies = next((c for c in calls if _is_copying(c)), None)
    if copies is not None:
        yield Advice(
            kind="copy",
            file=name,
            line=copies.lineno,
            part="input",
            text=(
                "torch.tensor() copies its argument; torch.from_numpy() or torch.as_tensor() share its "
                "memory."
            ),
        )


def _is_left_early(loop: ast.For) -> bool:
    return any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))


def _is_copying(call: ast.Call) -> bool:
    function = call.func
    if not (isinstance(function, ast.Attribute) and function.attr == "tensor" and call.args):
        return False
    # A name or a sum may be a plain number, for which there is no alternative.
    is_array = isinstance(call.args[0], (ast.Subscript, ast.Attribute, ast.Call))
    return isinstance(function.value, ast.Name) and function.value.id == "torch" and is_array


# Shapes and copies that matter on an accelerator alone


def _shapes(tree: ast.Module, name: str) -> Iterator[Advice]:
    known = _sizes(tree)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or _called(call) not in _SIZED:
            continue
        given = [*call.args[:2], *(k.value for k in call.keywords if k.arg in _SIZES)]
        sizes = [(size, what) for a in given for size, what in _size(a, known)]
        odd = next(((s, what) for s, what in sizes if s >= 64 and s % _MULTIPLE), None)
        if odd is not None:
            size, what = odd
            up = -(-size // _MULTIPLE) * _MULTIPLE
            yield Advice(
                kind="shape",
                file=name,
                line=call.lineno,
                part="compute",
                text=f"{what} is not a multiple of {_MULTIPLE}, as tensor cores need for full speed; "
                f"{up} may be faster.",
            )


def _size(given: ast.expr, known: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Yield a literal size, or a name with a single value in the file."""
    if isinstance(given, ast.Constant) and type(given.value) is int:
        yield given.value, str(given.value)
        return
    name = given.id if isinstance(given, ast.Name) else given.attr if isinstance(given, ast.Attribute) else ""
    if name in known:
        yield known[name], f"{ast.unparse(given)}, {known[name]},"


def _sizes(tree: ast.Module) -> dict[str, int]:
    """Return names assigned one integer and no other value: variables, fields, defaults."""
    found: dict[str, set[int]] = {}
    other: set[str] = set()
    for node in ast.walk(tree):
        for name, value in _named(node):
            if isinstance(value, ast.Constant) and type(value.value) is int:
                found.setdefault(name, set()).add(value.value)
            else:
                other.add(name)
    return {name: min(sizes) for name, sizes in found.items() if len(sizes) == 1 and name not in other}


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield names with their values in a statement; None for a value that is not a literal."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, None
    elif isinstance(node, ast.arguments):
        given = [*node.posonlyargs, *node.args]
        # Callers pass arguments without a default, under their own names.
        yield from ((a.arg, v) for a, v in zip(reversed(given), reversed(node.defaults), strict=False))
        yield from ((a.arg, v) for a, v in zip(node.kwonlyargs, node.kw_defaults, strict=True) if v)
    elif isinstance(node, ast.Call) and _called(node) == "add_argument":
        options = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        default = next((k.value for k in node.keywords if k.arg == "default"), None)
        if long := next((o for o in options if o.startswith("--")), ""):
            yield long.removeprefix("--").replace("-", "_"), default


def _copies(tree: ast.Module, name: str) -> Iterator[Advice]:
    for loop in ast.walk(tree):
        if not isinstance(loop, (ast.For, ast.While)) or not _trains(loop):
            continue
        for call in _every_time(loop.body, _leaves_step):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            made = call.func.value
            if not isinstance(made, ast.Call):
                continue
            if _called(call) in ("to", "cuda") and _called(made) in ("zeros", "ones", "randn", "rand"):
                yield Advice(
                    kind="copy",
                    file=name,
                    line=call.lineno,
                    part="transfer",
                    text=f"{_called(made)}() makes a tensor on the host and copies it in every step; "
                    "device=... makes it in place.",
                )


# Reports of the script itself


def _constant_samples(tree: ast.Module, name: str) -> Iterator[Advice]:
    """Yield a hint for a sample count that is constant, whatever batch size the script is given."""
    if not any(_names_batch(node) for node in ast.walk(tree)):
        return
    if any(_makes_loader(node) for node in ast.walk(tree)):
        return  # samples of a loader have priority
    for call in calls_of(tree, "step"):
        samples = constant_samples(call)
        if samples is not None:
            yield Advice(
                kind="samples",
                file=name,
                line=call.lineno,
                part="search",
                text=(
                    f"step(samples={samples}) reports the same number for every batch size; pass the "
                    "samples of each step, or rates of other sizes are wrong."
                ),
            )


def _reinforcement(tree: ast.Module, name: str) -> Iterator[Advice]:
    """Yield one hint per script on the counting of steps in reinforcement learning."""
    for node in ast.walk(tree):
        packages: list[str] = []
        if isinstance(node, ast.Import):
            packages = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages = [node.module.partition(".")[0]]
        if isinstance(node, (ast.Import, ast.ImportFrom)) and _ACTING & set(packages):
            yield Advice(
                kind="rollout",
                file=name,
                line=node.lineno,
                part="search",
                text=(
                    "Collecting samples is a part of this training, and its time counts. A step is an "
                    "optimizer step; a sample is one use of a row in a batch. The batch size is not "
                    "varied."
                ),
            )
            return


def _makes_loader(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "DataLoader"


def _names_batch(node: ast.AST) -> bool:
    """Return whether a call's first words name a batch: an option, or a requested value."""
    words = node.args[:2] if isinstance(node, ast.Call) else []
    return any(isinstance(w, ast.Constant) and "batch" in str(w.value).lower() for w in words)
