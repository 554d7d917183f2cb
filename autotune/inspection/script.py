"""Options and hazards of a script from its source, without running it.

Parses the script and, for options, the modules beside it that it imports. Names found here are guesses until
a run has confirmed them.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError
from autotune.inspection.configurators import configured_flags, executes_configuration
from autotune.inspection.module_constants import script_constants
from autotune.inspection.overrides import overrides
from autotune.inspection.sources import sources
from autotune.inspection.subcommands import (
    applies,
    argparse_owners,
    click_owners,
    positional_words,
    typer_owners,
)
from autotune.model.facts import ScriptFacts, ScriptFlag
from autotune.source.loops import written_hazards
from autotune.text.redact import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autotune.inspection.subcommands import Owner
    from autotune.model.config import Value

_KINDS: Final = {
    "int": "int",
    "float": "float",
    "str": "str",
    "INT": "int",
    "FLOAT": "float",
    "STRING": "str",
}
_DEFINES: Final = {
    "DEFINE_integer": "int",
    "DEFINE_float": "float",
    "DEFINE_string": "str",
    "DEFINE_enum": "str",
    "DEFINE_bool": "pair",
    "DEFINE_boolean": "pair",
}
_MAKERS: Final = {"fire.Fire": "fire", "Fire": "fire", "typer.run": "typer", "tyro.cli": "tyro"}
_CALLS: Final = {
    "autocast": "own_autocast",
    "GradScaler": "own_scaler",
    "LBFGS": "lbfgs",
    "BCELoss": "bce_on_sigmoid",
    "binary_cross_entropy": "bce_on_sigmoid",
    "double": "float64",
    "init_hidden": "hidden_state",
    "HfArgumentParser": "hf_arguments",
}
_SETTINGS: Final = frozenset(
    {
        "add_argument",
        "append",
        "basicConfig",
        "extend",
        "filterwarnings",
        "insert",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "set_default_dtype",
        "set_defaults",
        "set_float32_matmul_precision",
        "set_num_interop_threads",
        "set_num_threads",
        "set_printoptions",
        "setdefault",
        "setLevel",
        "simplefilter",
        "update",
        "use",
        "use_deterministic_algorithms",
    }
)
"""Calls that every worker importing the script may repeat."""
_SWITCHES: Final = ("switch", "off_switch", "pair", "bool")
_OF_MODULES: Final = frozenset(
    {"own_autocast", "own_bf16", "own_scaler", "own_compile", "saves_optimizer", "stdin"}
)
"""Hazards that also count in modules; whether the script reaches them shows in a run."""
_MODELS: Final = re.compile(r"model|net|module|ddp", re.IGNORECASE)
_STATES_OF_OPTIMIZERS: Final = frozenset({"get_state_dict", "get_optimizer_state_dict"})
"""Functions of `torch.distributed.checkpoint.state_dict`."""
_FORMATS: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_DEVICE_FORMATS: Final = {"cuda": "fp16", "cpu": "bf16"}
"""Autocast's default format per device."""
_WORK: Final = frozenset(
    {
        "DataLoader",
        "Popen",
        "SummaryWriter",
        "backward",
        "cuda",
        "fit",
        "init",
        "init_process_group",
        "open",
        "run",
        "step",
        "to",
        "train",
    }
)
"""Calls that may not, even if only their result is stored."""


def script_facts(
    path: str, args: Sequence[str] | None = None, *, cwd: str = "", chosen: Sequence[str] = ()
) -> ScriptFacts:
    """Return options, constants, imports and hazards of a script.

    Args:
        path: Path of the script. A file that is not valid Python yields facts without options; its
            error shows in a run.
        args: Its command line, if known: options of other sub-commands
            are left out, and a named settings file is read.
        cwd: Folder that paths in `args` are relative to; empty for this process's own.
        chosen: Names of constants that the user has selected.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the script {path}: {error.strerror}") from error
    digest = hashlib.sha256(source).hexdigest()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ScriptFacts(path=path, sha256=digest)
    modules = _modules(Path(path), tree)
    files = [module.tree for module in modules]
    hazards = {word for node in ast.walk(tree) for word in _hazards(node)} | written_hazards(tree)
    hazards |= {word for m in files for node in ast.walk(m) for word in _hazards(node)} & _OF_MODULES
    made = [
        *configured_flags(tree, args, cwd=cwd, folder=Path(path).parent),
        *(flag for file in files for flag in configured_flags(file, args, cwd=cwd, folder=Path(path).parent)),
        *overrides(tree, Path(path).parent),
    ]
    flags = _options(tree, modules, args, made)
    formats = _switched_formats([tree, *files])
    return ScriptFacts(
        path=path,
        sha256=digest,
        flags=tuple(_with_autocast(flag, formats) for flag in _merged(flags)),
        imports=tuple(sorted(_imports(tree).union(*(_loaded(file) for file in files)))),
        hazards=tuple(sorted(hazards)),
        import_runs=_works(tree.body, _functions(tree)),
        constants=script_constants(path, chosen),
    )


@dataclass(frozen=True)
class _Module:
    """A file beside the script as visible to it, and the names that other files may import."""

    tree: ast.Module
    used: set[str]


def _options(
    tree: ast.Module, modules: Sequence[_Module], args: Sequence[str] | None, made: Sequence[ScriptFlag]
) -> list[ScriptFlag]:
    """Return every option that the command line can take, in the order of the files.

    Args:
        tree: The script.
        modules: Its own modules.
        args: The command line; None if unknown.
        made: Options that the script processes by its own code.
    """
    trees = [tree, *(module.tree for module in modules)]
    decorated, signed = click_owners(trees), typer_owners(trees)
    found = [
        list(_flags(each, argparse_owners(each, outside), decorated, signed))
        for each, outside in ((tree, None), *((module.tree, module.used) for module in modules))
    ]
    if args is not None:
        known = [pair for file in found for pair in file]
        words = positional_words([flag for flag, _ in known], [owner for _, owner in known], args)
        found = [[pair for pair in file if applies(*pair, args, words)] for file in found]
    (first, *rest) = [[flag for flag, _ in file] for file in found]
    first += [flag for flag in made if flag.names[0] not in {name for f in first for name in f.names}]
    # With two parsers, the script's own declaration of an option counts.
    own = {name for flag in first for name in flag.names}
    return [*first, *(flag for file in rest for flag in file if own.isdisjoint(flag.names))]


def _flags(
    tree: ast.Module,
    parsers: Mapping[ast.Call, Owner],
    decorated: Mapping[ast.AST, Owner],
    signed: Mapping[ast.AST, Owner],
) -> Iterator[tuple[ScriptFlag, Owner]]:
    for call, flag in _argparse_flags(tree):
        yield flag, parsers.get(call)
    for node, flag in _click_flags(tree):
        yield flag, decorated.get(node)
    for flag in _absl_flags(tree):
        yield flag, None
    for node, flag in _signature_flags(tree):
        yield flag, signed.get(node)


def _merged(flags: list[ScriptFlag]) -> Iterator[ScriptFlag]:
    """Yield each spelling once; one with conflicting declarations is left out."""
    groups: dict[str, list[ScriptFlag]] = {}
    for flag in flags:
        groups.setdefault(flag.names[0], []).append(flag)
    for group in groups.values():
        kinds = {(flag.kind, flag.choices) for flag in group}
        first = group[0]
        if any(is_secret_name(name) for name in first.names):
            # The script sets it internally, so no knob may use it.
            first = replace(first, default=None, choices=())
        yield first if len(kinds) == 1 else ScriptFlag(names=first.names, dest=first.dest, kind="opaque")


def _imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _loaded(module: ast.Module) -> set[str]:
    """Return packages that importing this module certainly loads; its functions may never be called."""
    plain: list[ast.stmt] = [n for n in module.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    return _imports(ast.Module(body=plain, type_ignores=[]))


# Modules of the script's own -----------------------------------------------------------------


def _modules(script: Path, tree: ast.Module) -> list[_Module]:
    """Return the modules that the script imports from its folder."""
    followed = [found for file, found in sources(script) if file != script]
    found: list[_Module] = []
    for module in followed:
        used = _names_from(other for other in (tree, *followed) if other is not module)
        found.append(_Module(_as_imported(module, used), used))
    return found


def _names_from(trees: Iterable[ast.AST]) -> set[str]:
    """Return names that these files may import from other modules."""
    used: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    return used


def _as_imported(module: ast.Module, used: set[str]) -> ast.Module:
    """Return a module without its script part: its main guard, and functions called only from there.

    Args:
        module: The file.
        used: Names that others may import from it; ``*`` for all.
    """
    guards = [node for node in module.body if isinstance(node, ast.If) and _is_main_guard(node.test)]
    if not guards or "*" in used:
        return module
    functions = {n.name: n for n in module.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
    plain = [node for node in module.body if node not in guards and node not in functions.values()]
    by_guard, by_others = _reached(guards, functions), _reached(plain, functions)
    by_others |= (used & set(functions)) | _reached([functions[n] for n in used & set(functions)], functions)
    alone = [functions[name] for name in by_guard - by_others]
    kept = [node for node in module.body if node not in guards and node not in alone]
    return ast.Module(body=kept, type_ignores=[])


def _is_main_guard(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _reached(nodes: Sequence[ast.AST], functions: Mapping[str, ast.AST]) -> set[str]:
    """Return functions named there, or in such a function."""
    reached: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & set(functions)
        waiting += [functions[name] for name in named - reached]
        reached |= named
    return reached


# Options ------------------------------------------------------------------------------------


def _argparse_flags(tree: ast.AST) -> Iterator[tuple[ast.Call, ScriptFlag]]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    parsed = [call for call in calls if _last(call.func) in ("parse_args", "parse_known_args")]
    if parsed and all(_parses_literals(call) for call in parsed):
        return  # the command line is not passed to it
    for node in calls:
        if _last(node.func) == "add_argument":
            names = _spellings(node)
            if names:
                yield node, _argparse_flag(node, names)


def _parses_literals(call: ast.Call) -> bool:
    """Return whether a call is ``parse_args([])`` or similar, as in scripts converted from notebooks."""
    named = next((k.value for k in call.keywords if k.arg == "args"), None)
    given = call.args[0] if call.args else named
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        given = given.func.value if given.func.attr == "split" else None
    if isinstance(given, (ast.List, ast.Tuple)):
        return all(isinstance(item, ast.Constant) for item in given.elts)
    return isinstance(given, ast.Constant) and isinstance(given.value, str)


def _argparse_flag(call: ast.Call, names: tuple[str, ...]) -> ScriptFlag:
    keywords = {k.arg: k.value for k in call.keywords if k.arg}
    default = _constant(keywords.get("default"))
    kind = _argparse_kind(keywords, default)
    if any(k.arg is None for k in call.keywords):
        kind = "opaque"
    if kind == "pair":
        names = (*names, *(f"--no-{n[2:]}" for n in names if n.startswith("--")))
    dest = _constant(keywords.get("dest"))
    return ScriptFlag(
        names=names,
        dest=dest if isinstance(dest, str) else _dest(names),
        kind=kind,
        default=default,
        choices=_choices(keywords.get("choices")),
    )


def _argparse_kind(keywords: dict[str, ast.expr], default: Value | None) -> str:
    action = keywords.get("action")
    if action is not None:
        word = _constant(action) if isinstance(action, ast.Constant) else _last(action)
        known = {"store_true": "switch", "store_false": "off_switch", "BooleanOptionalAction": "pair"}
        if word != "store":
            return known.get(str(word), "opaque")
    nargs = keywords.get("nargs")
    if nargs is not None and _constant(nargs) != "?":
        return "opaque"
    if "choices" in keywords and not _choices(keywords["choices"]):
        return "opaque"
    return _kind_of(keywords["type"], default) if "type" in keywords else "str"


def _kind_of(kind: ast.expr, default: Value | None) -> str:
    """Return the notation of a converter: plain types, else that of the default."""
    name = _last(kind)
    if name in _KINDS:
        return _KINDS[name]
    if name == "bool" or isinstance(default, (bool, str)) or default is None:
        return "opaque"
    return "int" if isinstance(default, int) else "float"


def _click_flags(tree: ast.AST) -> Iterator[tuple[ast.AST, ScriptFlag]]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and _last(call.func) == "option":
                names = _spellings(call)
                if names:
                    yield node, _click_flag(call, names)


def _click_flag(call: ast.Call, names: tuple[str, ...]) -> ScriptFlag:
    keywords = {k.arg: k.value for k in call.keywords if k.arg}
    default = _constant(keywords.get("default"))
    pair = next((n for n in names if "/" in n), None)
    kind, choices = _click_kind(keywords, default)
    if pair is not None:
        on, _, off = pair.partition("/")
        names, kind = (on.strip(), off.strip()), "pair"
    return ScriptFlag(names=names, dest=_dest(names), kind=kind, default=default, choices=choices)


def _click_kind(keywords: dict[str, ast.expr], default: Value | None) -> tuple[str, tuple[str, ...]]:
    if "multiple" in keywords or "nargs" in keywords or "count" in keywords or "flag_value" in keywords:
        return "opaque", ()
    if _constant(keywords.get("is_flag")) is True:
        return ("opaque" if default is True else "switch"), ()
    kind = keywords.get("type")
    if isinstance(kind, ast.Call) and _last(kind.func) == "Choice":
        choices = _choices(kind.args[0] if kind.args else None)
        return ("str" if choices else "opaque"), choices
    if isinstance(kind, ast.Call) and _last(kind.func) in ("IntRange", "FloatRange"):
        return ("int" if _last(kind.func) == "IntRange" else "float"), ()
    name = _last(kind) if kind is not None else type(default).__name__
    if kind is None and default is None:
        name = "str"
    return {"bool": "bool", "BOOL": "bool", **_KINDS}.get(name, "opaque"), ()


def _absl_flags(tree: ast.AST) -> Iterator[ScriptFlag]:
    """Find ``flags.DEFINE_integer("batch_size", 32, "...")``."""
    for node in ast.walk(tree):
        kind = _DEFINES.get(_last(node.func), "") if isinstance(node, ast.Call) else ""
        if not kind or not isinstance(node, ast.Call) or not node.args:
            continue
        name = _constant(node.args[0])
        if not isinstance(name, str):
            continue
        defined = dict(zip(("name", "default", "enum_values"), node.args, strict=False))
        defined |= {k.arg: k.value for k in node.keywords if k.arg}
        choices = _choices(defined.get("enum_values")) if _last(node.func) == "DEFINE_enum" else ()
        yield ScriptFlag(
            names=(f"--{name}", f"--no{name}") if kind == "pair" else (f"--{name}",),
            dest=name,
            kind=kind,
            default=_constant(defined.get("default")),
            choices=choices,
        )


def _signature_flags(tree: ast.Module) -> Iterator[tuple[ast.AST, ScriptFlag]]:
    """Yield options that Fire, Typer and tyro derive from a function's arguments or a class's fields."""
    defined = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and _is_app(n.value)]
    apps = {_last(target) for node in made for target in node.targets} - {""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found = defined.get(_last(node.args[0])) if node.args else None
            library = _MAKERS.get(ast.unparse(node.func), "") if found is not None else ""
            if found is not None and library:
                yield from ((node, flag) for flag in _of_definition(found, library))
        elif isinstance(node, ast.FunctionDef):
            by = [d.func for d in node.decorator_list if isinstance(d, ast.Call)]
            if any(isinstance(f, ast.Attribute) and _last(f.value) in apps for f in by):
                yield from ((node, flag) for flag in _of_definition(node, "typer"))


def _is_app(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _last(value.func) == "Typer"


def _of_definition(node: ast.FunctionDef | ast.ClassDef, library: str) -> Iterator[ScriptFlag]:
    for name, given in _with_defaults(node):
        names: tuple[str, ...] = ()
        default = _constant(given)
        if isinstance(given, ast.Call) and _last(given.func) == "Option":
            names = _spellings(given)
            default = _constant(given.args[0]) if given.args else None
        if default is None:
            continue  # it is unknown whether it is an option, and of which type
        dashed, kind = name.replace("_", "-"), type(default).__name__
        both = next((n for n in names if "/" in n), None)
        if both is not None:
            on, _, off = both.partition("/")
            names, kind = (on.strip(), off.strip()), "pair"
        elif names and kind == "bool":
            # With an explicit name it has no opposite.
            kind = "opaque" if default is True else "switch"
        elif not names:
            names = (f"--{name}",) if library == "fire" else (f"--{dashed}",)
            if kind == "bool" and library != "fire":
                kind, names = "pair", (*names, f"--no-{dashed}")
        yield ScriptFlag(names=names, dest=name, kind=kind, default=default)


def _with_defaults(node: ast.FunctionDef | ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield optional arguments or fields, unless their annotation defines the option."""
    if isinstance(node, ast.ClassDef):
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        yield from ((_last(n.target), n.value) for n in fields if n.value is not None)
        return
    given, defaults = [*node.args.posonlyargs, *node.args.args], node.args.defaults
    pairs = [*zip(given[len(given) - len(defaults) :], defaults, strict=True)]
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    pairs += [(argument, default) for argument, default in named if default is not None]
    for argument, default in pairs:
        kind = argument.annotation
        if not (isinstance(kind, ast.Subscript) and _last(kind.value) == "Annotated"):
            yield argument.arg, default


def _spellings(call: ast.Call) -> tuple[str, ...]:
    words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return tuple(word for word in words if word.startswith("-"))


def _dest(names: tuple[str, ...]) -> str:
    best = next((n for n in names if n.startswith("--")), names[0])
    return best.lstrip("-").replace("-", "_")


def _choices(node: ast.expr | None) -> tuple[str, ...]:
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return ()
    values = [_constant(item) for item in node.elts]
    return () if any(v is None for v in values) else tuple(str(v) for v in values)


def _constant(node: ast.expr | None) -> Value | None:
    """Return a literal's value; negative numbers too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return -inner if isinstance(inner, (int, float)) and not isinstance(inner, bool) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        finite = not isinstance(node.value, float) or abs(node.value) < float("inf")
        return node.value if finite else None
    return None


def _last(node: ast.expr) -> str:
    """Return the last name of a dotted expression: ``torch.optim.LBFGS`` -> ``LBFGS``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# Autocast behind an option -------------------------------------------------------------------


def _with_autocast(flag: ScriptFlag, formats: dict[str, str]) -> ScriptFlag:
    found = formats.get(flag.dest, "") if flag.kind in _SWITCHES else ""
    return replace(flag, autocast=found) if found else flag


def _switched_formats(trees: Sequence[ast.AST]) -> dict[str, str]:
    """Return names that decide whether autocasts are entered -> format, if there is one known format."""
    found: dict[str, set[str]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        for name, call in _switched_autocasts(node):
            found.setdefault(name, set()).add(_autocast_format(call))
    return {name: next(iter(formats)) for name, formats in found.items() if len(formats) == 1}


def _switched_autocasts(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Find ``autocast(..., enabled=args.amp)`` and ``autocast(...) if args.amp else ...``."""
    if isinstance(node, ast.Call) and _last(node.func) == "autocast":
        enabled = next((k.value for k in node.keywords if k.arg == "enabled"), None)
        if enabled is None and node.args and _is_cuda_autocast(node):
            enabled = node.args[0]
        if enabled is not None and _switch_name(enabled):
            yield _switch_name(enabled), node
    elif isinstance(node, (ast.IfExp, ast.If)) and _switch_name(node.test):
        body = [node.body] if isinstance(node, ast.IfExp) else node.body
        for inner in (inner for part in body for inner in ast.walk(part)):
            if isinstance(inner, ast.Call) and _last(inner.func) == "autocast":
                yield _switch_name(node.test), inner


def _switch_name(node: ast.expr) -> str:
    """Return ``amp`` for ``amp``, ``args.amp`` and ``config["amp"]``; empty for anything else."""
    if isinstance(node, ast.Subscript):
        key = _constant(node.slice)
        return key if isinstance(key, str) else ""
    return _last(node)


def _is_cuda_autocast(call: ast.Call) -> bool:
    """Return whether this is ``torch.cuda.amp.autocast``, whose first argument is `enabled`."""
    return "cuda" in ast.unparse(call.func)


def _autocast_format(call: ast.Call) -> str:
    """Return ``bf16`` or ``fp16``; empty if the source does not show it."""
    keywords = {k.arg: k.value for k in call.keywords if k.arg}
    dtype = keywords.get("dtype", call.args[1] if len(call.args) > 1 else None)
    if dtype is not None:
        return _FORMATS.get(_last(dtype), "")
    device = keywords.get("device_type", call.args[0] if call.args else None)
    if device is None or _is_cuda_autocast(call):
        return _DEVICE_FORMATS["cuda"]
    return _DEVICE_FORMATS.get(str(_constant(device)), "")


# Hazards ------------------------------------------------------------------------------------


def _saves_optimizer(call: ast.Call) -> bool:
    """Return whether a call takes the state of an object without a model's name."""
    name = _last(call.func)
    if name in _STATES_OF_OPTIMIZERS:
        return True
    if name != "state_dict" or not isinstance(call.func, ast.Attribute):
        return False
    return _MODELS.search(_last(call.func.value) or "") is None


def _hazards(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ExceptHandler):
        if node.type is None or _last(node.type) == "BaseException":
            yield "bare_except"
    elif isinstance(node, ast.Attribute):
        if _is_torch(node.value) and node.attr in ("float64", "double"):
            yield "float64"
        if _is_torch(node.value) and node.attr == "compile":
            yield "own_compile"
        if node.attr == "bfloat16":
            yield "own_bf16"
        if node.attr == "stdin" and ast.unparse(node.value) == "sys":
            yield "stdin"
    elif isinstance(node, ast.Constant):
        if node.value in ("bfloat16", "torch.bfloat16"):
            yield "own_bf16"
    elif isinstance(node, ast.ImportFrom):
        if node.module == "torch" and any(alias.name == "compile" for alias in node.names):
            yield "own_compile"
        if node.module == "sys" and any(alias.name == "stdin" for alias in node.names):
            yield "stdin"
    elif isinstance(node, ast.Call):
        name = _last(node.func)
        if _saves_optimizer(node):
            yield "saves_optimizer"
        if name in _CALLS and not (name == "double" and node.args):
            yield _CALLS[name]
        if ast.unparse(node.func) in ("os.fork", "fork"):
            yield "forks"
        if name == "input" and ast.unparse(node.func) in ("input", "fileinput.input"):
            yield "stdin"
        if name == "open" and node.args and _constant(node.args[0]) in (0, "/dev/stdin"):
            yield "stdin"
        if executes_configuration(node):
            yield "exec_config"


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "torch"


def _functions(tree: ast.Module) -> set[str]:
    return {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}


def _works(body: list[ast.stmt], functions: set[str]) -> bool:
    """Return whether importing these statements does more than define names, as a worker would."""
    for node in body:
        match node:
            case ast.If():
                guarded = _is_main_guard(node.test)
                works = _works([*([] if guarded else node.body), *node.orelse], functions)
            case ast.Try():
                parts = [*node.body, *(s for h in node.handlers for s in h.body)]
                works = _works([*parts, *node.orelse, *node.finalbody], functions)
            case ast.Expr():
                works = isinstance(node.value, ast.Call) and _last(node.value.func) not in _SETTINGS
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                called = {_last(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
                works = bool(called & (functions | _WORK))
            case ast.For() | ast.While() | ast.With() | ast.AsyncFor() | ast.AsyncWith() | ast.Raise():
                works = True
            case _:
                works = False
        if works:
            return True
    return False
