"""The hard wall: whatever hangs, the answer is on disk by the end of the budget, and we are gone after it."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

ANSWER_S = 1.0
"""So long before the end of the budget the answer is written by force."""

GONE_S = 18.0
"""So long after it this process ends by force; 20 s are promised."""

WORDS_S = 1.5
"""So long the last words may take: a stream that nobody reads must not hold the process."""


class HardWall:
    """Two alarms on threads of their own, for a loop that does not come back (Ray, a network store).

    Args:
        remaining_s: Budget left, as a callable.
        write: Writes the answer; called at most once by us, harmless when it was written before.
        code: The exit code if we have to end the process.
        say: Tells the user how it ended, before we end the process.
        may_exit: False where the process is somebody else's: only the answer is written.
    """

    def __init__(
        self,
        *,
        remaining_s: Callable[[], float],
        write: Callable[[], None],
        code: Callable[[], int],
        say: Callable[[], None] = lambda: None,
        may_exit: bool = True,
    ) -> None:
        self._remaining_s = remaining_s
        self._write = write
        self._code = code
        self._say = say
        self._may_exit = may_exit
        self._over = threading.Event()

    def start(self) -> None:
        """Arm both."""
        threading.Thread(target=self._watch, name="hard-wall", daemon=True).start()

    def disarm(self) -> None:
        """The process ends by itself now."""
        self._over.set()

    def _watch(self) -> None:
        if self._over.wait(max(0.0, self._remaining_s() - ANSWER_S)):
            return
        # What hangs may hold what writing needs; this thread must come back.
        _begun(self._write, "the answer could not be written at the end of the budget")
        if self._may_exit and not self._over.wait(max(0.0, self._remaining_s() + GONE_S)):
            _begun(self._say, "the end could not be told").join(WORDS_S)
            os._exit(self._code())


def _begun(action: Callable[[], None], complaint: str) -> threading.Thread:
    def act() -> None:
        try:
            action()
        except Exception:
            log.exception(complaint)

    thread = threading.Thread(target=act, name="hard-wall-act", daemon=True)
    thread.start()
    return thread
