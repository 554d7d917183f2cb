"""Warm-up of a measured run: which steps start it again, and when a window may open."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from autotune.trial.runtime.state import COMPILE, NEW_SHAPE

if TYPE_CHECKING:
    from autotune.model.trial import Fidelity
    from autotune.trial.measure.sources import Sources
    from autotune.trial.runtime.channel import Row

_MOST_SHAPE_EVENTS = 4
_FEWEST_PERIODS = 3
_LONG_STEP, _LONG_STEP_NS = 3.0, 50_000_000
"""Ratio to the usual step, and least duration: longer steps are taken for unreported compilations."""
_LONGEST = 1.0
"""Longest wait for a loader's queue to settle, in longest windows; see docs/decisions/0099."""
_LEVELS = 8


class WarmUp:
    """Steps since the last event after which steps are not yet representative.

    Args:
        fidelity: Limits of the window.
        sources: Gives the loader.
    """

    def __init__(self, fidelity: Fidelity, sources: Sources) -> None:
        self._fidelity = fidelity
        self._sources = sources
        self.event_ns = 0
        """End of the step after which steps count; set by the first step."""
        self.is_unsettled = False
        """The loader's queue had not settled when the window could wait no longer."""
        self._batches = 0
        self._levels: deque[int] = deque(maxlen=_LEVELS)
        self._shape_events = 0
        self._periods: deque[int] = deque(maxlen=15)
        self._last_ns = 0

    def restart(self) -> None:
        """Warm up again."""
        self._batches = 0
        self._last_ns = 0
        self._levels.clear()
        self.event_ns = time.perf_counter_ns()

    def starts_again(self, row: Row) -> bool:
        """Return whether a step compiled, or was the first of its shape."""
        news = bool(row[5] & NEW_SHAPE) or (self._sources.loader is None and self._was_long(row[0]))
        if row[5] & COMPILE:
            return True
        # Scripts with ever new shapes are warm after a number of them.
        if not news or self._shape_events >= _MOST_SHAPE_EVENTS:
            return False
        self._shape_events += 1
        return True

    def add(self, row: Row, batches: int, ready: int | None) -> None:
        """Count a step.

        Args:
            row: The step.
            batches: Batches that it took.
            ready: Batches ready in the loader's queue; None if unknown.
        """
        if self._batches == 0 and self.event_ns > row[0]:
            self.event_ns = row[0]
        loader = self._sources.loader
        self._batches += max(batches, 0 if loader is not None and loader.train else 1)
        if ready is not None:
            self._levels.append(ready)

    def may_open(self, now: int) -> bool:
        """Return whether a window may open, as far as the loader is concerned."""
        fidelity, loader = self._fidelity, self._sources.loader
        spent_s = (now - self.event_ns) / 1e9
        need = loader.queue_batches() if loader is not None else 3
        self.is_unsettled = False
        if spent_s > _LONGEST * fidelity.max_window_s:
            self.is_unsettled = loader is not None and bool(loader.observed("num_workers"))
            return True
        if self._batches < need or spent_s < min(0.5, 0.2 * fidelity.min_window_s):
            return False
        if self._batches > 10 * need and spent_s > 0.25 * fidelity.max_window_s:
            return True
        levels = list(self._levels)
        if len(levels) < _LEVELS:
            return not levels
        half = _LEVELS // 2
        late = sum(levels[half:]) / half
        return late <= 1.0 or late >= sum(levels[:half]) / half - 0.5

    def _was_long(self, now: int) -> bool:
        """Return whether a step far longer than usual suggests a compilation, without PyTorch's reports."""
        period, self._last_ns = now - self._last_ns if self._last_ns else 0, now
        if not period:
            return False
        usual = statistics.median(self._periods) if len(self._periods) >= _FEWEST_PERIODS else math.inf
        self._periods.append(period)
        return period > max(_LONG_STEP * usual, _LONG_STEP_NS)
