"""`autotune list`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Json

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.answer import Answer

_SHORTEST_ANSWER = 16


def list_studies(
    *,
    count: Annotated[int, typer.Option("-n", metavar="N", help="At most this many, newest first.")] = 20,
    json: Json = False,
) -> int:
    """List the studies on this machine, newest first."""
    from autotune.cli.ended import print_json, terminal_columns
    from autotune.store.paths import home, studies

    found = studies()
    rows = [_row(study.path, study.label, study.created) for study in found[:count]]
    if json:
        print_json({"schema": "autotune.list/v1", "studies": rows, "count": len(found), "exit": 0})
    elif not rows:
        print(f"no studies below {home() / 'studies'}; begin one: autotune search")
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
        "trials": 0,
        "answer": "",
        "stopped": "",
    }
    try:
        return {**row, **_seen(path)}
    except AutotuneError as error:
        return {**row, "answer": f"unreadable: {error.message}"}
    except Exception as error:  # noqa: BLE001 (whatever a journal holds, the others are listed)
        return {**row, "answer": f"unreadable: {type(error).__name__}"}


def _seen(path: Path) -> dict[str, Any]:
    """What the journal of a study shows."""
    from autotune.cli.opened import open_study
    from autotune.core.answer import SearchOutcome
    from autotune.core.study import VERIFY
    from autotune.report.summary import script_name, short_config

    opened = open_study(path)
    study, answer = opened.study, opened.answer
    said = "no answer yet"
    if answer is not None and study.spec.purpose == VERIFY:
        said = _verified(path)
    elif answer is not None and answer.is_better:
        said = f"{answer.best.speedup.value:.2f}x {short_config(answer.best.config)}"
    elif answer is not None and answer.outcome is SearchOutcome.NOTHING_FASTER and study.stopped:
        said = "nothing beats the script"
    elif answer is not None and study.stopped:
        said = f"inconclusive{_likely(answer)}"
    return {
        "script": script_name(study),
        "trials": len(study.told()),
        "answer": said,
        "stopped": study.stopped or "open",
    }


def _likely(answer: Answer) -> str:
    """``: likely 2.18x bf16``; empty without a candidate."""
    from autotune.report.summary import short_config

    likely = answer.likely
    return "" if likely is None else f": likely {likely.speedup.value:.2f}x {short_config(likely.config)}"


def _verified(path: Path) -> str:
    """What `autotune verify` found, in a few words."""
    from autotune.cli.verify import sentence
    from autotune.driver.verification import read_verified
    from autotune.errors import AutotuneError
    from autotune.report.summary import short_config

    try:
        found = read_verified(path)
    except AutotuneError as error:
        return f"unreadable: {error.message}"
    return f"{short_config(found.asked.config)}: {sentence(found)}"


def _table(rows: list[dict[str, Any]], columns: int = 0) -> str:
    """Studies for people; where a terminal is too narrow ids are left out, and answers are cut.

    Args:
        rows: Of `_row`.
        columns: Of the terminal; 0 where there is none.
    """
    from autotune.report.live import cut

    cells: list[tuple[str, ...]] = [("LABEL", "SCRIPT", "WHEN", "TRIALS", "STATE", "ANSWER", "ID")]
    cells += [
        (
            row["label"],
            row["script"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"])),
            str(row["trials"]),
            row["stopped"],
            row["answer"],
            row["id"],
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    if columns and sum(widths) + 2 * (len(widths) - 1) > columns:
        room = max(_SHORTEST_ANSWER, columns - sum(widths[:5]) - 2 * 5)
        cells = [(*line[:5], cut(line[5], room)) for line in cells]
        widths = [*widths[:5], room]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
