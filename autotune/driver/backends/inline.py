"""Inline loop: one trial after the other in child processes, without Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.driver.loop.session import Session
    from autotune.launch.runner import Runner
    from autotune.model.trial import Assignment


def _keep() -> None:
    """Keep the signal handlers."""


def _same(assignment: Assignment) -> Assignment:
    return assignment


class InlineDriver:
    """Runs a session to its end with one runner.

    Args:
        session: Session to run.
        runner: Runs one assignment; `stop` calls it, so that a signal ends the trial.
        place: Returns the assignment adapted to this machine.
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
        """Do nothing: there is no backend."""

    def close(self) -> None:
        """Close the runner."""
        self._runner.close()

    def run(self, arm: Callable[[], None] = _keep) -> None:
        """Run until no trial is left.

        Args:
            arm: Installs the signal handlers again; unused, as nothing here removes them.
        """
        arm()
        while self.run_next():
            pass

    def run_next(self) -> bool:
        """Run the next assignment to its end; return False if there is none, or after an interrupt."""
        if self._interrupted or (assignment := self._session.ask()) is None:
            return False
        self._session.start(assignment)
        # A signal during the planning of this trial found no process to end.
        if self._interrupted:
            return False
        for ended in self._runner.run(self._place(assignment)):
            self._session.tell(assignment.uid, ended)
        self._session.lost(assignment.uid, "the runner ended without an outcome")
        return True

    def breaks_off(self) -> bool:
        """Return False: only the user interrupts this loop."""
        return False

    def interrupt(self) -> None:
        """End the running trial soon, after which `run` returns. For signal handlers."""
        self._interrupted = True
        self._runner.stop()
