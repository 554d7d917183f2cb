"""End of the training process: its last report, then ``os._exit`` at a step boundary.

No handler, join or bare ``except`` of the script can intervene, and everything reported is on disk before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from autotune.protocol.events import Broke, Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.model.measurement import Reading
    from autotune.trial.runtime.channel import Channel
    from autotune.trial.runtime.memory import DeviceMemory
    from autotune.trial.runtime.state import RuntimeState


class ProcessEnd:
    """Ends the process.

    Args:
        state: Shared counters.
        channel: The event channel; None in a process that is not measured.
        memory: Allocator figures.
        readings: Returns the status of every knob now.
        phase: Returns ``import``, ``setup``, ``warmup`` or ``window``.
    """

    def __init__(
        self,
        state: RuntimeState,
        channel: Channel | None,
        memory: DeviceMemory,
        *,
        readings: Callable[[], tuple[Reading, ...]],
        phase: Callable[[], str],
    ) -> None:
        self._state = state
        self._channel = channel
        self._memory = memory
        self._readings = readings
        self._phase = phase

    def on_untuned(self, knob: str, why: str) -> None:
        """Handle the failure of a knob, before a process that is not measured ends; can be replaced."""

    def untuned(self, knob: str, why: str) -> NoReturn:
        """End a run under `apply` in its first steps, as it lacks requested settings."""
        self.on_untuned(knob, why)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        sys.stderr.write(f"autotune: {why}\n")
        sys.stderr.flush()
        os._exit(6)

    def diverged(self, loss: float) -> None:
        """End a measured process because the loss is not finite."""
        if self._channel is not None:
            self.broke(kind="diverged", message=f"the loss became {loss}", readings=self.safe_readings())

    def safe_readings(self) -> tuple[Reading, ...]:
        """Return the status of every knob; empty if it cannot be read."""
        try:
            return self._readings()
        except Exception:
            return ()

    def broke(
        self,
        *,
        kind: str,
        message: str,
        error: str = "",
        tail: str = "",
        knob: str = "",
        how: str = "",
        readings: tuple[Reading, ...] = (),
        code: int = 1,
    ) -> NoReturn:
        """Write `Broke` and end the process."""
        assert self._channel is not None
        self._state.calm.leave()
        peak = None
        try:
            peak = self._memory.peak_bytes()
        except Exception as fault:
            self._state.faults.note("memory", fault)
        self._channel.send(
            Broke(
                kind=kind,
                error=error,
                message=message,
                tail=tail,
                phase=self._phase(),
                steps=self._state.steps,
                knob=knob,
                how=how,
                peak_bytes=peak,
                readings=readings,
            )
        )
        self.leave(code)

    def done(self, why: str, code: int = 0) -> NoReturn:
        """Write `Done` and end the process."""
        assert self._channel is not None
        self._channel.send(Done(why=why, steps=self._state.steps, code=code))
        self.leave(code)

    def leave(self, code: int) -> NoReturn:
        """Close the channel and end the process."""
        assert self._channel is not None
        self._channel.close()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
