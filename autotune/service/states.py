"""States of a search on the service, and the transitions between them."""

from __future__ import annotations

from enum import Enum
from typing import Final


class SearchState(str, Enum):
    """State of a search. A lost job puts its search back into the queue."""

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
        """Whether no job runs and none will, unless the search is resumed."""
        return self in FINAL

    @property
    def has_job(self) -> bool:
        """Whether a job may exist for it."""
        return self in WITH_JOB


FINAL: Final = frozenset({SearchState.SUCCEEDED, SearchState.FAILED, SearchState.CANCELLED})
WITH_JOB: Final = frozenset(
    {SearchState.STARTING, SearchState.RUNNING, SearchState.CANCELLING, SearchState.PREEMPTING}
)

MOVES: Final = {
    SearchState.QUEUED: {SearchState.STARTING, SearchState.CANCELLED},
    SearchState.STARTING: {
        SearchState.RUNNING,
        SearchState.SUCCEEDED,
        SearchState.FAILED,
        SearchState.QUEUED,
        SearchState.CANCELLING,
    },
    SearchState.RUNNING: {
        SearchState.SUCCEEDED,
        SearchState.FAILED,
        SearchState.QUEUED,
        SearchState.CANCELLING,
        SearchState.PREEMPTING,
    },
    SearchState.CANCELLING: {SearchState.CANCELLED, SearchState.SUCCEEDED, SearchState.FAILED},
    SearchState.PREEMPTING: {
        SearchState.QUEUED,
        SearchState.SUCCEEDED,
        SearchState.FAILED,
        SearchState.CANCELLING,
    },
    SearchState.SUCCEEDED: {SearchState.QUEUED},
    SearchState.FAILED: {SearchState.QUEUED},
    SearchState.CANCELLED: {SearchState.QUEUED},
}
"""States that may follow each state. A final state can only be resumed."""

ENDINGS: Final = {
    0: (SearchState.SUCCEEDED, "faster: a gain is confirmed"),
    1: (SearchState.SUCCEEDED, "nothing is faster"),
    8: (SearchState.SUCCEEDED, "inconclusive; resume it with a further budget"),
    2: (SearchState.FAILED, "the command or a file is wrong, or the budget was too short for one run"),
    3: (SearchState.FAILED, "the script fails without any change"),
    4: (SearchState.FAILED, "nothing fits into the memory that was allowed"),
    5: (SearchState.FAILED, "the study could not be read or written"),
    6: (SearchState.FAILED, "machine or backend"),
    70: (SearchState.FAILED, "internal error"),
    75: (SearchState.CANCELLED, "stopped by a signal"),
    130: (SearchState.CANCELLED, "stopped"),
}
"""Final state and reason by exit code of ``autotune search`` (docs/exit_codes.md)."""


def ending(code: int) -> tuple[SearchState, str]:
    """Return the final state and the reason for an exit code."""
    return ENDINGS.get(code, (SearchState.FAILED, f"ended with code {code}"))
