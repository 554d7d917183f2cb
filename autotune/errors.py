"""The error tree: errors for the user, with a hint and an exit code.

Every package may import this module; it imports no other one of the project.

```
AutotuneError          exit 70   an internal error; please report it with the output of `autotune doctor`
  UsageError           exit 2    UnknownKnob  InvalidSpace  InvalidBudget
  ScriptError          exit 3    the script fails with its own defaults; shows its last lines
  NothingFeasible      exit 4    every configuration failed; shows the commonest failure
  StoreError           exit 5    StudyNotFound  StudyLocked  JournalDamaged
    DiskFull DiskFailed  exit 6  a resource of the machine is used up (`autotune.shortage`)
  BackendError         exit 6    RayUnavailable  TrackerUnavailable  NotApplied
```

A failed trial is not an error but a value (`autotune.model.trial.Failure`).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXIT_YES = 0
EXIT_NO = 1
EXIT_INCONCLUSIVE = 8
"""A search that can neither claim a gain nor exclude one: too short, too noisy or unfinished."""
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130


class AutotuneError(Exception):
    """An error for the user.

    Args:
        message: What happened, where, with the offending value.
        hint: What to do next; empty if there is nothing to suggest.
    """

    exit_code = 70
    is_reported = False
    """Whether the JSON object for this error has been printed already."""
    end: Any = None
    """The result of the search up to the error (`autotune.driver.tune.SearchEnd`), or None."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message and, on a line of its own, the hint."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(AutotuneError):
    """The command line or a file of the user is invalid; nothing was run."""

    exit_code = 2


class UnknownKnob(UsageError):
    """No knob has the given name."""


class InvalidSpace(UsageError):
    """A search space file is malformed, or names a script option that does not exist."""


class InvalidBudget(UsageError):
    """A budget is not a duration, or is too small for a search."""


class ScriptError(AutotuneError):
    """The unchanged script fails."""

    exit_code = 3


class NothingFeasible(AutotuneError):
    """Every configuration failed."""

    exit_code = 4


class StoreError(AutotuneError):
    """A study cannot be read or written."""

    exit_code = 5


class StudyNotFound(StoreError):
    """No study has the given id or label."""


class StudyLocked(StoreError):
    """Another process writes to this study."""


class JournalDamaged(StoreError):
    """The hash chain of a journal is broken."""


class DiskFull(StoreError):
    """A disk is full or a quota is used up; the search can be resumed."""

    exit_code = 6


class DiskFailed(StoreError):
    """A disk is read-only, or I/O on it fails."""

    exit_code = 6


class BackendError(AutotuneError):
    """The machine, or a service that is required, cannot do what was requested."""

    exit_code = 6


class RayUnavailable(BackendError):
    """Ray cannot be started or reached, or lacks a resource."""


class TrackerUnavailable(BackendError):
    """MLflow cannot be reached. Never ends a search."""


class NotApplied(BackendError):
    """`autotune apply`: the configuration does not take effect on this machine."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, like `BaseException.add_note` of Python 3.11."""
    error.__notes__ = [*notes_of(error), note]  # type: ignore[attr-defined]


def notes_of(error: BaseException) -> Sequence[str]:
    """Return the notes that were added to an error, as sentences."""
    return tuple(getattr(error, "__notes__", ()))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the closest known word, or an empty string.

    Args:
        word: What the user typed.
        known: All valid words.
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'Did you mean "{close[0]}"?' if close else ""
