"""The hard wall: whatever hangs, the answer is on disk by the end of the budget, and we are gone after it."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
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
        self._turn = threading.Condition()
        self._is_over = False
        self._brought_forward_s = math.inf

    def start(self) -> None:
        """Arm both."""
        threading.Thread(target=self._watch, name="hard-wall", daemon=True).start()

    def bring_forward(self, seconds: float) -> None:
        """Take it for so long at the most that the budget lasts; infinity takes that back.

        Args:
            seconds: From now on.
        """
        with self._turn:
            self._brought_forward_s = time.monotonic() + seconds
            self._turn.notify_all()

    def disarm(self) -> None:
        """The process ends by itself now."""
        with self._turn:
            self._is_over = True
            self._turn.notify_all()

    def _reached(self, offset_s: float) -> bool:
        """Wait until so much after the end of the budget; False where the process ends by itself before."""
        end_s = time.monotonic() + self._remaining_s()
        with self._turn:
            while not self._is_over:
                left_s = min(end_s, self._brought_forward_s) + offset_s - time.monotonic()
                if left_s <= 0.0:
                    return True
                self._turn.wait(min(left_s, threading.TIMEOUT_MAX))
        return False

    def _watch(self) -> None:
        if not self._reached(-ANSWER_S):
            return
        # What hangs may hold what writing needs; this thread must come back.
        _begun(self._write, "the answer could not be written at the end of the budget")
        if self._may_exit and self._reached(GONE_S):
            _begun(self._say, "the listeners were not notified of the end").join(WORDS_S)
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
