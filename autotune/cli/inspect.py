"""`autotune inspect`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.change import Spelling
    from autotune.core.facts import Advice, Facts
    from autotune.inspection.told import Asked
    from autotune.knobs.base import Knob


def inspect(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT", help="The training script, or after -- a whole command; it is read, not run."
        ),
    ] = None,
    *,
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH", envvar="AUTOTUNE_PYTHON", help="Interpreter of the script's environment."
        ),
    ] = "",
    knobs: Annotated[bool, typer.Option("--knobs", help="List every knob there is.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """Say what would be tuned in a script, how each value would reach it, and what would not and why."""
    from autotune.cli.ended import guarded, print_json
    from autotune.core.advice import advice_data, advice_text
    from autotune.inspection.advice import advise
    from autotune.inspection.command import read_command
    from autotune.inspection.host import host_facts
    from autotune.inspection.told import asked_values

    likely: dict[str, str] = {}
    hints: tuple[Advice, ...] = ()
    asked: tuple[Asked, ...] = ()
    with guarded(as_json=json):
        if knobs:
            rows = every_knob()
        elif command:
            script = read_command(command, python=python).inspected
            rows, likely = script_knobs(script), likely_space(script)
            hints, asked = advise(script, host_facts()), asked_values(script)
        else:
            raise UsageError(
                "no script is given", hint="autotune inspect train.py, or autotune inspect --knobs"
            )
    if json:
        space = {"space": likely} if likely else {}
        told = {"advice": [advice_data(hint) for hint in hints]} if command and not knobs else {}
        values = {"values": [_asked_data(value) for value in asked]} if asked else {}
        print_json({"schema": "autotune.inspect/v1", "knobs": rows, **space, **told, **values, "exit": 0})
    else:
        note = (
            f"The first run of the script may refuse more, and decides about the search space; likely is "
            f"{likely['name']}: {likely['reason']}."
            if likely
            else ""
        )
        sys.stdout.write(table(rows, note=note))
        sys.stdout.write("".join(f"value   {_asked_text(value)}\n" for value in asked))
        sys.stdout.write("".join(f"advice  {advice_text(hint)}\n" for hint in hints))
    return 0


def _asked_text(value: Asked) -> str:
    own = "" if value.default is None else f", {value.default} by itself"
    return (
        f"{value.name}: asked for at {value.place}{own}; searched where a space file declares it "
        f"(keyword: autotune.value:{value.name})"
    )


def _asked_data(value: Asked) -> dict[str, str | int | float | None]:
    return {"name": value.name, "file": value.file, "line": value.line, "default": value.default}


def every_knob() -> list[dict[str, Any]]:
    """Knobs in order of expected gain, with their effect and every way they know."""
    from autotune.knobs.registry import builtin

    return [
        {"knob": name, "status": knob.effect.name, "how": _ways(knob, knob.spellings), "why": knob.summary}
        for name, knob in builtin().items()
    ]


def script_knobs(script: str) -> list[dict[str, Any]]:
    """Knobs as the source of this script shows them."""
    from autotune.knobs.registry import builtin

    facts = _facts(script)
    return [_row(knob, facts) for knob in builtin().values()]


def likely_space(script: str) -> dict[str, str]:
    """The preset that ``--space auto`` will probably take, and why; empty where one of them is malformed."""
    from autotune.core.auto import likely
    from autotune.edge.preset import AUTO_SPACE, load_space

    try:
        candidates = load_space(AUTO_SPACE, cwd=str(Path.cwd()))
    except UsageError:
        return {}
    space = likely(candidates, _facts(script))
    return {"name": space.name, "reason": space.reason}


def _facts(script: str) -> Facts:
    from autotune.core.facts import Facts
    from autotune.inspection.host import host_facts
    from autotune.inspection.script import script_facts

    return Facts(host=host_facts(), script=script_facts(script))


def _row(knob: Knob, facts: Facts) -> dict[str, Any]:
    from autotune.apply.choose import way
    from autotune.core.change import Change
    from autotune.knobs.frameworks import ways as spellings
    from autotune.knobs.registry import needs_permission

    reason = knob.refuse(facts)
    if reason is not None:
        return {"knob": knob.name, "status": "left alone", "how": "", "why": reason}
    effect, status = knob.effect_for(facts).name, "searched"
    if needs_permission(knob):
        status = "if allowed"
    if knob.virtual:
        through = ", ".join(knob.brings)
        return {
            "knob": knob.name,
            "status": status,
            "how": f"through {through}",
            "why": f"{effect}: {knob.summary}",
        }
    ways = [way(knob, value, facts) for value in knob.domain(facts)]
    usable = list(dict.fromkeys(way_text(w.spelling) for w in ways if isinstance(w, Change)))
    if ways and not usable:
        return {"knob": knob.name, "status": "left alone", "how": "", "why": str(ways[0])}
    how = ", ".join(usable) or _ways(knob, spellings(knob.spellings, facts))
    return {"knob": knob.name, "status": status, "how": how, "why": f"{effect}: {knob.summary}"}


def way_text(spelling: Spelling) -> str:
    """``flag --batch-size``, ``in-process patch``."""
    return spelling.text if spelling.how == "patch" else f"{spelling.how} {spelling.text}"


def _ways(knob: Knob, spellings: Sequence[Spelling]) -> str:
    return ", ".join(way_text(s) for s in spellings) or f"through {', '.join(knob.brings)}"


def table(rows: list[dict[str, Any]], *, note: str = "") -> str:
    """The rows aligned: knob, status, how, why."""
    columns = ("knob", "status", "how", "why")
    cells = [tuple(c.upper() for c in columns), *(tuple(str(row[c]) for c in columns) for row in rows)]
    widths = [min(44, max(len(line[i]) for line in cells)) for i in range(3)]
    lines = ["  ".join(f"{line[i]:<{widths[i]}}" for i in range(3)) + f"  {line[3]}" for line in cells]
    return "\n".join(lines) + "\n" + (f"{note}\n" if note else "")
