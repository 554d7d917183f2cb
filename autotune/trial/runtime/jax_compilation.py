"""Compilation under JAX, as JAX itself tells of it: a step with one inside is no usual step.

JAX is imported by the script alone; without it nothing happens here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autotune.trial.runtime.state import COMPILE

if TYPE_CHECKING:
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState

_COMPILED = "backend_compile_duration"
_MOST_STEPS = 8
"""Steps that compile after the first; a script that goes on and on does so as a part of its steps."""


class Xla:
    """Marks the steps in which JAX compiles."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._marked = 0
        self._at = -1

    def watch(self, hooks: AfterImport) -> None:
        """Listen from the import of JAX on."""
        hooks.on("jax", self._listen)

    def _listen(self, _jax: Any) -> None:
        try:
            monitoring: Any = importlib.import_module("jax.monitoring")
            monitoring.register_event_duration_secs_listener(self.told)
        except Exception as error:
            self._state.faults.note("xla", error)

    def told(self, event: str, _seconds: float, **_: Any) -> None:
        """Something took so long; JAX calls it in the thread that waited."""
        state = self._state
        if not event.endswith(_COMPILED) or not state.active or self._marked >= _MOST_STEPS:
            return
        if state.steps and state.steps != self._at:
            self._marked += 1
        self._at = state.steps
        state.note(COMPILE)
        state.xla_events += 1
