"""The error tree: what is told to a person, with a remedy and an exit code.

Anybody may import this module; it imports nothing of ours.

```
AutotuneError          exit 70   an internal error; asks for a bug report with `autotune doctor`
  UsageError           exit 2    UnknownKnob  InvalidSpace  InvalidBudget
  ScriptError          exit 3    the script fails with its own defaults; shows its last lines
  NothingFeasible      exit 4    every configuration failed; shows the commonest failure
  StoreError           exit 5    StudyNotFound  StudyLocked  JournalDamaged
    DiskFull DiskFailed  exit 6  like everything that this machine lacks (`autotune.shortage`)
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
    """Something that a person must hear of, with what to do about it.

    Args:
        message: What happened, with the value seen and where.
        hint: What to do next; empty where nothing can be said.
    """

    exit_code = 70
    is_told = False
    """Whether the program that asked for JSON has its object already."""
    end: Any = None
    """What there is to tell besides (`autotune.driver.tune.SearchEnd`), where a search has come so far."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message and, on a line of its own, the hint."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(AutotuneError):
    """The command line or a file given by the user cannot be carried out; nothing was run."""

    exit_code = 2


class UnknownKnob(UsageError):
    """A knob was named that does not exist."""


class InvalidSpace(UsageError):
    """A search space file is malformed, or names nothing that the script has."""


class InvalidBudget(UsageError):
    """A budget is no duration, or too small to hold a search."""


class ScriptError(AutotuneError):
    """The user's script fails by itself, without any change of ours."""

    exit_code = 3


class NothingFeasible(AutotuneError):
    """Every configuration failed."""

    exit_code = 4


class StoreError(AutotuneError):
    """A study cannot be read or written."""

    exit_code = 5


class StudyNotFound(StoreError):
    """No study has that id or label."""


class StudyLocked(StoreError):
    """Another driver writes to this study."""


class JournalDamaged(StoreError):
    """The chain of events in a journal is broken."""


class DiskFull(StoreError):
    """A disk is full, or a quota is used up; a search that was stopped by it can be resumed."""

    exit_code = 6


class DiskFailed(StoreError):
    """A disk is read-only, or reading and writing on it fail."""

    exit_code = 6


class BackendError(AutotuneError):
    """The machine or a service we need cannot do what was asked."""

    exit_code = 6


class RayUnavailable(BackendError):
    """Ray cannot be started or reached, or lacks a resource."""


class TrackerUnavailable(BackendError):
    """MLflow cannot be reached; never ends a search."""


class NotApplied(BackendError):
    """`autotune apply`: the configuration does not take effect on this machine."""


def add_note(error: BaseException, note: str) -> None:
    """As `BaseException.add_note`, which came with Python 3.11."""
    error.__notes__ = [*notes_of(error), note]  # type: ignore[attr-defined]


def notes_of(error: BaseException) -> Sequence[str]:
    """What was said further about an error on its way, as sentences."""
    return tuple(getattr(error, "__notes__", ()))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the likeliest intended word, or an empty string.

    Args:
        word: What was typed.
        known: Every word that would have been right.
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'Did you mean "{close[0]}"?' if close else ""
