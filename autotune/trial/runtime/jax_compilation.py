"""Compilation events of JAX: a step that compiles is not a typical step.

Only the script imports JAX; without it this module does nothing.
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
"""Largest number of compiling steps after the first; more are part of the script's normal steps."""


class Xla:
    """Marks the steps in which JAX compiles."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._marked = 0
        self._at = -1

    def watch(self, hooks: AfterImport) -> None:
        """Register a listener when JAX is imported."""
        hooks.on("jax", self._listen)

    def _listen(self, _jax: Any) -> None:
        try:
            monitoring: Any = importlib.import_module("jax.monitoring")
            monitoring.register_event_duration_secs_listener(self.on_duration)
        except Exception as error:
            self._state.faults.note("xla", error)

    def on_duration(self, event: str, _seconds: float, **_: Any) -> None:
        """Record a duration event; JAX calls this in the thread that waited."""
        state = self._state
        if not event.endswith(_COMPILED) or not state.active or self._marked >= _MOST_STEPS:
            return
        if state.steps and state.steps != self._at:
            self._marked += 1
        self._at = state.steps
        state.note(COMPILE)
        state.xla_events += 1
