"""Child processes of the script; training in them cannot be observed."""

from __future__ import annotations

import functools
import multiprocessing.process
import os
from typing import TYPE_CHECKING, Any

from autotune.trial.runtime.state import caller

if TYPE_CHECKING:
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_HELPERS = (
    os.path.join("torch", "utils", "data", ""),
    os.path.join("concurrent", "futures", ""),
    os.path.join("multiprocessing", "pool.py"),
    os.path.join("multiprocessing", "managers.py"),
)
"""Files of child processes that load, prepare or hold data, and do not train."""


class Children:
    """Counts child processes; `started` explains a run without steps."""

    def __init__(self, state: RuntimeState, undo: Undo) -> None:
        self._state = state
        self._undo = undo
        self.started = 0

    def watch(self) -> None:
        """Count from now on."""
        base = multiprocessing.process.BaseProcess
        original = base.start

        @functools.wraps(original)
        def start(this: Any) -> None:
            original(this)
            frame = caller(1)
            name = "" if frame is None else frame.f_code.co_filename
            if self._state.active and not any(part in name for part in _HELPERS):
                self.started += 1

        self._undo.assign(base, "start", start)

    def train(self) -> str:
        """Return why no step was observed, if children may train; empty without any."""
        if not self.started:
            return ""
        processes = "a process" if self.started == 1 else f"{self.started} processes"
        return (
            f"no optimizer step was observed in the script's process, which started {processes}: training "
            "in processes that the script starts cannot be measured"
        )
