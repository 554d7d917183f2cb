"""The plain loop: one trial after the other in this process's children, without Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.driver.session import Session
    from autotune.launch.runner import Runner
    from autotune.model.trial import Assignment


def _keep() -> None:
    """Handlers of signals stay as they are."""


def _same(assignment: Assignment) -> Assignment:
    return assignment


class InlineDriver:
    """Runs a session to its end with one runner.

    Args:
        session: What to run.
        runner: How one assignment is run; closed over by `stop` so that a signal ends it.
        place: Returns the assignment as it is to run on this machine.
    """

    def __init__(
        self,
        session: Session,
        runner: Runner,
        *,
        place: Callable[[Assignment], Assignment] = _same,
    ) -> None:
        self._session = session
        self._runner = runner
        self._place = place
        self._interrupted = False

    def connect(self) -> None:
        """Nothing to reach."""

    def close(self) -> None:
        """Let the runner go."""
        self._runner.close()

    def run(self, arm: Callable[[], None] = _keep) -> None:
        """Return when nothing is left to do.

        Args:
            arm: Puts the handlers of signals in place again; nothing here takes them away.
        """
        arm()
        while self.run_next():
            pass

    def run_next(self) -> bool:
        """Run the next assignment to its end; False where there is none, or the loop was interrupted."""
        if self._interrupted or (assignment := self._session.ask()) is None:
            return False
        self._session.start(assignment)
        # A signal that came while this one was planned has found no process that it could end.
        if self._interrupted:
            return False
        for ended in self._runner.run(self._place(assignment)):
            self._session.tell(assignment.uid, ended)
        self._session.lost(assignment.uid, "the runner ended without an outcome")
        return True

    def breaks_off(self) -> bool:
        """False: nothing here interrupts the loop but a person."""
        return False

    def interrupt(self) -> None:
        """End the running trial soon; `run` returns after it. For signal handlers."""
        self._interrupted = True
        self._runner.stop()
