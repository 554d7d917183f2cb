"""Failures that an overlay may have caused, and the note that a study's trials do without it.

A failure of such a kind is run again in redirect mode. If that works, the overlay was at fault.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.model.trial import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.model.trial import Outcome

NOTE_FILE = "redirect.txt"
"""In a study's folder: why its trials run in redirect mode."""
BOTH_MODES = "fails_isolated"
"""In the evidence of a failure: what another mode of isolation ended with, where that was something else."""

ERRORS = (
    *(errno.EPERM, errno.EXDEV, errno.EINVAL, errno.ENOSPC, errno.EROFS, errno.EOVERFLOW),
    *(errno.EOPNOTSUPP, errno.ECONNREFUSED, errno.ESTALE),
)
"""Errors that a system call may have under an overlay or in a user namespace alone (decision 109)."""

_KINDS = (FailureKind.CRASH_EXIT, FailureKind.DISK)
_NUMBERS = "|".join(map(str, ERRORS))
# As Python writes it, and as C++ and Rust do: by the text, with or without the number.
_ERROR = re.compile(
    rf"\[Errno (?P<number>{_NUMBERS})\]|\(os error (?P<rust>{_NUMBERS})\)"
    + "".join(f"|(?P<e{n}>{re.escape(os.strerror(n))})" for n in ERRORS if n != errno.EINVAL)
)


def suspected(outcomes: Iterable[Outcome]) -> str:
    """Return the name of an error that one of these failed by and an overlay can cause; empty if none did."""
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.kind in _KINDS:
            evidence = outcome.evidence
            # What a library has printed before the end is no reason for it, where the end has a traceback.
            own = str(evidence.get("traceback") or evidence.get("log_tail") or "")
            if found := list(_ERROR.finditer(f"{own}\n{outcome.message}")):
                return errno.errorcode[_number(found[-1])]
    return ""


def _number(match: re.Match[str]) -> int:
    known = match["number"] or match["rust"]
    return int(known or str(match.lastgroup)[1:])


def is_measured(outcomes: Iterable[Outcome]) -> bool:
    """Whether all of it was measured."""
    return not any(isinstance(outcome, Failure) for outcome in outcomes)


def is_the_scripts(outcomes: Iterable[Outcome]) -> bool:
    """Whether one of these ended by a failure of the script itself, and not for the time or the machine."""
    return any(isinstance(outcome, Failure) and outcome.kind in _KINDS for outcome in outcomes)


def with_both(outcomes: dict[int, Outcome], first: str, message: str) -> dict[int, Outcome]:
    """Failures of a second run; one that differs from the first names both.

    Args:
        outcomes: Of the run in redirect mode.
        first: From `suspected`, of the run under an overlay.
        message: Of that run's failure.
    """
    if suspected(outcomes.values()) == first:
        return outcomes
    return {
        number: replace(outcome, evidence={**outcome.evidence, BOTH_MODES: message})
        if isinstance(outcome, Failure)
        else outcome
        for number, outcome in outcomes.items()
    }


def message_of(outcomes: Iterable[Outcome]) -> str:
    """Of the first failure among these."""
    return next((outcome.message for outcome in outcomes if isinstance(outcome, Failure)), "")


def note(study_dir: Path, reason: str) -> None:
    """Have the study's further trials run in redirect mode, those of other processes too."""
    with contextlib.suppress(OSError):
        (study_dir / NOTE_FILE).write_text(reason, encoding="utf-8", errors="surrogateescape")


def is_noted(study_dir: Path) -> bool:
    """Whether the study's trials are to run in redirect mode."""
    return (study_dir / NOTE_FILE).exists()


def sentence(message: str) -> str:
    """What a person should know of a run that worked in redirect mode alone."""
    return (
        f"the overlay that keeps trials off your files made a run fail ({message}); "
        "the script is not at fault. Trials run in redirect mode from here on: "
        "programs that are not Python can change your files"
    )
