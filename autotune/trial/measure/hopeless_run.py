"""A few steps that are so slow that the run is not continued; see docs/decisions/0099."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.protocol.disturbed import touched
from autotune.trial.measure.short_run import FIRST_STEPS, SLOW_S, slow_steps

if TYPE_CHECKING:
    from autotune.model.trial import Fidelity
    from autotune.trial.measure.sources import Sources
    from autotune.trial.measure.timed_steps import TimedSteps

_HOPELESS_FRAC = 0.5
"""Share of `Fidelity.dominated_below` under which a few steps end a run."""


class HopelessRun:
    """Watches for steps far slower than a rate that is to be reached.

    Args:
        steps: The steps so far.
        fidelity: Gives that rate.
        sources: Gives the spans disturbed by other processes.
    """

    def __init__(self, steps: TimedSteps, fidelity: Fidelity, sources: Sources) -> None:
        self._steps = steps
        self._fidelity = fidelity
        self._sources = sources
        self._slow_for_s = 0.0

    def first(self) -> int | None:
        """Return the index of the first of the last steps if these are hopelessly slow; else None."""
        bar = _HOPELESS_FRAC * self._fidelity.dominated_below
        slow_s = [period_s for row, period_s in self._steps.last(1) if row[2] < bar * period_s]
        if not bar or not slow_s:
            self._slow_for_s = 0.0
            return None
        self._slow_for_s += slow_s[0]
        if self._slow_for_s < SLOW_S:
            return None
        # Checked once per second of slow steps, as a check reads all of them.
        self._slow_for_s = 0.0
        count = self._steps.count
        steps = self._steps.last(count - FIRST_STEPS)
        slow = slow_steps(steps, bar, long_s=self._fidelity.max_window_s)
        begins = [row[0] - int(period * 1e9) for row, period in steps]
        ends = [row[0] for row, _ in steps]
        if not slow or any(touched(begins[-slow:], ends[-slow:], self._sources.disturbed())):
            return None
        return count - slow
