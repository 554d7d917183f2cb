"""Python's garbage collector, synchronized with training steps."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_FREEZE_STEP = 2
"""Model, optimizer and libraries exist by then, and no window has been opened."""
_OBJECTS = 50_000
"""Number of new objects that triggers a collection between step ends, as in evaluations."""
_YOUNG_STEPS, _ALL_STEPS = 10, 200
_THAW_S = 60.0
"""Least interval between collections of frozen objects, so that none is retained for ever."""
_FEW = 2_000
"""Python 3.12 counts some hundreds of immortal objects as frozen; a program that freezes has more."""


class Collector:
    """Implements `CollectorHook`.

    Args:
        state: Its `at_step` gets a callback for every step's end.
        undo: Restores the settings.
    """

    def __init__(self, state: RuntimeState, undo: Undo) -> None:
        self._state = state
        self._undo = undo
        self._own = gc.get_threshold()
        self._mode = "auto"
        self._thawed_s = 0.0
        self._since = 0

    def set(self, mode: str) -> None:
        """Set ``auto``, ``freeze`` or ``boundary``, from the first steps on."""
        if mode == self._mode:
            return
        if self._mode == "auto":
            self._state.at_step.append(self._step)
            self._undo.then(self.release)
        self._mode = mode

    def observed(self) -> str | None:
        """Return the mode from the interpreter's state, ``own`` for any other."""
        threshold, frozen = gc.get_threshold(), gc.get_freeze_count() > _FEW
        if not gc.isenabled():
            return "own"
        if threshold == self._own:
            return "freeze" if frozen else "auto"
        return "boundary" if frozen and threshold[0] == _OBJECTS else "own"

    def release(self) -> None:
        """Restore automatic collection of all objects."""
        if self._mode == "auto":
            return
        self._mode = "auto"
        self._thawed_s = 0.0
        if self._step in self._state.at_step:
            self._state.at_step.remove(self._step)
        gc.unfreeze()
        if gc.get_threshold()[0] == _OBJECTS:
            gc.set_threshold(*self._own)

    def _step(self) -> None:
        state = self._state
        if state.steps < _FREEZE_STEP or not state.active:
            return
        if not self._thawed_s:
            if self._mode == "boundary":
                gc.set_threshold(_OBJECTS, *self._own[1:])
            self._refreeze()
            return
        self._since += 1
        due = self._since >= _ALL_STEPS
        if due and time.monotonic() - self._thawed_s >= _THAW_S:
            gc.unfreeze()
            self._refreeze()
        elif self._mode == "boundary":
            generation = 2 if due else 1 if state.steps % _YOUNG_STEPS == 0 else 0
            gc.collect(generation)
            self._since = 0 if due else self._since

    def _refreeze(self) -> None:
        gc.collect()
        gc.freeze()
        self._thawed_s = time.monotonic()
        self._since = 0
