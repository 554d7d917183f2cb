"""Marks some steps for Nsight Systems, which runs this process; what it records is for people."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.trial.runtime.memory import DeviceMemory
    from autotune.trial.runtime.state import RuntimeState

STEPS = 5
SECONDS = 5.0
"""Recorded are so many steps, or as many as begin within this time."""


class Capture:
    """Runs from step to step after the window; `step` returns True when it is complete.

    The CUDA profiler's start and stop delimit the recording, each after the device is idle, and each step is
    a separate range. Without a CUDA device the whole process is recorded, and the capture does nothing.

    Args:
        state: Shared counters.
        torch: The module.
        memory: Memory of the device that trains.
    """

    def __init__(self, state: RuntimeState, torch: Any, memory: DeviceMemory) -> None:
        self._state = state
        self._torch = torch
        self._memory = memory
        self._steps = 0
        self._begun_s = 0.0
        self.finished = False
        self.figures: dict[str, float] = {}
        """Always empty, as profiling changes the speed of a process."""

    def step(self) -> bool:
        """Handle the end of a step after the window; return True when the recording is complete."""
        if self.finished:
            return True
        try:
            self.finished = not self._memory.on_cuda or self._record()
        except Exception as error:
            self._state.faults.note("capture", error)
            self.finished = True
        return self.finished

    def _record(self) -> bool:
        cuda = self._torch.cuda
        if not self._steps:
            self._memory.synchronise()
            cuda.profiler.start()
            self._begun_s = time.perf_counter()
        else:
            cuda.nvtx.range_pop()
        late = self._steps > 0 and time.perf_counter() - self._begun_s >= SECONDS
        if self._steps >= STEPS or late:
            self._memory.synchronise()
            cuda.profiler.stop()
            return True
        self._steps += 1
        cuda.nvtx.range_push(f"step {self._steps}")
        return False
