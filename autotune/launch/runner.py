"""Interface of runners: one that starts processes, a fake one, a recorded one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.model.facts import RunFacts  # noqa: TC001 (`from_wire` resolves the hints of `TrialResult`)
from autotune.model.trial import Outcome, StartMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.model.trial import Assignment

NOT_BEGUN = "not_begun"
"""Key in a failure's evidence: no process was started, so the config is not at fault."""
REMEDY = "remedy"
"""Key in the same evidence: instruction that removes the cause on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The end of one trial, as observed by the launcher.

    Args:
        trial: Number of the trial.
        outcome: Measurement or Failure.
        seconds: Wall time of the process so far, start included.
        facts: Facts of the run, if it got that far.
        notes: Messages for the user, one sentence each, shown once.
        start: Whether the process was forked or cold-started.
    """

    trial: int
    outcome: Outcome
    seconds: float
    facts: RunFacts | None = None
    notes: tuple[str, ...] = ()
    start: StartMode = StartMode.COLD


_ANEW = "every trial starts in a new interpreter: "


def cold_start_note(reason: str) -> str:
    """Return the note for users who requested forks where none are possible."""
    return f"{_ANEW}{reason}"


def is_of_cold_starts(note: str) -> bool:
    """Return whether a note is from `cold_start_note`."""
    return note.startswith(_ANEW)


class Runner(ABC):
    """Runs an assignment in a process of its own.

    Contract: `run` yields exactly one `TrialResult` per segment that was started. It never raises for errors
    of the script. It returns within the deadline of the fidelity plus the kill ladder (20 s at most), and
    leaves no process behind. `stop` may be called from another thread or a signal handler; it ends the
    running process soon, as ``killed_user``.
    """

    @abstractmethod
    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        """Run an assignment and yield the result of each segment."""

    @abstractmethod
    def stop(self) -> None:
        """End the running process, if any; one that is about to start may be ended instead."""

    def close(self) -> None:  # noqa: B027 (most runners keep nothing)
        """Release resources shared by runs; `run` may not be called afterwards."""
