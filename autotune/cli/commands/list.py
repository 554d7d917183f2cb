"""`autotune list`."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from autotune.cli.options import Json

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.cli.open_study import OpenStudy
    from autotune.model.study import Study

_SHORTEST_ANSWER = 16


def list_studies(
    script: Annotated[
        str | None,
        typer.Argument(metavar="[SCRIPT]", help="Only studies whose script's path contains this text."),
    ] = None,
    *,
    count: Annotated[int, typer.Option("-n", metavar="N", help="At most this many, newest first.")] = 20,
    json: Json = False,
) -> int:
    """List the studies on this machine, newest first; of the id of a search on the service, that search."""
    from autotune.cli.outcome import print_json, terminal_columns
    from autotune.cli.remote import on_server
    from autotune.store.paths import home, studies

    if (handle := on_server(script)) is not None:
        from autotune.cli.commands.submit import print_searches

        return print_searches([handle.status()], json=json)

    found = studies()
    read = (_row(study.path, study.label, study.created) for study in found)
    rows = list(islice((row for row in read if not script or script in row["path"]), count))
    if json:
        print_json({"schema": "autotune.list/v1", "studies": rows, "count": len(found), "exit": 0})
    elif not rows:
        of = f" of {script}" if script else ""
        print(f"no studies{of} below {home() / 'studies'}; start one: autotune search train.py")
    else:
        print(_table(rows, terminal_columns()))
    return 0


def _row(path: Path, label: str, created: float) -> dict[str, Any]:
    from autotune.errors import AutotuneError

    row: dict[str, Any] = {
        "id": path.name,
        "label": label,
        "created": created,
        "script": "",
        "path": "",
        "trials": 0,
        "state": "unreadable",
        "answer": "",
        "stopped": "",
    }
    try:
        return {**row, **_seen(path)}
    except AutotuneError as error:
        return {**row, "answer": error.message}
    except Exception as error:  # noqa: BLE001 (whatever a journal holds, the others are listed)
        return {**row, "answer": type(error).__name__}


def _seen(path: Path) -> dict[str, Any]:
    """Return what the journal of a study shows."""
    from autotune.cli.open_study import open_study
    from autotune.report.view.summary import script_name
    from autotune.store.study_lock import is_locked

    opened = open_study(path)
    study = opened.study
    return {
        "script": script_name(study),
        "path": _script(study),
        "trials": len(study.finished()),
        "state": _STATES.get(study.stopped, study.stopped)
        or ("running" if is_locked(path) else "interrupted"),
        "answer": _outcome(opened),
        "stopped": study.stopped or "open",
    }


_STATES: Final = {
    "finished": "finished",
    "budget": "finished",
    "interrupted": "stopped (Ctrl-C)",
    "signal": "stopped (signal)",
    "disk": "stopped (disk full)",
    "script": "stopped (script edited)",
    "no_baseline": "failed",
}
"""Reasons for the end of a study in words; others are shown by their names."""


def _script(study: Study) -> str:
    """Return the script with its folder, the home shortened; of a module its dotted name."""
    spec = study.spec
    if spec.module:
        return spec.module
    home, path = str(Path.home()), spec.script
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def _outcome(opened: OpenStudy) -> str:
    """Return the answer in a few words, or why there is none."""
    from autotune.answer.answer import SearchOutcome
    from autotune.model.config import config_text
    from autotune.model.study import SCALE, VERIFY
    from autotune.report.view.summary import failed_baseline, failure_line

    study, answer = opened.study, opened.answer
    failed = failed_baseline(study)
    if failed is not None and failed.failure is not None:
        return f"{failed.failure.kind.words}: {failure_line(failed)}"
    if answer is None:
        return "no answer yet" if not study.stopped else "no answer"
    if study.spec.purpose == VERIFY:
        return _verified(opened.path)
    if study.spec.purpose == SCALE:
        return _scaled(opened.path)
    if answer.is_better:
        return f"faster {answer.best.speedup.value:.2f}x {config_text(answer.best.config)}"
    if not study.stopped:
        return "no answer yet"
    if answer.outcome is SearchOutcome.NOTHING_FASTER:
        return "nothing is faster"
    return f"inconclusive{_likely(answer)}"


def _likely(answer: Answer) -> str:
    """Return the candidate, as in ``: likely 2.18x precision=bf16``, or ""."""
    from autotune.model.config import config_text

    likely = answer.likely
    return "" if likely is None else f": likely {likely.speedup.value:.2f}x {config_text(likely.config)}"


def _scaled(path: Path) -> str:
    """Return the numbers of processes that `autotune scale` found best, in a few words."""
    from autotune.driver.scaling import read_scaled

    found = read_scaled(path).scaling
    measured = [p.processes for p in found.points if p.throughput is not None]
    if found.knee is None:
        return f"scaling: {len(measured)} of {len(found.points)} numbers of processes measured"
    return f"scaling to {measured[-1]} processes: knee {found.knee}, cheapest {found.cheapest}"


def _verified(path: Path) -> str:
    """Return the result of `autotune verify`, in a few words."""
    from autotune.cli.commands.verify import sentence
    from autotune.driver.verification import read_verified
    from autotune.errors import AutotuneError
    from autotune.model.config import config_text

    try:
        found = read_verified(path)
    except AutotuneError as error:
        return f"unreadable: {error.message}"
    return f"{config_text(found.request.config)}: {sentence(found)}"


def _table(rows: list[dict[str, Any]], columns: int = 0) -> str:
    """Return a table of studies; a narrow terminal gets no ids and shorter answers.

    Args:
        rows: Of `_row`.
        columns: Of the terminal; 0 where there is none.
    """
    from autotune.report.terminal.live_view import cut

    cells: list[tuple[str, ...]] = [("STUDY", "SCRIPT", "WHEN", "TRIALS", "STATE", "OUTCOME", "ID")]
    cells += [
        (
            row["label"],
            row["path"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"])),
            str(row["trials"]),
            row["state"],
            row["answer"],
            row["id"],
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    if columns and sum(widths) + 2 * (len(widths) - 1) > columns:
        cells = [(line[0], Path(line[1]).name, *line[2:]) for line in cells]
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        room = max(_SHORTEST_ANSWER, columns - sum(widths[:5]) - 2 * 5)
        cells = [(*line[:5], cut(line[5], room)) for line in cells]
        widths = [*widths[:5], room]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
