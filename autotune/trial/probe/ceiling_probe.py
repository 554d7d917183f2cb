"""Counts a few steps once the segment is measured and sent, for the ceilings of the script (decision 103).

The process ends right after, so nothing here has to leave the script as it was. Nothing of it is in
place while the window runs.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any

from autotune.answer.bottleneck import PREFIX
from autotune.model.roofline import remainder
from autotune.trial.probe.operation_counts import Counted, figures_of, has_others, machine, with_reduced
from autotune.trial.runtime.state import COMPILE, EVALUATION, NEW_SHAPE, ROLLOUT
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.runtime.memory import DeviceMemory
    from autotune.trial.runtime.state import RuntimeState

MOST_S = 1.6
"""Seconds for which steps are counted; about another half goes into the peaks of the machine."""
_MOST_STEPS, _FEWEST_STEPS = 3, 2
"""Counted steps: with two of them it shows whether steps differ in their work."""
_TRY_S = 0.05
_UNUSUAL = EVALUATION | COMPILE | NEW_SHAPE | ROLLOUT
_DEVICES = {"cpu", "cuda"}


class CeilingProbe:
    """Counts steps after the window, one call of `step` at the end of each.

    A fault ends it without figures and has no other effect: the segment was sent before.

    Args:
        state: Shared counters.
        torch: The module.
        root, memory: The hooks of this process.
    """

    def __init__(self, state: RuntimeState, torch: Any, root: TrainedModules, memory: DeviceMemory) -> None:
        self._state = state
        self._torch = torch
        self._root = root
        self._memory = memory
        self._undo = Undo()
        self._begun_s = 0.0
        self._wanted = 0
        self._counts: list[Counted] = []
        self.figures: dict[str, float] = {}
        """Results, by names as in `Measurement.extra`."""

    def step(self, step_s: float, mark: int) -> bool:
        """Handle the end of a step; return True when the probe is complete.

        Args:
            step_s: Measured duration of a step.
            mark: Mark of the step that ended.
        """
        try:
            is_over = self._go_on(step_s, mark)
        except Exception as error:
            self._state.faults.note("ceilings", error)
            is_over = True
        if is_over:
            self._undo.undo_all()
        return is_over

    def _go_on(self, step_s: float, mark: int) -> bool:
        if not self._counts:
            self._begun_s = time.perf_counter()
            self._wanted = min(_MOST_STEPS, int(MOST_S / max(step_s, 1e-9)))
            if self._wanted < _FEWEST_STEPS or not self._may_count():
                return True
            self._leave_fetches_out()
            # Losses are not read meanwhile, which would count as reads of the script.
            self._undo.assign(self._state, "keeps_losses", value=False)
            self._undo.then(self._stop)
        else:
            self._stop()
            if mark & _UNUSUAL:
                return True
            late = time.perf_counter() - self._begun_s > MOST_S
            if len(self._counts) >= (_FEWEST_STEPS if late else self._wanted):
                self._undo.undo_all()
                self._conclude()
                return True
        self._counts.append(Counted(self._torch))
        self._counts[-1].begin()
        return False

    def _may_count(self) -> bool:
        """Return whether one process on one device trains, and runs its operations one by one."""
        compiled = self._root.compiles or self._state.compile_ns or self._state.compile_events
        return not compiled and not has_others(self._torch) and len(self._memory.devices()) <= 1

    def _stop(self) -> None:
        if self._counts:
            self._counts[-1].end()

    def _leave_fetches_out(self) -> None:
        """Data may be prepared by operations as well, and is no part of computing."""
        base = sys.modules[self._torch.utils.data.DataLoader.__module__].__dict__["_BaseDataLoaderIter"]
        before: Callable[[Any], Any] = base.__next__

        @functools.wraps(before)
        def fetched(this: Any) -> Any:
            if not self._counts or not self._state.here():
                return before(this)
            with self._counts[-1].fetching():
                return before(this)

        self._undo.assign(base, "__next__", fetched)

    def _conclude(self) -> None:
        ops = [op for counted in self._counts for op in counted.ops]
        if not ops or any(op.device not in _DEVICES for op in ops):
            return
        device = max((op.device for op in ops), key=lambda d: d != "cpu")
        dtypes = sorted({op.dtype for op in ops if op.flops > 0}) or ["float32"]
        best = machine(self._torch, device, dtypes, try_s=_TRY_S)
        reduced = with_reduced(self._torch, device, best, try_s=_TRY_S)
        left = remainder([counted.step() for counted in self._counts], reduced, device=device)
        if left is None:
            return
        seen = figures_of(self._counts[-1], best, has_others=False)
        self.figures = {PREFIX + name: value for name, value in seen.items()} | left.figures()
