"""Handling of Ctrl-C and scheduler signals in a search."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

log = logging.getLogger(__name__)

SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class PressedAgain(KeyboardInterrupt):
    """Second Ctrl-C in a host program, whose process must not be ended."""


@contextmanager
def breakable() -> Generator[None, None, None]:
    """Mark a loop that the first Ctrl-C may break by KeyboardInterrupt; a second one propagates."""
    try:
        yield
    except PressedAgain:
        raise
    except KeyboardInterrupt:
        return


@contextmanager
def polite_ending(
    stop: Callable[[str], None],
    *,
    owns_process: bool = True,
    breaks_off: Callable[[], bool] = lambda: False,
) -> Generator[Callable[[], None], None, None]:
    """Handle signals: the first Ctrl-C or scheduler signal calls `stop`, the second Ctrl-C ends at once.

    Ending at once leaves the running trial to its guard, which detects this process's death and cleans up. A
    scheduler signal that was ignored at the start of this process stays ignored, as with `nohup` for the
    hang-up at logout. An ignored Ctrl-C does not, since a search in a script's background is still to be
    interruptible.

    Args:
        stop: Called with ``interrupted`` or ``signal``; must return soon. It may raise
            KeyboardInterrupt to break a blocking loop.
        owns_process: False in a host program: the second Ctrl-C raises `PressedAgain`,
            and scheduler signals keep that program's handlers.
        breaks_off: Called at each interrupt. Returns True if the driver raised it to break its own loop, and
            breaks it then; such an interrupt is not reported and does not count.

    Yields:
        Function that installs the handlers again, after another library (Ray) has set its own. Does nothing
        outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    presses = 0

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        if breaks_off():
            return
        presses += 1
        if presses > 1 and owns_process:
            os._exit(EXIT_INTERRUPTED)
        if presses > 1:
            raise PressedAgain
        stop("interrupted")

    def scheduled(number: int, _frame: FrameType | None) -> None:
        log.info("stopped by signal %d", number)
        stop("signal")

    def arm() -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)
            for number in SCHEDULER_SIGNALS if owns_process else ():
                ignored = before[number] is signal.SIG_IGN
                signal.signal(number, signal.SIG_IGN if ignored else scheduled)

    handled = (signal.SIGINT, *(SCHEDULER_SIGNALS if owns_process else ()))
    before = {number: signal.getsignal(number) for number in handled}
    arm()
    try:
        yield arm
    finally:
        for number, handler in before.items():
            # None if it was set in C, which cannot be restored here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
