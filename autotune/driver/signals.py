"""What Ctrl-C and a scheduler's signals do to a search."""

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
    """The second Ctrl-C, in a program that is not ours to end."""


@contextmanager
def breakable() -> Generator[None, None, None]:
    """Around a loop that a first Ctrl-C may break by KeyboardInterrupt; a second one comes through."""
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
    """Within it, the first Ctrl-C or scheduler's signal calls `stop`, the second Ctrl-C ends at once.

    Ending at once leaves the running trial to its guard, which sees our death and cleans up. A scheduler's
    signal that this process was started to ignore stays ignored: `nohup` says so of the hang-up at logout.
    A Ctrl-C does not, since whoever starts a search in a script's background still means it.

    Args:
        stop: Called with ``interrupted`` or ``signal``; must return soon. It may raise
            KeyboardInterrupt to break a loop that does not look.
        owns_process: False in somebody else's program: the second Ctrl-C raises `PressedAgain`,
            and a scheduler's signals stay with the handlers of that program.
        breaks_off: Asked at each interrupt whether the driver has raised it to break its own loop, and
            breaks it then; such an interrupt is nobody's Ctrl-C, is not told and does not count.

    Yields:
        Puts the handlers in place again, after something else (Ray) has set its own. Does nothing
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
            # None where it was set in C, which nothing here can put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
