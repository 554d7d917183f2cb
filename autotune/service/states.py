"""States of a search on the service, and the moves between them."""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(str, Enum):
    """Where a search is. ``LOST`` is never stored: a lost job puts its search back into the queue."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    PREEMPTING = "preempting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """No job runs and none will, unless the search is resumed."""
        return self in FINAL

    @property
    def has_job(self) -> bool:
        """A job may exist for it."""
        return self in WITH_JOB


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
WITH_JOB: Final = frozenset({State.STARTING, State.RUNNING, State.CANCELLING, State.PREEMPTING})

MOVES: Final = {
    State.QUEUED: {State.STARTING, State.CANCELLED},
    State.STARTING: {State.RUNNING, State.SUCCEEDED, State.FAILED, State.QUEUED, State.CANCELLING},
    State.RUNNING: {State.SUCCEEDED, State.FAILED, State.QUEUED, State.CANCELLING, State.PREEMPTING},
    State.CANCELLING: {State.CANCELLED, State.SUCCEEDED, State.FAILED},
    State.PREEMPTING: {State.QUEUED, State.SUCCEEDED, State.FAILED, State.CANCELLING},
    State.SUCCEEDED: {State.QUEUED},
    State.FAILED: {State.QUEUED},
    State.CANCELLED: {State.QUEUED},
}
"""State -> states that may follow. From a final state only a resume leads back."""

ENDINGS: Final = {
    0: (State.SUCCEEDED, "faster: a gain is confirmed"),
    1: (State.SUCCEEDED, "nothing is faster"),
    8: (State.SUCCEEDED, "inconclusive; resume it with a further budget"),
    2: (State.FAILED, "the command or a file is wrong, or the budget was too short for one run"),
    3: (State.FAILED, "the script fails without any change"),
    4: (State.FAILED, "nothing fits into the memory that was allowed"),
    5: (State.FAILED, "the study could not be read or written"),
    6: (State.FAILED, "machine or backend"),
    70: (State.FAILED, "internal error"),
    75: (State.CANCELLED, "stopped by a signal"),
    130: (State.CANCELLED, "stopped"),
}
"""Exit code of ``autotune search`` -> final state and its reason (docs/exit_codes.md)."""


def ending(code: int) -> tuple[State, str]:
    """Return the final state and the reason for an exit code."""
    return ENDINGS.get(code, (State.FAILED, f"ended with code {code}"))
