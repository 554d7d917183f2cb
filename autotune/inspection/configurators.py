"""Options of scripts that process the command line by their own code. Parsed, never run.

Three kinds are found: globals overridden by a configurator (``exec(open("configurator.py").read())``);
entries or fields set in a loop over `sys.argv`; options declared in a loop over such entries or fields.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.model.facts import ScriptFlag
from autotune.source.constants import constant_value, last_name, named_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autotune.model.config import Value

_MOST_BYTES: Final = 1 << 20
_FALLBACK: Final = "--"


def configured_flags(
    tree: ast.Module, args: Sequence[str] | None, *, cwd: str, folder: Path
) -> list[ScriptFlag]:
    """Return options that a file processes by its own code, with the values before the command line.

    Args:
        tree: Syntax tree of the file.
        args: The command line; None if unknown.
        cwd: Folder that paths in `args` are relative to.
        folder: Folder of the file.
    """
    found = [
        *_of_globals(tree, args or (), Path(cwd) if cwd else Path.cwd(), folder),
        *_of_argv_loops(tree),
        *_of_declared_loops(tree),
    ]
    return list({flag.names[0]: flag for flag in found}.values())


def executes_configuration(node: ast.AST) -> bool:
    """Return whether this call executes another file, as configurators do."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "exec":
        return False
    return any("open" in ast.unparse(a) or "config" in ast.unparse(a) for a in node.args)


# Globals ------------------------------------------------------------------------------------


def _of_globals(tree: ast.Module, args: Sequence[str], cwd: Path, folder: Path) -> Iterator[ScriptFlag]:
    """Yield globals assigned above the configurator; those below it override the command line."""
    at = next((n for n, node in enumerate(tree.body) if _configures(node, folder)), None)
    if at is None:
        return
    values = _assigned(tree.body[:at], {})
    for word in args:
        if not word.startswith("-") and "=" not in word:
            values |= {k: v for k, v in _in_file(cwd / word, values).items() if k in values}
    yield from (_flag(name, value) for name, value in values.items() if not name.startswith("_"))


def _configures(node: ast.stmt, folder: Path) -> bool:
    """Return whether a statement passes the command line to a configurator, or is one."""
    if isinstance(node, ast.For):
        return _reads_argv(node) and "globals()[" in ast.unparse(node)
    call = next((n for n in ast.walk(node) if executes_configuration(n)), None)
    if call is None or isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return False
    names = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    files = [folder / name for name in names if name.endswith(".py")]
    texts = [_text(file) for file in files if file.is_file()]
    # A file that ignores the command line contributes its own settings only.
    return not texts or any("argv" in text for text in texts)


def _assigned(body: Iterable[ast.stmt], known: Mapping[str, Value]) -> dict[str, Value]:
    """Return names with their values, if these are literals or computed from others."""
    values = dict(known)
    for node in body:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs.append((node.target, node.value))
        for target, given in pairs:
            value = constant_value(given, values)
            if isinstance(target, ast.Name):
                values.pop(target.id, None)
                if value is not None:
                    values[target.id] = value
    return values


def _in_file(path: Path, known: Mapping[str, Value]) -> dict[str, Value]:
    try:
        return _assigned(ast.parse(_text(path)).body, known)
    except (SyntaxError, ValueError, RecursionError):
        return {}


def _text(path: Path) -> str:
    try:
        return "" if path.stat().st_size > _MOST_BYTES else path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Loops over the command line ------------------------------------------------------------------


def _of_argv_loops(tree: ast.Module) -> Iterator[ScriptFlag]:
    """Find ``for arg in sys.argv[1:]: key, value = arg.split("="); config[key] = value``, or `setattr`."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and _reads_argv(loop):
            holder = _holder(loop)
            prefix = _FALLBACK if _strips_dashes(loop) else ""
            for name, value in _entries(tree, holder) if holder else ():
                yield _flag(name, value, prefix)


def _reads_argv(loop: ast.For) -> bool:
    if "argv" not in ast.unparse(loop.iter):
        return False
    calls = (n for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Call))
    return any(last_name(c.func) in ("split", "partition") and _has_text(c, "=") for c in calls)


def _has_text(call: ast.Call, text: str) -> bool:
    return any(isinstance(a, ast.Constant) and a.value == text for a in call.args)


def _strips_dashes(loop: ast.For) -> bool:
    inner = [n for part in loop.body for n in ast.walk(part)]
    words = [n.value for n in inner if isinstance(n, ast.Constant)]
    return "--" in words or "-" in words or any(isinstance(n, ast.Slice) for n in inner)


def _holder(loop: ast.For) -> str:
    """Return the name of the object whose entries or fields the loop sets."""
    for node in (n for part in loop.body for n in ast.walk(part)):
        if isinstance(node, ast.Call) and last_name(node.func) == "setattr" and len(node.args) == 3:
            return node.args[0].id if isinstance(node.args[0], ast.Name) else ""
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            is_key = not isinstance(node.slice, ast.Constant)
            if is_key and isinstance(node.value, ast.Name):
                return node.value.id
    return ""


# Options that are declared in a loop ----------------------------------------------------------


def _of_declared_loops(tree: ast.Module) -> Iterator[ScriptFlag]:
    """Find ``for f in fields(Config): parser.add_argument(f"--{f.name}", default=f.default)``."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    owners = {id(n): owner.name for owner in classes for n in ast.walk(owner)}
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For):
            continue
        calls = (n for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Call))
        declared = next((c for c in calls if last_name(c.func) == "add_argument" and _is_made(c)), None)
        if declared is None:
            continue
        names = [n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name)]
        names = [owners.get(id(loop), "") if name == "cls" else name for name in names]
        is_dashed = _adds_dash(declared)
        for holder in names:
            for name, value in _entries(tree, holder) if holder else ():
                kind = "opaque" if isinstance(value, bool) else type(value).__name__
                spelled = name.replace("_", "-") if is_dashed else name
                yield ScriptFlag(names=(f"--{spelled}",), dest=name, kind=kind, default=value)


def _is_made(call: ast.Call) -> bool:
    """Return whether the option's name is computed."""
    first = call.args[0] if call.args else None
    if not isinstance(first, (ast.JoinedStr, ast.BinOp)):
        return False
    return ast.unparse(first).lstrip("f")[1:3] == "--"


def _adds_dash(call: ast.Call) -> bool:
    inner = (n for n in ast.walk(call.args[0]) if isinstance(n, ast.Call))
    return any(last_name(c.func) == "replace" and _has_text(c, "-") for c in inner)


# Entries and fields ---------------------------------------------------------------------------


def _entries(tree: ast.Module, holder: str) -> Iterator[tuple[str, Value]]:
    """Yield entries of a dictionary, or fields of a class or of its instance in this file."""
    classes = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    made = {
        last_name(target): last_name(node.value.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
    }
    owner = holder if holder in classes else made.get(holder, "")
    prefixes = [f"{holder}."] if owner not in classes else [f"{owner}.", f"{holder}."]
    found = {
        name.name.removeprefix(prefix): name.value
        for prefix in prefixes
        for name in named_values(tree)
        if name.name.startswith(prefix) and "." not in name.name.removeprefix(prefix)
    }
    yield from ((name, value) for name, value in found.items() if name.isidentifier())


def _flag(name: str, value: Value, prefix: str = "--") -> ScriptFlag:
    return ScriptFlag(names=(f"{prefix}{name}",), dest=name, kind=type(value).__name__, default=value)
