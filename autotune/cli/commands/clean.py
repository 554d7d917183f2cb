"""`autotune clean`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.complete import study_labels
from autotune.cli.options import Json
from autotune.errors import StoreError, UsageError

if TYPE_CHECKING:
    from autotune.driver.cleanup.clean import StoredItem

WORDS = {
    "trials": "logs and files of its trials",
    "caches": "compile caches, made again when needed",
    "study": "the whole study",
    "temporary": "left behind by something that died",
}


def clean(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STUDY",
            help="Studies to remove whole: names, ids, or their beginnings.",
            autocompletion=study_labels,
        ),
    ] = None,
    *,
    older_than: Annotated[
        str, typer.Option(metavar="30d", help="Remove whole studies that were not written to for this long.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files and remove nothing.")] = False,
    json: Json = False,
) -> int:
    """Remove files that searches left on this machine, after listing them and asking.

    Without a study or an age, removes folders of trials and compile caches of studies that are not running,
    and leftovers in the temporary folder. Journals, answers, profiles and MLflow's data stay, so `show`
    works as before.
    """
    from autotune.cli.outcome import guarded
    from autotune.driver.cleanup.clean import find

    with guarded(as_json=json):
        age_s = _seconds(older_than)
        if json and not (yes or dry_run):
            raise UsageError("--json cannot ask", hint="add --yes, or list the files with --dry-run")
        found = find(names or (), older_than_s=age_s)
        if not json:
            sys.stdout.write(table(found))
        wanted = bool(found.leftovers) and not dry_run and (yes or _agreed(found))
        left = _removed(found) if wanted else {}
        if json:
            _print_item(found, left, is_removed=wanted)
        elif wanted:
            print(f"removed {_bytes(found.size_bytes)}" if not left else "removed what could be")
        if left:
            path, reason = next(iter(left.items()))
            raise StoreError(f"{path} is still there: {reason}", hint="check its permissions, then try again")
    return 0


def table(found: StoredItem) -> str:
    """Return a line per folder, the sum, and the requested studies that are kept, with reasons."""
    rows = [
        (item.study or str(item.path), WORDS[item.kind], _bytes(item.size_bytes)) for item in found.leftovers
    ]
    kept = [f"kept {study}: {reason}" for study, reason in found.kept.items()]
    if not rows:
        return "\n".join([*kept, "there is nothing to remove"]) + "\n"
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
    return "\n".join([*lines, *kept, f"{_bytes(found.size_bytes)} in all"]) + "\n"


def _seconds(older_than: str) -> float | None:
    if not older_than:
        return None
    from autotune.config_files.duration import duration_s

    return duration_s(older_than)


def _agreed(found: StoredItem) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal for the question", hint="add --yes, or list the files with --dry-run"
        )
    what = "this folder" if len(found.leftovers) == 1 else f"these {len(found.leftovers)} folders"
    return typer.confirm(f"Remove {what}?", err=True)


def _removed(found: StoredItem) -> dict[str, str]:
    from autotune.driver.cleanup.clean import remove

    return remove(found)


def _print_item(found: StoredItem, left: dict[str, str], *, is_removed: bool) -> None:
    from autotune.cli.outcome import print_json

    rows: list[dict[str, Any]] = [
        {"kind": item.kind, "study": item.study, "path": str(item.path), "bytes": item.size_bytes}
        for item in found.leftovers
    ]
    print_json(
        {
            "schema": "autotune.clean/v1",
            "folders": rows,
            "bytes": found.size_bytes,
            "kept": dict(found.kept),
            "removed": is_removed,
            "still_there": left,
            "exit": StoreError.exit_code if left else 0,
        }
    )


def _bytes(size: int) -> str:
    from autotune.report.view.summary import bytes_text

    return bytes_text(size) if size >= 1024**2 else f"{size / 1024:.0f} KiB"
