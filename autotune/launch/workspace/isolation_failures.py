"""Failures that an overlay may have caused, and the note that a study runs without overlays.

Such a failure is run again in redirect mode. If that succeeds, the overlay was the cause.
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
"""File in a study's folder: reason why its trials run in redirect mode."""
BOTH_MODES = "fails_isolated"
"""Key in a failure's evidence: different failure under the other isolation mode."""

ERRORS = (
    *(errno.EPERM, errno.EXDEV, errno.EINVAL, errno.ENOSPC, errno.EROFS, errno.EOVERFLOW),
    *(errno.EOPNOTSUPP, errno.ECONNREFUSED, errno.ESTALE),
)
"""Errors of system calls that occur only under an overlay or in a user namespace (decision 109)."""

_KINDS = (FailureKind.CRASH_EXIT, FailureKind.DISK)
_NUMBERS = "|".join(map(str, ERRORS))
# Formats of Python and of C++ and Rust: by text, with or without the number.
_ERROR = re.compile(
    rf"\[Errno (?P<number>{_NUMBERS})\]|\(os error (?P<rust>{_NUMBERS})\)"
    + "".join(f"|(?P<e{n}>{re.escape(os.strerror(n))})" for n in ERRORS if n != errno.EINVAL)
)


def suspected(outcomes: Iterable[Outcome]) -> str:
    """Return the name of an error in these failures that an overlay can cause; empty if there is none."""
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.kind in _KINDS:
            evidence = outcome.evidence
            # If the output ends in a traceback, earlier messages of libraries are no evidence.
            own = str(evidence.get("traceback") or evidence.get("log_tail") or "")
            if found := list(_ERROR.finditer(f"{own}\n{outcome.message}")):
                return errno.errorcode[_number(found[-1])]
    return ""


def _number(match: re.Match[str]) -> int:
    known = match["number"] or match["rust"]
    return int(known or str(match.lastgroup)[1:])


def is_measured(outcomes: Iterable[Outcome]) -> bool:
    """Return whether all outcomes are measurements."""
    return not any(isinstance(outcome, Failure) for outcome in outcomes)


def is_the_scripts(outcomes: Iterable[Outcome]) -> bool:
    """Return whether a failure is the script's own, not due to time or the machine."""
    return any(isinstance(outcome, Failure) and outcome.kind in _KINDS for outcome in outcomes)


def with_both(outcomes: dict[int, Outcome], first: str, message: str) -> dict[int, Outcome]:
    """Return the failures of a second run; one that differs from the first names both.

    Args:
        outcomes: Outcomes in redirect mode.
        first: From `suspected`, for the run under an overlay.
        message: Message of that run's failure.
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
    """Return the message of the first failure."""
    return next((outcome.message for outcome in outcomes if isinstance(outcome, Failure)), "")


def note(study_dir: Path, reason: str) -> None:
    """Have the study's further trials run in redirect mode, in other processes too."""
    with contextlib.suppress(OSError):
        (study_dir / NOTE_FILE).write_text(reason, encoding="utf-8", errors="surrogateescape")


def is_noted(study_dir: Path) -> bool:
    """Return whether the study's trials must run in redirect mode."""
    return (study_dir / NOTE_FILE).exists()


def sentence(message: str) -> str:
    """Return the message for the user about a run that succeeded in redirect mode only."""
    return (
        f"the overlay that keeps trials off your files made a run fail ({message}); "
        "the script is not at fault. Trials run in redirect mode from here on: "
        "programs that are not Python can change your files"
    )
