"""`autotune logs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.complete import study_labels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILES = ("stdout.log", "stderr.log")
"""Output files of a trial's process, in its folder."""


def logs(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Name or id of a study, or its beginning. Default: the latest.", autocompletion=study_labels
        ),
    ] = None,
    trial: Annotated[int | None, typer.Argument(metavar="N", help="Number of a trial.")] = None,
    *,
    path: Annotated[bool, typer.Option("--path", help="Print the folder of the logs.")] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Of a search on the service: its events until it ends.")
    ] = False,
) -> int:
    """Print what the script wrote during a trial, or list the trials that have logs.

    Of a search on the service: the output of the search, or with -f its events as they happen.

    Secrets are removed. Of a measured trial the last 64 KiB are kept.
    """
    from autotune.cli.remote import followed, on_server
    from autotune.errors import StudyNotFound, UsageError
    from autotune.store.paths import find_study

    if (handle := on_server(study)) is not None:
        for text in (f"{line}\n" for line in followed(handle)) if follow else handle.logs():
            sys.stdout.write(text)
            sys.stdout.flush()
        return 0
    if follow:
        raise UsageError(
            "-f follows a search on the service",
            hint="a local search shows its progress itself; `autotune status` lists those of the service",
        )

    if trial is None and study is not None and study.isdigit() and len(study) <= _LONGEST_NUMBER:
        study, trial = None, int(study)
    folder = find_study(study, searches=True)
    if trial is None:
        if path:
            print(folder / "trials")
            return 0
        sys.stdout.write(_listed(folder))
        return 0
    attempts = trial_folders(folder, trial)
    if not attempts:
        raise StudyNotFound(
            f"trial {trial} has no logs in {folder / 'trials'}",
            hint="`autotune logs` lists the trials with logs",
        )
    if path:
        print(attempts[-1])
        return 0
    for attempt in attempts:
        sys.stdout.write(_text(attempt))
    return 0


_LONGEST_NUMBER = 4
"""Most digits of a trial's number; a label of digits is longer (month, day, hour, minute)."""


def trial_folders(study: Path, trial: int | None = None) -> list[Path]:
    """Return the folders of the trials of a study that kept their logs, by trial and attempt.

    Args:
        study: Directory of the study.
        trial: Number of a trial; None for all.
    """
    pattern = "t[0-9]*-*" if trial is None else f"t{trial:04d}-*"
    return sorted(place for place in (study / "trials").glob(pattern) if place.is_dir())


def _listed(study: Path) -> str:
    from autotune.cli.open_study import open_study
    from autotune.model.config import config_text
    from autotune.report.text.terminal_text import result_text
    from autotune.text.redact import redact

    known = open_study(study).study
    rows: list[Sequence[str]] = []
    for one in known.trials:
        sizes = [_size(place / name) for place in trial_folders(study, one.number) for name in FILES]
        if sizes:
            rows.append(
                (str(one.number), f"{sum(sizes)} bytes", result_text(known, one), config_text(one.config))
            )
    if not rows:
        return f"no trial of {known.spec.label} has kept its logs\n"
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        f"{row[0]:>{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}".rstrip()
        for row in rows
    ]
    return redact("\n".join(lines), free=True) + f"\nautotune logs {known.spec.label} N prints one\n"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() and not path.is_symlink() else 0


def _text(folder: Path) -> str:
    """Return both streams of one attempt, each below its name."""
    from autotune.protocol.lines import open_plain
    from autotune.text.redact import redact

    parts: list[str] = []
    for name in FILES:
        path = folder / name
        if not _size(path):
            continue
        with open_plain(path) as file:
            text = file.read().decode(errors="replace")
        parts.append(f"==> {folder.name}/{name} <==\n{redact(text, free=True).rstrip()}\n")
    return "".join(parts) or f"==> {folder.name} <==\n(no output)\n"
