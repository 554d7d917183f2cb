"""The index of all design decisions with their status: ``python docs/tools/decision_index.py FILE``."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "decisions"
_HEAD: Final = """\
# Design decisions

Each page answers one question of the design: what was decided, why, and what else was considered. A decision
is never rewritten. A later decision supersedes it, and the status names that one. Without a status line of
its own a decision is accepted.

This page is generated from the decisions by `nox -s reference`.

| No. | Decision | Status | Note |
|---|---|---|---|
"""
_STATES: Final = r"accepted|proposed|rejected|superseded(?: in part)?"


@dataclass(frozen=True)
class Decision:
    """One decision as the index shows it."""

    path: Path
    number: int
    title: str
    state: str = "accepted"
    note: str = ""


def decisions(folder: Path = FOLDER) -> list[Decision]:
    """Return the decisions of a folder by number.

    Raises:
        ValueError: A page has no title with its number, or a status that is none.
    """
    return [_read(path) for path in sorted(folder.glob("[0-9]*.md"))]


def _read(path: Path) -> Decision:
    text = path.read_text(encoding="utf-8")
    title = re.match(r"# (\d+)\. (.+)\n", text)
    if title is None or int(title[1]) != int(path.name[:4]):
        message = f"{path.name} does not begin with '# NUMBER. Title'"
        raise ValueError(message)
    number, name = int(title[1]), title[2]
    status = re.search(r"^(?:\*\*Status\.\*\*|Status:) +(.*?)(?:\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if status is None:
        return Decision(path, number, name)
    line = " ".join(status[1].split())
    state = re.match(_STATES, line, re.IGNORECASE)
    if state is None:
        message = f"{path.name}: the status '{line}' is none of {_STATES}"
        raise ValueError(message)
    note = line[state.end() :].lstrip(".;,: ")
    return Decision(path, number, name, state.group().lower(), note[:1].upper() + note[1:])


def index(folder: Path = FOLDER) -> str:
    """Return the page."""
    rows = [
        f"| {d.number} | [{d.title}]({d.path.name}) | {d.state} | {_cell(d.note)} |".replace("|  |", "| |")
        for d in decisions(folder)
    ]
    return _HEAD + "".join(f"{row}\n" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the page to the file named, or to stdout."""
    if arguments:
        Path(arguments[0]).write_text(index(), encoding="utf-8")
    else:
        sys.stdout.write(index())


if __name__ == "__main__":
    main(sys.argv[1:])
