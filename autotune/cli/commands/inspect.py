"""`autotune inspect`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Json, Python
from autotune.errors import EXIT_YES, UsageError

if TYPE_CHECKING:
    from autotune.driver.inspect_run import InspectRun
    from autotune.inspection.command_line import Command
    from autotune.inspection.sdk_calls import SdkValue

INSPECT_SCHEMA = "autotune.inspect/v1"


def inspect(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT",
            help="The training script, with its arguments after --; or after -- a whole command.",
        ),
    ] = None,
    *,
    static: Annotated[bool, typer.Option("--static", help="Only read the script; run nothing.")] = False,
    limit: Annotated[
        str, typer.Option(metavar="2m", help="Time limit of the run; it usually ends earlier.")
    ] = "2m",
    python: Python = "",
    knobs: Annotated[bool, typer.Option("--knobs", help="List all knobs.")] = False,
    json: Json = False,
) -> int:
    """Show what can be tuned in a script and how, and what cannot and why.

    Runs the unchanged script for its first steps; its writes are kept away from your files.

    Exit codes: 0 inspected; 2 usage; 3 the script fails, or makes no step within the limit; 5 store;
    6 machine or interpreter; 70 internal error; 75 stopped by a signal; 130 stopped by Ctrl-C. If the
    script fails, its error is printed first.
    """
    from autotune.cli.outcome import guarded, print_json, say_error
    from autotune.report.text.inspect_text import every_knob, every_knob_text

    with guarded(as_json=json):
        if knobs:
            if json:
                print_json({"schema": INSPECT_SCHEMA, "knobs": every_knob(), "exit": EXIT_YES})
            else:
                sys.stdout.write(every_knob_text())
            return EXIT_YES
        if not command:
            raise UsageError(
                "no script is given", hint="autotune inspect train.py, or autotune inspect --knobs"
            )
        from autotune.config_files.duration import duration_s
        from autotune.driver.inspect_run import look
        from autotune.inspection.command_line import read_command

        seconds = duration_s(limit)
        run = read_command(command, python=python)
        if not static:
            start_note = (
                f"running {run.title} for its first steps, for at most {limit}; --static only reads it"
            )
            for note in (*run.notes, start_note):
                print(note, file=sys.stderr)
        found = look(run, limit_s=seconds, run=not static)
    if json:
        print_json(as_dict(run, found, static=static))
        if found.problem is not None:
            found.problem.is_reported = True
            raise found.problem
        return EXIT_YES
    from autotune.text.redact import redact

    if found.problem is not None:
        say_error(found.problem)
    sys.stdout.write(redact(screen(run, found, static=static)))
    return EXIT_YES if found.problem is None else found.problem.exit_code


def as_dict(run: Command, found: InspectRun, *, static: bool) -> dict[str, Any]:
    """Return the result as an object, schema ``autotune.inspect/v1``."""
    from autotune.answer.advice import advice_data
    from autotune.inspection.sdk_calls import requested_values
    from autotune.inspection.source_advice import advise
    from autotune.report.text.inspect_text import knob_rows, script_data

    problem = found.problem
    error_data = None if problem is None else {"kind": type(problem).__name__, "message": problem.message}
    requested = requested_values(run.inspected)
    return {
        "schema": INSPECT_SCHEMA,
        "script": run.script,
        "module": run.module,
        "python": run.python,
        "static": static,
        **script_data(found.facts, run.args, found.measured),
        "knobs": [] if _showed_nothing(found) else knob_rows(found.facts),
        **({"space": {"name": found.space.name, "reason": found.space.reason}} if found.space else {}),
        **({"values": [_value_data(value) for value in requested]} if requested else {}),
        "advice": [advice_data(hint) for hint in advise(run.inspected, found.facts.host)],
        "notes": [*run.notes, *found.notes],
        **({} if error_data is None or problem is None else {"error": {**error_data, "hint": problem.hint}}),
        "exit": EXIT_YES if problem is None else problem.exit_code,
    }


def _showed_nothing(found: InspectRun) -> bool:
    """Return whether the script failed before its run showed any fact for a knob."""
    return found.problem is not None and found.facts.run is None


def screen(run: Command, found: InspectRun, *, static: bool) -> str:
    """Return the result as a screen for users."""
    from autotune.answer.advice import advice_text
    from autotune.cli.outcome import terminal_columns
    from autotune.inspection.sdk_calls import requested_values
    from autotune.inspection.source_advice import advise
    from autotune.report.text.inspect_text import knob_rows, knobs_text, labelled_line, script_text

    parts = [script_text(found.facts, run.title, run.args, found.measured)]
    parts += [labelled_line("note", note) for note in found.notes]
    if _showed_nothing(found):
        return "".join(parts)
    parts += ["\n", knobs_text(knob_rows(found.facts), terminal_columns()), "\n"]
    if static:
        parts.append("Nothing was run: a run may exclude more knobs, and shows the script's own values.\n")
    if found.space is not None:
        verb = "takes" if found.measured is not None else "probably takes"
        parts.append(f"A search {verb} the space {found.space.name}: {found.space.reason}.\n")
    below = [labelled_line("value", _value_text(value)) for value in requested_values(run.inspected)]
    below += [labelled_line("advice", advice_text(hint)) for hint in advise(run.inspected, found.facts.host)]
    return "".join([*parts, *below])


def _value_text(value: SdkValue) -> str:
    own = "" if value.default is None else f", default {value.default}"
    return (
        f"{value.name}: requested at {value.place}{own}; searched if a space file declares it "
        f"(keyword: autotune.value:{value.name})"
    )


def _value_data(value: SdkValue) -> dict[str, str | int | float | None]:
    return {"name": value.name, "file": value.file, "line": value.line, "default": value.default}
