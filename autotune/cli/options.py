"""Options that several verbs take, each with one name, one variable and one text."""

from __future__ import annotations

from typing import Annotated

import typer

Python = Annotated[
    str,
    typer.Option(metavar="PATH", envvar="AUTOTUNE_PYTHON", help="Interpreter of the script's environment."),
]
Pick = Annotated[
    str, typer.Option(metavar="PICK", help="safe, best, fastest or likely. Default: the file's own.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="KNOB", help="Accept what the file sets by this knob, which is not declared here."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
JsonAtEnd = Annotated[
    bool, typer.Option("--json", help="One JSON object on stdout at the end.", rich_help_panel="Output")
]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--jsonl", help="JSON on stdout: a line per event, the result in the last.", rich_help_panel="Output"
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", envvar="AUTOTUNE_QUIET", help="No progress.", rich_help_panel="Output"),
]
ExitZero = Annotated[
    bool,
    typer.Option(
        "--exit-zero",
        envvar="AUTOTUNE_EXIT_ZERO",
        help="Exit with 0 in place of 1 and 8.",
        rich_help_panel="Output",
    ),
]
WaitForQuiet = Annotated[
    str,
    typer.Option(
        metavar="10m",
        envvar="AUTOTUNE_WAIT_FOR_QUIET",
        help="Longest wait for other processes to end, before the first run and before confirmation.",
    ),
]
Wait = Annotated[
    str,
    typer.Option(
        metavar="30m",
        envvar="AUTOTUNE_WAIT",
        help="Wait up to so long for another search on the same CPUs or accelerators; else twice the budget.",
    ),
]
Share = Annotated[
    bool,
    typer.Option(
        "--share",
        envvar="AUTOTUNE_SHARE",
        help="Measure beside that search after --wait, at once without it; the answer names it.",
    ),
]
