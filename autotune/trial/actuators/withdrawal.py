"""Withdrawal of knobs under `apply`, if the run contradicts the search.

A search observes the first minutes of a training. A later optimizer, or a loader of another size, may train
differently with a knob. The knob is then undone between two optimizer steps, or with the next pass over the
loader. One warning is printed, and the training continues.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn, Protocol

from autotune.knobs.base import Knob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.model.change import Change
    from autotune.trial.actuators.patches import TrialPatches
    from autotune.trial.runtime.state import RuntimeState


class Ending(Protocol):
    """Interface that ends the process, implemented by `ProcessEnd.untuned`."""

    def __call__(self, knob: str, why: str) -> NoReturn: ...


class Withdrawal:
    """Undoes knobs in a running training.

    Args:
        changes: Requested changes.
        knobs: All knobs by name.
        state: Counts steps.
        strict: End the process instead of a warning.
        end: Ends it.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        knobs: Mapping[str, Knob],
        state: RuntimeState,
        *,
        strict: bool,
        end: Ending,
    ) -> None:
        self._requested = {change.knob: change for change in changes}
        self._knobs = knobs
        self._state = state
        self._strict = strict
        self._end = end
        self._warned: set[str] = set()
        self.patches: TrialPatches | None = None
        self.gone: set[str] = set()
        """Knobs that were withdrawn."""

    def withdraw(self, name: str, reason: str) -> None:
        """Undo a knob and its dependents; warn once.

        Args:
            name: A knob; it is ignored if it was not requested.
            reason: The contradiction, a sentence.
        """
        if name not in self._requested or name in self.gone:
            return
        self._end_if_strict(name, reason)
        names = self._together(name)
        kept = [other for other in names if not self._undone(other)]
        self.gone |= set(names)
        done = [other for other in names if other not in kept]
        if done:
            stays = f", {self._listed(kept)} cannot be" if kept else ""
            words = f"{self._listed(done)} withdrawn after step {self._state.steps}{stays}"
        else:
            words = f"{self._listed(kept)} cannot be withdrawn in a running training"
        _warn(f"{words}: {reason.rstrip('.')}. The training continues.")

    def aside(self, names: Sequence[str], reason: str, *, is_exact: bool = False) -> None:
        """Warn once per reason that knobs are left out temporarily, or for one object.

        Args:
            names: Knobs; those not requested are ignored.
            reason: A sentence without a subject: ``is left out for ...``.
            is_exact: The knobs do not affect the results here, so that `strict` does not end the process.
        """
        known = [name for name in names if name in self._requested and name not in self.gone]
        if not known or reason in self._warned:
            return
        if not is_exact:
            self._end_if_strict(known[0], f"{self._listed(known)} {reason}")
        self._warned.add(reason)
        _warn(f"{self._listed(known)} {reason.rstrip('.')}. The training continues.")

    def _end_if_strict(self, name: str, reason: str) -> None:
        if self._strict:
            self._end(name, f"{name} contradicts the run after step {self._state.steps}: {reason}")

    def _together(self, name: str) -> list[str]:
        """Return the knob and its dependents."""
        return [
            name,
            *(n for n in self._knobs[name].withdraws_with if n in self._requested and n not in self.gone),
        ]

    def _undone(self, name: str) -> bool:
        knob = self._knobs.get(name)
        if knob is None or self.patches is None or type(knob).withdraw is Knob.withdraw:
            return False
        try:
            return knob.withdraw(self.patches)
        except Exception as error:
            self._state.faults.note(f"withdraw:{name}", error)
            return False

    def _listed(self, names: Sequence[str]) -> str:
        return " and ".join(f"{name}={self._requested[name].value}" for name in names)


def _warn(text: str) -> None:
    try:
        sys.stderr.write(f"autotune: warning: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return
