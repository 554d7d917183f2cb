"""Running one process, as a hook: the real one, a fake one, a recorded one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

# At run time too: an `TrialResult` crosses a process border, and the wire reads its hints.
from autotune.model.facts import RunFacts  # noqa: TC001 - read at run time, see above
from autotune.model.trial import Outcome, StartMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.model.trial import Assignment

NOT_BEGUN = "not_begun"
"""In the evidence of a failure: no process was started, so its config had no part in it."""
REMEDY = "remedy"
"""In the same evidence: what gives the machine what it lacks, as an instruction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One trial's end, as the launcher saw it.

    Args:
        trial: Number.
        outcome: Measurement or Failure.
        seconds: Wall time of the process so far, start included.
        facts: What the run showed, where it got so far.
        notes: What a person should know of it once, a sentence each.
        start: How its process came to be.
    """

    trial: int
    outcome: Outcome
    seconds: float
    facts: RunFacts | None = None
    notes: tuple[str, ...] = ()
    start: StartMode = StartMode.COLD


_ANEW = "every trial starts in a new interpreter: "


def cold_start_note(reason: str) -> str:
    """The note for a person who wanted trials to be forked, where none is."""
    return f"{_ANEW}{reason}"


def is_of_cold_starts(note: str) -> bool:
    """It is one of those."""
    return note.startswith(_ANEW)


class Runner(ABC):
    """Runs an assignment in a process of its own.

    Contract: `run` yields exactly one `TrialResult` per segment that was begun, never raises for anything the
    script does, returns within the deadline of the fidelity plus the kill ladder (20 s at most), and leaves
    no process behind. `stop` may be called from another thread or a signal handler and ends the running
    process soon, as ``killed_user``.
    """

    @abstractmethod
    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        """Run it; yield as segments end."""

    @abstractmethod
    def stop(self) -> None:
        """End the running process, if there is one; one that is about to be started may be ended instead."""

    def close(self) -> None:  # noqa: B027 (most runners keep nothing)
        """Let go of what is kept from one run to the next; nothing is run afterwards."""
