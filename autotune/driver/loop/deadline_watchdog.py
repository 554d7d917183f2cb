"""Deadline watchdog: writes the answer at the end of the budget, and ends a process that hangs."""

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
"""Time before the end of the budget at which the answer is written by force."""

GONE_S = 18.0
"""Time after it at which this process ends by force; the documented limit is 20 s."""

WORDS_S = 1.5
"""Time for the final message, as an unread stream must not block the process."""


class HardWall:
    """Two alarms in separate threads, for a blocked main loop (Ray, a network store).

    Args:
        remaining_s: Returns the budget left.
        write: Writes the answer; called at most once here, without effect if it was written before.
        code: The exit code if the process is ended here.
        say: Shows the user how the search ended, before the process is ended.
        may_exit: False in a host program's process: only the answer is written.
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
        """Arm both alarms."""
        threading.Thread(target=self._watch, name="hard-wall", daemon=True).start()

    def bring_forward(self, seconds: float) -> None:
        """Shorten the time until the alarms to this; infinity restores it.

        Args:
            seconds: From now on.
        """
        with self._turn:
            self._brought_forward_s = time.monotonic() + seconds
            self._turn.notify_all()

    def disarm(self) -> None:
        """Disarm, as the process ends by itself now."""
        with self._turn:
            self._is_over = True
            self._turn.notify_all()

    def _reached(self, offset_s: float) -> bool:
        """Wait until a time after the end of the budget; return False if disarmed before."""
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
        # A blocked thread may hold a lock that writing needs, so writing runs in another thread.
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
