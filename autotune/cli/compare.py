"""`autotune compare`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from autotune.cli.complete import study_labels


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="STUDY_A", help="Label, id, or the beginning of one.", autocompletion=study_labels
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="STUDY_B", help="The other.", autocompletion=study_labels)],
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """Put two studies side by side; a difference is named only where it was shown."""
    from autotune.cli.ended import guarded, print_json, terminal_columns
    from autotune.cli.opened import open_search
    from autotune.report.compare import compare_studies, comparison_data, comparison_text

    with guarded(as_json=json):
        one, other = (open_search(name) for name in (first, second))
        found = compare_studies((one.study, one.answer), (other.study, other.answer))
        if json:
            print_json({**comparison_data(found), "exit": 0})
        else:
            sys.stdout.write(comparison_text(found, columns=terminal_columns()))
    return 0
