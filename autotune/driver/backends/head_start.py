"""Head start: the first trial runs in a child process while another driver starts in a thread."""

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

    from autotune.driver.loop.session import Session
    from autotune.launch.runner import Runner
    from autotune.model.trial import Assignment

DEVICES = "CUDA_VISIBLE_DEVICES"

POLL_S = 0.1
"""Interval at which a wait for the driver checks whether the search was stopped."""

QUIET_S = 1.0
"""A longer start is announced to the user."""

CLOSE_S = 20.0
"""Time for a driver that still starts when the search ends; Ray takes 4 to 10 s to start."""


class Driver(Protocol):
    """Interface of drivers, which run a session to its end."""

    def connect(self) -> None:
        """Start or connect to the backend."""

    def run(self, arm: Callable[[], None]) -> None:
        """Run until no trial is left."""

    def interrupt(self) -> None:
        """End soon. For signal handlers of the main thread."""

    def breaks_off(self) -> bool:
        """Break the loop if the driver itself raised the current interrupt."""
        ...

    def close(self) -> None:
        """Release everything."""


class ThreadedStart:
    """Starts a driver in a separate thread.

    The thread lives until `release`: Ray has Linux kill its processes when their parent ends, and for Linux
    the parent is the thread that started them (PR_SET_PDEATHSIG).

    Args:
        call: Builds and connects the driver.
        failed: Receives errors of `call`, in the thread.
    """

    def __init__(self, call: Callable[[], Driver], failed: Callable[[Exception], None]) -> None:
        self._call = call
        self._failed = failed
        self._over = threading.Event()
        self._released = threading.Event()
        self._driver: Driver | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        """Begin without waiting."""
        threading.Thread(target=self._run, name="autotune-start", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait up to this time; return whether the driver has started, or failed to."""
        return self._over.wait(seconds)

    @property
    def is_over(self) -> bool:
        """Whether the driver has started, or failed to."""
        return self._over.is_set()

    @property
    def driver(self) -> Driver | None:
        """The driver; None before its start."""
        return self._driver

    def release(self) -> None:
        """Let the thread end."""
        self._released.set()

    def check(self) -> None:
        """Raise the error of the start, if there was one."""
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
    """Runs the first trial by a local runner, until a driver that starts meanwhile takes over.

    The first trial of a search is the unchanged script, whose process needs seconds to import PyTorch. The
    driver starts in that time. The runner sets aside steps during the start (`LocalRunner.disturbs`), so that
    it disturbs no measurement.

    Args:
        session: Session to run.
        runner: Builds the runner of the first trial; its argument returns whether the driver is starting.
        start: Builds and connects the driver; called in a thread.
        devices: Accelerators of this machine. The first trial gets those that the driver uses for pairs.
        announce: Receives the reason for a wait longer than `QUIET_S`.
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
        """Begin to start the driver without waiting."""
        self._started.begin()

    def run(self, arm: Callable[[], None] = lambda: None) -> None:
        """Run until no trial is left.

        Args:
            arm: Installs the signal handlers again.

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
        """Return the driver after its start; None if the search ends before."""
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
        """End the first trial, which would be useless, and leave it open for a resume."""
        self._session.stop("backend" if isinstance(error, BackendError) else "error")
        self._first.interrupt()

    def breaks_off(self) -> bool:
        """Return the driver's own answer; False before its start."""
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
    """Return the assignment with as many of the first visible devices as it has ranks.

    Args:
        assignment: From the session.
        there: Number of accelerators of this machine.
    """
    launch = assignment.launch
    visible = launch.env.get(DEVICES)
    if not there or visible == "":
        return assignment
    names = [name.strip() for name in visible.split(",")] if visible else [str(n) for n in range(there)]
    env = {**launch.env, DEVICES: ",".join(names[: max(1, launch.ranks)])}
    return replace(assignment, launch=replace(launch, env=env))
