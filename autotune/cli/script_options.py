"""Options of the user's script that were typed before ``--``."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.text.redact import redact_args

if TYPE_CHECKING:
    from collections.abc import Sequence

TAKE_SCRIPT: Final = ("search", "inspect")
"""Commands that name a script before ``--``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """A command line with the script's options after ``--``.

    Args:
        script: As it was typed.
        command: The whole line, quoted, without secrets.
    """

    script: str
    command: str


def corrected(argv: Sequence[str], option: str, command: Any) -> Corrected | None:
    """Return the command line with the script's options after ``--``.

    Args:
        argv: Words after ``autotune``.
        option: The option that the command does not have.
        command: The click command.

    Returns:
        None where no script is named, or its source does not hold the option's name.
    """
    before, after = list(argv), []
    if "--" in before:
        at = before.index("--")
        before, after = before[:at], before[at + 1 :]
    script = next((w for w in before if w.endswith(".py") and Path(w).is_file()), "")
    if not script or not _has(Path(script), option):
        return None
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    kept, moved = _apart(before, known)
    line = shlex.join(redact_args(["autotune", *kept, "--", *moved, *after]))
    return Corrected(script=script, command=line)


def _has(script: Path, option: str) -> bool:
    """Return whether the option, or a variable of its name, is in the source."""
    name = re.escape(option.lstrip("-")).replace(r"\-", "[-_]")
    return (
        re.search(rf"(?<!\w){name}(?!\w)", script.read_text(encoding="utf-8", errors="replace")) is not None
    )


def _apart(words: Sequence[str], known: set[str]) -> tuple[list[str], list[str]]:
    """Return the words that the command keeps, and the unknown options with their values."""
    kept: list[str] = []
    moved: list[str] = []
    into = kept
    for word in words:
        if word.startswith("-"):
            into = kept if word.partition("=")[0] in known else moved
        into.append(word)
        if into is moved and "=" in word:
            into = kept
    return kept, moved
