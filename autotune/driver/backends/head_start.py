"""Runs the first trial in this process's children while another driver starts in a thread."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from autotune.driver.backends.inline import InlineDriver
from autotune.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.driver.session import Session
    from autotune.launch.runner import Runner
    from autotune.model.trial import Assignment

DEVICES = "CUDA_VISIBLE_DEVICES"

POLL_S = 0.1
"""How often a wait for the driver checks whether the search has been stopped meanwhile."""

QUIET_S = 1.0
"""A start that takes longer is announced."""

CLOSE_S = 20.0
"""A driver that is still starting when the search ends gets this long; Ray takes 4 to 10 s to start."""


class Driver(Protocol):
    """Runs a session to its end."""

    def connect(self) -> None:
        """Start or reach what runs trials."""

    def run(self, arm: Callable[[], None]) -> None:
        """Return when nothing is left to do."""

    def interrupt(self) -> None:
        """End soon. For signal handlers of the main thread."""

    def breaks_off(self) -> bool:
        """Break the loop where the driver itself has raised the interrupt that just came."""
        ...

    def close(self) -> None:
        """Release everything."""


class ThreadedStart:
    """Starts a driver in a thread of its own.

    The thread stays until `release`: Ray asks Linux to kill its processes when their parent ends, and for
    Linux the parent is the thread that started them (PR_SET_PDEATHSIG).

    Args:
        call: Builds and connects the driver.
        failed: Receives what that raises, in the thread.
    """

    def __init__(self, call: Callable[[], Driver], failed: Callable[[Exception], None]) -> None:
        self._call = call
        self._failed = failed
        self._over = threading.Event()
        self._released = threading.Event()
        self._driver: Driver | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        """Begin; does not wait."""
        threading.Thread(target=self._run, name="autotune-start", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait at most this long; whether the driver has started, or failed to."""
        return self._over.wait(seconds)

    @property
    def is_over(self) -> bool:
        """The driver has started, or failed to."""
        return self._over.is_set()

    @property
    def driver(self) -> Driver | None:
        """The driver; None where it has not started."""
        return self._driver

    def release(self) -> None:
        """Let the thread end."""
        self._released.set()

    def check(self) -> None:
        """Raise what the start raised, if it did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._driver = self._call()
        except Exception as error:  # noqa: BLE001 (raised by `check`, in the thread that waits)
            self._error = error
            self._over.set()
            self._failed(error)
            return
        self._over.set()
        self._released.wait()


class HeadStart:
    """The first trial runs through a local runner; a driver that starts meanwhile takes over after it.

    The first trial of a search is the script unchanged, and its process needs seconds to import PyTorch.
    That is when the driver starts. Steps that fall into the start are set aside by the runner
    (`LocalRunner.disturbs`), so the start disturbs no measurement.

    Args:
        session: What to run.
        runner: Builds the runner of the first trial; its argument tells whether the driver is starting.
        start: Builds and connects the driver. Called in a thread.
        devices: Accelerators of this machine. The first trial gets those that the driver uses for pairs.
        announce: Receives what the search waits for, where it waits for more than `QUIET_S`.
    """

    def __init__(
        self,
        session: Session,
        runner: Callable[[Callable[[], bool]], Runner],
        start: Callable[[], Driver],
        *,
        devices: int = 0,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._session = session
        self._started = ThreadedStart(start, self._start_failed)
        self._first = InlineDriver(
            session,
            runner(lambda: not self._started.is_over),
            place=lambda assignment: on_first_devices(assignment, devices),
        )
        self._announce = announce

    def connect(self) -> None:
        """Begin to start the driver; does not wait for it."""
        self._started.begin()

    def run(self, arm: Callable[[], None] = lambda: None) -> None:
        """Return when nothing is left to do.

        Args:
            arm: Puts our signal handlers in place again.

        Raises:
            RayUnavailable: The driver could not be started.
        """
        arm()
        self._first.run_next()
        self._first.close()
        driver = self._driver()
        if driver is not None:
            driver.run(arm)

    def _driver(self) -> Driver | None:
        """The driver once it has started; None where the search is over before."""
        if self._session.is_over and not self._started.is_over:
            return None
        announce_s = time.monotonic() + QUIET_S
        while not self._started.wait(POLL_S):
            if self._session.stopping or self._session.remaining_s <= 0.0:
                break
            if time.monotonic() > announce_s:
                announce_s = math.inf
                self._announce("starting Ray")
        if self._started.is_over:
            self._started.check()
        return None if self._session.stopping else self._started.driver

    def _start_failed(self, error: Exception) -> None:
        """The first trial would run for nothing: end it, and leave it open for a resume."""
        self._session.stop("backend" if isinstance(error, BackendError) else "error")
        self._first.interrupt()

    def breaks_off(self) -> bool:
        """As the driver's; False before it has started."""
        driver = self._started.driver
        return driver is not None and driver.breaks_off()

    def interrupt(self) -> None:
        """End the first trial, or the driver's loop. For signal handlers of the main thread."""
        self._first.interrupt()
        if (driver := self._started.driver) is not None:
            driver.interrupt()

    def close(self) -> None:
        """Release the runner and the driver, which may still be starting."""
        self._first.close()
        self._started.wait(CLOSE_S)
        try:
            if (driver := self._started.driver) is not None:
                driver.close()
        finally:
            self._started.release()


def on_first_devices(assignment: Assignment, there: int) -> Assignment:
    """The assignment with as many of the first visible devices as it has ranks.

    Args:
        assignment: From the session.
        there: Accelerators of this machine.
    """
    launch = assignment.launch
    visible = launch.env.get(DEVICES)
    if not there or visible == "":
        return assignment
    names = [name.strip() for name in visible.split(",")] if visible else [str(n) for n in range(there)]
    env = {**launch.env, DEVICES: ",".join(names[: max(1, launch.ranks)])}
    return replace(assignment, launch=replace(launch, env=env))
