"""Probe of a `why` run after its window: cached batches, phases, one counted step, the loader alone.

The process ends right after, so no change has to be undone. No part of the probe is active during the window.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from autotune.answer.bottleneck import PREFIX
from autotune.trial.probe.cached_batches import Replay
from autotune.trial.probe.loader_drain import drain
from autotune.trial.probe.operation_counts import Counted, figures_of, has_others, machine
from autotune.trial.probe.profiler import Profiler
from autotune.trial.probe.step_phases import Phases
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.optimizer import Optimizer
    from autotune.trial.runtime.memory import DeviceMemory
    from autotune.trial.runtime.state import RuntimeState

STRETCH_S = 1.5
"""Least duration of the loop on cached batches; longer if a step is slow."""
DRAIN_S = 1.5
_FEWEST_STEPS = 4
_SKIPPED_STEPS = 2
_MOST_S = 8.0
_PROFILED_STEPS, _PROFILED_S = 5, 5.0
_PHASES = ("forward", "loss", "backward", "optimizer", "host")


class Probe:
    """Runs from step to step; `step` returns True when it is complete.

    Args:
        state: Shared counters.
        torch: The module.
        loader, optimizer, root, memory: The hooks of this process.
        batches_per_step: Batches per step of the script; None without batches.
        folder: Folder for a profile of some steps; None for none.
    """

    def __init__(
        self,
        state: RuntimeState,
        torch: Any,
        loader: Loader,
        optimizer: Optimizer,
        root: TrainedModules,
        memory: DeviceMemory,
        *,
        batches_per_step: Callable[[], float | None],
        folder: Path | None = None,
    ) -> None:
        self._state = state
        self._torch = torch
        self._loader = loader
        self._optimizer = optimizer
        self._root = root
        self._memory = memory
        self._batches_per_step = batches_per_step
        self._folder = folder
        self._profiler: Profiler | None = None
        self._undo = Undo()
        base = sys.modules[torch.utils.data.DataLoader.__module__].__dict__["_BaseDataLoaderIter"]
        self._replay = Replay(base, trains=lambda: bool(torch.is_grad_enabled()) and state.here())
        self._phases: Phases | None = None
        self._counted: Counted | None = None
        self._parts: list[Callable[[], bool]] = []
        self._steps = 0
        self._since_s = 0.0
        self._cpu_s = 0.0
        self._begun = False
        self._per_step: float | None = None
        self.finished = False
        self.figures: dict[str, float] = {}

    def step(self) -> bool:
        """Handle the end of a step after the window; return True when the probe is complete."""
        if self.finished:
            return True
        try:
            if not self._begun:
                self._begin()
            elif self._parts[0]():
                self._parts.pop(0)
                self._steps = 0
            if not self._parts:
                self._end()
        except Exception as error:
            self._state.faults.note("probe", error)
            self._clear()
            self.finished = True
        return self.finished

    def _begin(self) -> None:
        self._begun = True
        # Read now: replayed batches are not counted.
        self._per_step = self._batches_per_step()
        self._state.replays = True
        # Reading losses out of tensors would add to the measured time.
        self._undo.assign(self._state, "keeps_losses", value=False)
        self._replay.begin()
        self._undo.then(self._replay.end)
        # On a device phases are separated by synchronization, which a rate must not include.
        self._parts = [self._rate, self._in_phases] if self._memory.on_cuda else [self._both]
        if not self._root.compiles:
            self._parts.append(self._count)
        if self._folder is not None:
            self._parts.append(self._keep_profile)

    # Stages: each is called once per step until it returns True.

    def _both(self) -> bool:
        if not self._in_phases():
            return False
        self._take_rate()
        return True

    def _rate(self) -> bool:
        if not self._stretch(lambda: None):
            return False
        self._take_rate()
        return True

    def _in_phases(self) -> bool:
        phases = self._phases
        if phases is None:
            phases = self._phases = Phases(self._memory.synchronise if self._memory.on_cuda else None)
            calls = [(m, c) for c in self._root.calls if (m := c.module()) is not None]
            mine = [(m, c) for m, c in calls if m.__dict__.get("_compiled_call_impl") is c]
            phases.watch(self._undo, self._torch, self._optimizer, mine)
        if self._steps > _SKIPPED_STEPS:
            phases.turn()
        phases.step_ends()
        if not self._stretch(phases.begin):
            return False
        steps = self._timed_steps
        for phase in _PHASES:
            if phase in phases.spent_ns:
                self._put(f"phase_{phase}_s", max(0.0, phases.spent_ns[phase] / 1e9 / steps))
                if phases.knows_blocking:
                    blocked_s = max(0.0, phases.blocked_ns[phase] / 1e9 / steps)
                    self._put(f"blocked_{phase}_s", blocked_s)
        return True

    def _stretch(self, began: Callable[[], None]) -> bool:
        """Skip some steps, then time steps; return True when there are enough."""
        self._steps += 1
        now = time.perf_counter()
        if self._steps <= _SKIPPED_STEPS:
            return False
        if self._steps == _SKIPPED_STEPS + 1:
            if self._memory.on_cuda:
                self._memory.synchronise()
            self._since_s, self._cpu_s = time.perf_counter(), time.process_time()
            began()
            return False
        spent = now - self._since_s
        steps = self._timed_steps
        return (spent >= STRETCH_S and steps >= _FEWEST_STEPS) or spent > _MOST_S

    @property
    def _timed_steps(self) -> int:
        return max(1, self._steps - _SKIPPED_STEPS - 1)

    def _take_rate(self) -> None:
        if self._memory.on_cuda:
            self._memory.synchronise()
        spent = time.perf_counter() - self._since_s
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self._phases is not None and not self._memory.on_cuda:
            self._put("replay_queue_frac", min(1.0, self._phases.queued_ns / 1e9 / spent))
        self._put("cpu_frac", (time.process_time() - self._cpu_s) / spent / cpus)
        if self._replay.served:
            self._put("replay_step_s", spent / self._timed_steps)

    def _count(self) -> bool:
        if self._counted is None:
            self._undo_phases()
            self._counted = Counted(self._torch)
            self._undo.then(self._counted.end)
            self._counted.begin()
            return False
        self._counted.end()
        return True

    def _undo_phases(self) -> None:
        """Remove the marks, as one step is counted without them."""
        if self._phases is not None:
            self._phases.close()

    def _keep_profile(self) -> bool:
        if self._profiler is None:
            assert self._folder is not None
            self._undo_phases()
            self._profiler = Profiler(self._torch, self._folder, on_cuda=self._memory.on_cuda)
            self._profiler.begin()
            self._since_s = time.perf_counter()
            return False
        self._steps += 1
        if self._steps < _PROFILED_STEPS and time.perf_counter() - self._since_s < _PROFILED_S:
            return False
        self._profiler.end()
        return True

    # End of the probe

    def _end(self) -> None:
        self._clear()
        self._machine()
        self._drain()
        self._put("threads", float(self._torch.get_num_threads()))
        self._put("compiled", float(self._root.compiles))
        self.finished = True

    def _clear(self) -> None:
        if self._phases is not None:
            self._phases.close()
        self._undo.undo_all()

    def _machine(self) -> None:
        counted = self._counted
        if counted is None or not counted.ops:
            return
        device = "cuda" if self._memory.on_cuda else "cpu"
        dtypes = sorted({op.dtype for op in counted.ops if op.flops > 0}) or ["float32"]
        best = machine(self._torch, device, dtypes)
        for name, value in figures_of(counted, best, has_others=has_others(self._torch)).items():
            self._put(name, value)

    def _drain(self) -> None:
        record, per_step = self._loader.train, self._per_step
        if record is None or not per_step:
            return
        iterator = record.iterator() if record.iterator is not None else None
        loader = record.loader()
        # Switches the hooks off.
        self._state.active = False
        stale = self._loader.queue_batches() if record.workers else 0
        found = drain(
            iterator,
            lambda: None if loader is None else iter(loader),
            stale=stale,
            seconds=DRAIN_S,
        )
        if found.batch_s is not None:
            self._put("drain_step_s", found.batch_s * per_step)
        if found.starts_s:
            self._put("epoch_start_s", sum(found.starts_s) / len(found.starts_s))

    def _put(self, name: str, value: float) -> None:
        self.figures[PREFIX + name] = value
