"""`autotune compare`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli.complete import study_labels
from autotune.cli.options import Json
from autotune.errors import UsageError


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="STUDY_A|FILE_A",
            help="Name or id of a study, or a best.yaml.",
            autocompletion=study_labels,
        ),
    ],
    second: Annotated[
        str, typer.Argument(metavar="STUDY_B|FILE_B", help="The other.", autocompletion=study_labels)
    ],
    *,
    json: Json = False,
) -> int:
    """Compare two studies or two best.yaml files.

    Two best.yaml are put side by side as well: what each claims and where, and the knobs that differ.
    """
    from autotune.cli.outcome import guarded, print_json, terminal_columns

    with guarded(as_json=json):
        are_files = [_is_file(name) for name in (first, second)]
        if any(are_files) and not all(are_files):
            raise UsageError(
                "one of the two is a file and the other is none", hint="name two files, or two studies"
            )
        compared = _files if all(are_files) else _studies
        data, text = compared(first, second, terminal_columns())
        if json:
            print_json({**data, "exit": 0})
        else:
            sys.stdout.write(text)
    return 0


def _is_file(name: str) -> bool:
    """Return whether a name is a best.yaml, existing or not; the path of a study is that of a folder."""
    return name.endswith((".yaml", ".yml")) or (os.sep in name and Path(name).is_file())


def _studies(first: str, second: str, columns: int) -> tuple[dict[str, Any], str]:
    from autotune.cli.open_study import open_search
    from autotune.report.text.study_comparison import compare_studies, comparison_data, comparison_text

    one, other = (open_search(name) for name in (first, second))
    found = compare_studies((one.study, one.answer), (other.study, other.answer))
    return comparison_data(found), comparison_text(found, columns=columns)


def _files(first: str, second: str, columns: int) -> tuple[dict[str, Any], str]:
    from autotune.cli.commands.compared_files import Side, compare_files, files_data, files_text
    from autotune.export.best_config import read_best

    one, other = (Side(file=name, best=read_best(name)) for name in (first, second))
    found = compare_files(one, other)
    return files_data(found), files_text(found, columns=columns)
