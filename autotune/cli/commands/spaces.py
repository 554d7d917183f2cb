"""`autotune spaces`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Json

if TYPE_CHECKING:
    from autotune.config_files.presets import FoundSpace
    from autotune.model.study import DeclaredSpec, SpaceRequest

spaces = typer.Typer(
    help="List, show, create and check search spaces.", no_args_is_help=True, rich_markup_mode=None
)

SCHEMA = "autotune.spaces/v1"
TEMPLATE_FILE = "space.yaml"


@spaces.command("list")
def list_spaces(*, json: Json = False) -> int:
    """List the presets, and your files in ./search_spaces and ~/.config/autotune/search_spaces."""
    from autotune.answer.space_selection import CANDIDATES
    from autotune.cli.outcome import print_json
    from autotune.config_files.presets import ALIASES, find_spaces

    short = {name: alias for alias, name in ALIASES.items()}
    found = find_spaces(cwd=str(Path.cwd()))
    rows = [
        {
            "name": space.name,
            "alias": short.get(space.name, ""),
            "file": str(space.path),
            "origin": space.origin,
            "use": _use(space),
        }
        for space in found
    ]
    if json:
        print_json({"schema": SCHEMA, "spaces": rows, "auto": list(CANDIDATES), "exit": 0})
        return 0
    shown = [
        ("auto", f"Chosen after the first run of the script: one of {', '.join(CANDIDATES)}."),
        *((row["name"] + (f", {row['alias']}" if row["alias"] else ""), row["use"]) for row in rows),
    ]
    width = max(len(name) for name, _ in shown)
    for name, use in shown:
        print(f"{name:<{width}}  {use}".rstrip())
    return 0


@spaces.command("show")
def show_space(name: Annotated[str, typer.Argument(metavar="NAME|FILE")], *, json: Json = False) -> int:
    """Show the knobs and values of a space, inherited ones included."""
    from autotune.cli.outcome import guarded, print_json
    from autotune.config_files.presets import load_space

    with guarded(as_json=json):
        request = load_space(name, cwd=str(Path.cwd()))
    shown = request.candidates or (request,)
    if json:
        extra = {"candidates": [_data(space) for space in shown]} if request.candidates else _data(request)
        print_json({"schema": SCHEMA, "name": request.name, **extra, "exit": 0})
    else:
        sys.stdout.write("\n".join(space_text(space) for space in shown))
    return 0


@spaces.command("init")
def init_space(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Output file; an existing file is kept.")
    ] = TEMPLATE_FILE,
) -> int:
    """Write a commented template of a search space."""
    from autotune.config_files.template import template
    from autotune.errors import UsageError

    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(template())
    except FileExistsError:
        raise UsageError(f"{file} exists", hint="name another file: autotune spaces init mine.yaml") from None
    print(f"{file} written; edit it, then: autotune search train.py --space {_typed(path)}")
    return 0


def _typed(path: Path) -> str:
    """Return the path as `--space` takes it: one without a folder would be the name of a preset."""
    text = str(path)
    return text if "/" in text else f"./{text}"


@spaces.command("validate")
def validate_space(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME|FILE]...", help="Default: all.")] = None,
    *,
    json: Json = False,
) -> int:
    """Check space files; prints every finding with its line and ends with 2 if there is one."""
    from autotune.cli.outcome import print_json
    from autotune.config_files.presets import find_spaces, problems

    cwd = str(Path.cwd())
    chosen = names or [space.name for space in find_spaces(cwd=cwd)]
    found = {name: problems(name, cwd=cwd) for name in chosen}
    code = 2 if any(found.values()) else 0
    if json:
        results = [
            {"space": name, "findings": [{"message": p.message, "hint": p.hint} for p in errors]}
            for name, errors in found.items()
        ]
        print_json({"schema": SCHEMA, "validated": results, "exit": code})
        return code
    for name, errors in found.items():
        for error in errors:
            print(f"error: {error.message}", file=sys.stderr)
            if error.hint:
                print(f"hint: {error.hint}", file=sys.stderr)
        if not errors:
            print(f"{name} is valid: {_count(name, cwd)}")
    return code


def space_text(request: SpaceRequest) -> str:
    """Return a space as a screen for users."""
    rows = [(knob, _values(values)) for knob, values in request.knobs.items()]
    rows += [(knob, f"{_value(value)} (pinned)") for knob, value in request.fixed.items()]
    rows += [(knob, "changes the training: with --allow alone") for knob in request.withheld]
    own = {spec.name: spec for spec in request.declared}
    width = max((len(knob) for knob, _ in rows), default=0)
    lines = [f"{request.name}   {request.source}".rstrip()]
    lines += [
        f"  {knob:<{width}}  {text}" + (f"   {_declared(own[knob])}" if knob in own else "")
        for knob, text in rows
    ]
    if bound := _bound(request):
        lines.append(f"  peak memory at most {bound}")
    lines += ["  first " + " ".join(f"{k}={_value(v)}" for k, v in start.items()) for start in request.starts]
    return "\n".join(lines) + "\n"


def _use(space: FoundSpace) -> str:
    """Return the purpose of a file, or its error if it is malformed."""
    from autotune.config_files.presets import read_space
    from autotune.errors import UsageError

    try:
        return read_space(space.path).description
    except UsageError as error:
        return f"not valid: {error.message}"


def _count(name: str, cwd: str) -> str:
    from autotune.config_files.presets import load_space

    request = load_space(name, cwd=cwd)
    return f"{len(request.knobs)} knobs" if not request.candidates else f"{len(request.candidates)} spaces"


def _data(request: SpaceRequest) -> dict[str, Any]:
    return {
        "name": request.name,
        "source": request.source,
        "knobs": {knob: list(values) for knob, values in request.knobs.items()},
        "fixed": dict(request.fixed),
        "needs_permission": list(request.withheld),
        "declared": [
            {
                "name": spec.name,
                "effect": spec.effect.name,
                "values": list(spec.values),
                "how": spec.spelling.how,
                "spelling": spec.spelling.text,
                "help": spec.help,
            }
            for spec in request.declared
        ],
        "peak_memory_at_most": _bound(request),
        "starts": [dict(start) for start in request.starts],
    }


def _declared(spec: DeclaredSpec) -> str:
    return f"your own: {spec.effect.name}, {spec.spelling.how} {spec.spelling.text}"


def _bound(request: SpaceRequest) -> str:
    from autotune.report.view.summary import bytes_text

    if request.memory_frac is not None:
        return f"{100 * request.memory_frac:g} % of the memory"
    return "" if request.memory_bytes is None else bytes_text(request.memory_bytes)


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(values: tuple[Any, ...]) -> str:
    return ", ".join(_value(value) for value in values) or "its own values"
