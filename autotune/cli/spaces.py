"""`autotune spaces`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.core.study import SpaceRequest

spaces = typer.Typer(
    help="Search spaces: presets and your own files.", no_args_is_help=True, rich_markup_mode=None
)


@spaces.command("list")
def list_spaces(
    *, json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False
) -> int:
    """List the presets, and the files in ./search_spaces."""
    from autotune.cli.ended import print_json
    from autotune.edge.preset import find_spaces, read_space

    rows = [
        {"name": space.name, "file": str(space.path), "use": read_space(space.path).description}
        for space in find_spaces(cwd=str(Path.cwd()))
    ]
    if json:
        print_json({"schema": "autotune.spaces/v1", "spaces": rows, "exit": 0})
        return 0
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['use']}".rstrip())
    return 0


@spaces.command("show")
def show_space(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE")],
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """Show the knobs and values of a space, inherited ones included."""
    from autotune.cli.ended import print_json

    request = _loaded(name)
    if json:
        knobs = {knob: list(values) for knob, values in request.knobs.items()}
        fields = {"name": request.name, "knobs": knobs, "fixed": dict(request.fixed)}
        print_json(
            {"schema": "autotune.spaces/v1", **fields, "starts": [dict(s) for s in request.starts], "exit": 0}
        )
    else:
        sys.stdout.write(space_text(request))
    return 0


@spaces.command("validate")
def validate_space(name: Annotated[str, typer.Argument(metavar="NAME|FILE")]) -> int:
    """Check a space file; ends with 2 and the line where something is wrong."""
    request = _loaded(name)
    print(f"{request.source or name} is valid: {len(request.knobs)} knobs")
    return 0


def space_text(request: SpaceRequest) -> str:
    """A space for people."""
    width = max((len(knob) for knob in request.knobs), default=0)
    lines = [f"{request.name}   {request.source}".rstrip()]
    lines += [f"  {knob:<{width}}  {_values(values)}" for knob, values in request.knobs.items()]
    lines += [f"  {knob:<{width}}  {value} (pinned)" for knob, value in request.fixed.items()]
    lines += ["  first " + " ".join(f"{k}={v}" for k, v in start.items()) for start in request.starts]
    return "\n".join(lines) + "\n"


def _values(values: tuple[Any, ...]) -> str:
    return (
        ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
        or "its own values"
    )


def _loaded(name: str) -> SpaceRequest:
    from autotune.edge.preset import load_space

    return load_space(name, cwd=str(Path.cwd()), sets=(), fixes=(), only=())
