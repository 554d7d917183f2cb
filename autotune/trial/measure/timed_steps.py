"""Timed steps of a measured run, before and in its window, by the host's or the device's clock."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from autotune.trial.measure.short_run import first_timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.trial.measure.window_blocks import Row as WindowRow
    from autotune.trial.runtime.channel import Channel, Row
    from autotune.trial.runtime.memory import DeviceClock, DeviceMemory
    from autotune.trial.runtime.state import RuntimeState

_KEPT_STEPS = 4096
"""Number of steps retained before a window, for a run that ends without one; about 1 MiB."""
_CLOCKS_AGREE_FRAC = 0.02


class WindowEnd(NamedTuple):
    """End of a window.

    `why` is as in `Measurement.ended`; `ready` counts the batches then ready in the loader's queue, if known.
    """

    why: str
    end_ns: int
    ready: int | None


class TimedSteps:
    """The steps of one process, and the bounds of its window.

    Args:
        state: Shared counters.
        channel: Receives each step once its duration is known, which may be long after the host.
        memory: Makes the device's clock.
    """

    def __init__(self, state: RuntimeState, channel: Channel, memory: DeviceMemory) -> None:
        self._state = state
        self._channel = channel
        self._memory = memory
        self.clock: DeviceClock | None = None
        self.clock_used = ""
        """``device`` or ``host``, once the window of a run on a device has ended."""
        self.begin_ns = 0
        """Start of the window; 0 before it."""
        self.end: WindowEnd | None = None
        self.rows: list[WindowRow] = []
        """Steps of the window."""
        self._finished: list[tuple[WindowRow, float]] = []
        """Steps of the window whose CUDA events have completed, as (row, seconds)."""
        self._past: deque[tuple[WindowRow, float]] = deque(maxlen=_KEPT_STEPS)
        """Steps before the window, with device periods in seconds; -1 on the host's clock."""
        self._origin_ns = 0
        """End of the first of them at which the device was idle; 0 without a device."""

    @property
    def is_open(self) -> bool:
        """Whether the window has begun and not ended."""
        return self.begin_ns > 0 and self.end is None

    @property
    def count(self) -> int:
        """Number of timed steps that are retained."""
        return len(self._past) + len(self._finished if self.clock is not None else self.rows)

    def add(self, row: Row) -> None:
        """Pass a step on; retain it if the window has not begun."""
        if self.clock is None and (clock := self._memory.clock()) is not None:
            self.clock = self._state.device_clock = clock
            # Host and device agree about the end of this step, so a short run can be timed from it.
            self._memory.synchronise()
            self._past.clear()
            self._origin_ns = time.perf_counter_ns()
        if self.clock is None:
            self._channel.step(row)
            if not self.begin_ns and self.end is None:
                self._past.append((window_row(row), -1.0))
            return
        self.clock.mark(row)
        self._write_finished()

    def forget_window(self, *, and_past: bool) -> None:
        """Close the window as if it had not begun.

        Args:
            and_past: Drop all steps so far, which differ from those to be timed.
        """
        if self.begin_ns:
            self._past.extend(self._window())
        if and_past:
            self._past.clear()
            self._origin_ns = 0
        self.begin_ns = 0
        self.rows = []
        self._finished = []

    def open(self, now: int) -> None:
        """Begin the window, at `now` or later."""
        if self.clock is not None:
            self.clock.begin()
            now = time.perf_counter_ns()
        self.begin_ns = now

    def wait_for_device(self) -> None:
        """Wait until the device has completed all steps, and pass them on."""
        if self.clock is not None:
            self._memory.synchronise()
            self._write_finished()

    def device_end(self, now: int, *, meanwhile: bool) -> int:
        """Return the completion of the last step on the host's clock; `now` without a device.

        The window lies between two moments at which device and host agree, so their clocks must agree over
        its length. They do not if training was launched on a stream without events.

        Args:
            now: When the host completed the last step.
            meanwhile: The script has done other work since.
        """
        if self.clock is None:
            return now
        self.wait_for_device()
        end = max(now, self.clock.passed_ns() if meanwhile else time.perf_counter_ns())
        whole_s = (end - self.begin_ns) / 1e9
        steps_s = math.fsum(period_s for _, period_s in self._finished)
        same = len(self._finished) == len(self.rows)
        agree = same and abs(steps_s - whole_s) <= _CLOCKS_AGREE_FRAC * whole_s
        self.clock_used = "device" if agree else "host"
        return end

    def form_from_past(
        self,
        *,
        fewest: int,
        first: int | None,
        meanwhile: bool,
        is_from_queue: Callable[[Sequence[WindowRow], int], bool],
    ) -> int | None:
        """Form the window of retained steps; return its end in ns, or None if there are too few.

        On a device the window begins at a moment at which the device's and the host's clock agree.

        Args:
            fewest: Least number of steps.
            first: Index of its first step, among all retained ones; None: all but the first ones, which
                include the start-up.
            meanwhile: The script has done other work since the last step.
            is_from_queue: Returns whether the batches of the steps from that index on were loaded before.
        """
        self.wait_for_device()
        steps = [*self._past, *self._window()]
        rows = [row for row, _ in steps]
        begin = first_timed([row[3] for row in rows]) if first is None else first
        if len(rows) - begin < fewest or len(rows) < 2:
            return None
        end = rows[-1][0]
        is_whole = bool(self._origin_ns) and len(steps) < _KEPT_STEPS
        if self.clock is not None:
            end = max(end, self.clock.passed_ns() if meanwhile else time.perf_counter_ns())
            whole_s = (end - self._origin_ns) / 1e9
            steps_s = math.fsum(period_s for _, period_s in steps[1:])
            agree = is_whole and abs(steps_s - whole_s) <= _CLOCKS_AGREE_FRAC * whole_s
            if not agree and first is not None:
                return None
            self.clock_used = "device" if agree else "host"
            begin = begin if agree else 1
        begin_ns = self._origin_ns if begin == 1 and is_whole else rows[begin - 1][0]
        if first is None and is_from_queue(rows, begin):
            # Every run of this kind includes the loader's only start.
            begin, begin_ns = 0, self._state.began_ns
            self.clock_used = "" if self.clock is None else "host"
        self.begin_ns, self.rows = begin_ns, rows[begin:]
        self._finished = steps[begin:] if self.clock is not None else []
        return end

    def timed(self) -> tuple[list[WindowRow], list[float]]:
        """Return the steps of the window with their periods in seconds, by the device's clock if it has one.

        The last steps are missing on the device's clock while the host runs ahead of it.
        """
        if self.clock is not None and self.clock_used != "host":
            return [row for row, _ in self._finished], [period_s for _, period_s in self._finished]
        ends = [self.begin_ns, *(row[0] for row in self.rows)]
        if self.end is not None and self.rows:
            # Work that the device had left when the host's last step ended.
            ends[-1] = max(ends[-1], self.end.end_ns)
        return self.rows, [(b - a) / 1e9 for a, b in itertools.pairwise(ends)]

    def last(self, count: int) -> list[tuple[WindowRow, float]]:
        """Return the last `count` timed steps with their periods in seconds; fewer if there are fewer."""
        if count <= 0:
            return []
        timed = self._window(count + 1)
        more = itertools.islice(reversed(self._past), max(0, count + 1 - len(timed)))
        steps = [*reversed(list(more)), *timed]
        if self.clock is not None:
            return steps[-count:]
        return [(row, (row[0] - before[0]) / 1e9) for (before, _), (row, _) in itertools.pairwise(steps)]

    def _window(self, last: int = 0) -> list[tuple[WindowRow, float]]:
        """Return the timed steps of the window, or the last of them; periods are -1 on the host's clock."""
        if self.clock is not None:
            return self._finished[-last:]
        return [(row, -1.0) for row in self.rows[-last:]]

    def _write_finished(self) -> None:
        """Pass on the steps that the device has completed."""
        assert self.clock is not None
        for row in self.clock.finished():
            self._channel.step(row)
            if self.end is None:
                timed = self._finished if self.begin_ns else self._past
                timed.append((window_row(row), row[3] / 1e3))


def window_row(row: Row) -> WindowRow:
    """Return what a window keeps of a step."""
    return (row[0], row[1], row[2], row[5], row[6])
