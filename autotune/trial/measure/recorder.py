"""Recorder of a process: end of warm-up, length of the window, and end of the process.

It never raises into the script. A measured process ends directly at a step boundary: `Closed` and `Done` are
on disk before, and no handler, join or bare ``except`` of the script can intervene.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.model.measurement import LossPoint, Reading
from autotune.model.trial import AFTER_WINDOW_S
from autotune.protocol.disturbed import touched
from autotune.protocol.events import Broke, Closed, Done, Probed, ReadBack
from autotune.protocol.losses import broken_at
from autotune.protocol.marks import compiling_counts, evaluation_counts, trained_s
from autotune.statistics import intervals
from autotune.trial.hooks.step.losses import read_loss
from autotune.trial.measure.short_run import FIRST_STEPS, SLOW_S, first_timed, slow_steps
from autotune.trial.measure.window_blocks import Row as WindowRow
from autotune.trial.measure.window_blocks import WindowBlocks
from autotune.trial.runtime.state import ALLOCATOR, COMPILE, LOADER, NEW_SHAPE, ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.model.facts import RunFacts
    from autotune.model.trial import Segment
    from autotune.protocol.disturbed import Span
    from autotune.trial.actuators.withdrawal import Withdrawal
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.measure.rank_recorder import RankRecorder
    from autotune.trial.probe.bottleneck_probe import Probe
    from autotune.trial.probe.ceiling_probe import CeilingProbe
    from autotune.trial.probe.nsight_capture import Capture
    from autotune.trial.runtime.channel import Channel, Row
    from autotune.trial.runtime.memory import DeviceClock, DeviceMemory
    from autotune.trial.runtime.state import RuntimeState

SETTLE_STEPS = 3
REJECT_STEPS = 6
_GROWTH = 1.3
_MAX_RESTARTS = 3
_MAX_SHAPE_EVENTS = 4
_LONG_STEP, _LONG_STEP_NS = 3.0, 50_000_000
"""Ratio to the usual step, and least duration: longer steps are taken for unreported compilations."""
_LOSS_POINTS = 300
_FEWEST_STEPS = 6
_FEWEST_BLOCKS = 3
_KEPT_STEPS = 4096
"""Number of steps retained before a window, for a run that ends without one; about 1 MiB."""
_MOST_WARM_UP = 1.0
"""Longest wait for a loader's queue to settle, in longest windows; see docs/decisions/0099."""
_HOPELESS_FRAC = 0.5
"""Share of `Fidelity.dominated_below` under which a few steps end a run; see docs/decisions/0099."""
_DEADLINE_FRAC = 0.92
_LEVELS = 8
_MAX_GROWTHS = 3
_CLOCKS_AGREE_FRAC = 0.02
_BEYOND_DOUBT = 2.0
_LONGEST_ROUND = 1.5
"""Longest wait for the end of a round, in windows."""
_LEVEL_NS = 250_000_000
"""Interval between readings of the loader's queue in an open window: about one block."""
_CALM_NS = 500_000_000
"""Longest time until uniform steps are counted and their losses checked."""


class Recorder:
    """Records the window of one process.

    Args:
        state: Shared counters.
        channel: The event channel; None under `apply`.
        segment: Segment to measure; None under `apply`.
        memory: Allocator figures.
        readings: Returns the status of every knob now.
        facts: Returns the facts of the run; called outside timed windows only.
        settled: Called once when detection has settled, with the readings.
        settle_root: Ends the detection of roots.
    """

    def __init__(
        self,
        state: RuntimeState,
        channel: Channel | None,
        segment: Segment | None,
        memory: DeviceMemory,
        *,
        readings: Callable[[], tuple[Reading, ...]],
        facts: Callable[[], RunFacts],
        settled: Callable[[tuple[Reading, ...], bool], None],
        settle_root: Callable[[int], bool],
    ) -> None:
        self._state = state
        self._channel = channel
        self._segment = segment
        self._memory = memory
        self._readings = readings
        self._facts = facts
        self._on_settled = settled
        self.hows: dict[str, str] = {}
        """Knob -> delivery of its change, for the record of a rejection."""
        self.patched: set[str] = set()
        """Knobs applied in this process, not by an option or the environment."""
        self._settle_root = settle_root
        self.disturbed: Callable[[], Sequence[Span]] = tuple
        """Spans disturbed by other processes, as reported by the launcher."""
        self.stop_timing_imports: Callable[[], int] = int
        """Returns the nanoseconds of the script's imports; called once, after the first step."""
        self._import_ns = 0
        self.withdrawal: Withdrawal | None = None
        """Under `apply`: undoes knobs that the run contradicts."""
        self.unseen: Callable[[], str] = str
        """Returns why a run had no step, if known."""
        self.loader: Loader | None = None
        self.rank: RankRecorder | None = None
        """Logs every step of this rank in a distributed training."""
        self.probe: Probe | Capture | None = None
        """Runs after the window, if requested."""
        self.ceilings: CeilingProbe | None = None
        """Runs after the segment was sent, if requested."""
        self._sent_ns = 0
        """Time at which it was sent, in that case."""
        self._clock: DeviceClock | None = None
        self.on_host = True
        """Steps are timed by the host's clock only, as far as known."""
        self._clock_used = ""
        self._began_ns = time.perf_counter_ns()
        self._settled = False
        self._accepted = self._was_accepted = False
        self._latest: tuple[Reading, ...] = ()
        self._first_step_ns = 0
        self._losses: list[tuple[int, Any, int]] = []
        self._batches = 0
        self._event_ns = 0
        self._levels: deque[int] = deque(maxlen=_LEVELS)
        self._restarts = 0
        self._rounds = 0
        """Steps preceded by data gathering (rollouts)."""
        self._shape_events = 0
        self._periods: deque[int] = deque(maxlen=15)
        self._last_ns = 0
        self._begin_ns = 0
        self._rows: list[WindowRow] = []
        self._forming: WindowBlocks | None = None
        self._finished: list[tuple[WindowRow, float]] = []
        """Window steps whose CUDA events have completed, as (row, seconds)."""
        self._growths = 0
        self._next_check_ns = 0
        self._ready: deque[tuple[int, int]] = deque(maxlen=_KEPT_STEPS)
        """(time, ready batches in the loader's queue)."""
        self._next_level_ns = 0
        self._has_queue = False
        self._decided: tuple[str, int, int | None] | None = None
        self._past: deque[tuple[WindowRow, float]] = deque(maxlen=_KEPT_STEPS)
        """Steps before the window, with device periods in seconds; -1 on the host's clock."""
        self._origin_ns = 0
        """End of the first of them at which the device was idle; 0 without a device."""
        self._is_short = False
        """The window was made of the available steps, without the usual warm-up."""
        self._is_unsettled = False
        """The window opened before the loader's queue had settled."""
        self._may_be_hopeless = True
        """Whether a few slow steps can end the run; not if the device's clock misses them."""
        self._slow_for_s = 0.0
        self._opened_at_step = 0
        self._compile_before_ns = 0
        self._compile_until_ns = 0
        self._compile_over_ns: int | None = None
        """Compile time of the process when the run was long enough for its loss."""
        self._compiled: list[tuple[int, int]] = []
        """(end of a compiling step in the window, compile time of the process up to it), in ns."""

    @property
    def measures(self) -> bool:
        """False under `apply`, which records nothing."""
        return self._channel is not None

    @property
    def phase(self) -> str:
        """Return ``import``, ``setup``, ``warmup`` or ``window``."""
        if self._begin_ns:
            return "window"
        if self._state.steps:
            return "warmup"
        return "setup" if self.loader is not None else "import"

    def restart(self, *, forgets: bool = False) -> None:
        """Warm up again after a change that the window must not contain.

        Args:
            forgets: Drop the steps so far, which differ from those to be timed.
        """
        self._state.calm.leave()
        self._state.calm.fruitless = 0
        if self._decided is not None:
            return  # the window is over
        if self._begin_ns:
            self._past.extend(self._finished if self._clock is not None else ((r, -1.0) for r in self._rows))
        if forgets:
            self._past.clear()
            self._origin_ns = 0
        self._begin_ns = 0
        self._rows = []
        self._finished = []
        self._batches = 0
        self._last_ns = 0
        self._levels.clear()
        self._event_ns = time.perf_counter_ns()

    def step(self, row: Row, loss: Any, batches: int) -> None:
        """Record the end of a step."""
        if self.rank is not None:
            self.rank.step(row, loss)
        if self._begin_ns and row[0] < min(self._next_check_ns, self._next_level_ns) and self._is_usual(row):
            assert self._channel is not None
            self._channel.step(row)
            if loss is not None:
                self._losses.append((self._state.samples_total, loss, row[0]))
            self._rows.append((row[0], row[1], row[2], row[5], row[6]))
            return
        if self._channel is None or self._segment is None:
            if not self._accepted:
                self._settle_steps()
            return
        if not self._first_step_ns:
            self._first_step_ns = row[0]
            self._event_ns = row[0]
            self._import_ns = self.stop_timing_imports()
        self._emit(self._channel, row)
        self._rounds += bool(row[5] & ROLLOUT)
        if loss is not None:
            self._losses.append((self._state.samples_total, loss, row[0]))
        if self._decided is not None:
            self._wait_for_loss(row[0], row[5])
        elif self._begin_ns:
            self._in_window(row)
        else:
            self._warm_up(row, batches)

    def calm_until_ns(self, now: int) -> int:
        """Return when an open window is evaluated next; 0 if each step may require a decision."""
        may = self._begin_ns and self._decided is None and self._accepted and self.on_host and self.measures
        if not may or self.rank is not None:
            return 0
        look_ns = self._next_level_ns if self._has_queue else now + _CALM_NS
        return min(self._next_check_ns, look_ns)

    def calm_steps(self, rows: Sequence[Row], losses: Sequence[float], samples_total: int) -> None:
        """Record steps inside an open window, between two evaluations; like `step` for each.

        Args:
            rows: One or more such steps.
            losses: One per step.
            samples_total: Samples of the run at the end of the last step.
        """
        if not self._begin_ns or self._decided is not None:
            return
        assert self._channel is not None
        self._channel.steps(rows)
        self._rows += [(row[0], row[1], row[2], row[5], row[6]) for row in rows]
        seen = samples_total - sum(row[2] for row in rows)
        totals = itertools.accumulate((row[2] for row in rows), initial=seen)
        next(totals)
        self._losses += [(s, loss, row[0]) for s, loss, row in zip(totals, losses, rows, strict=True)]

    def _is_usual(self, row: Row) -> bool:
        """Return whether a step is inside an open window, between two evaluations, on the host's clock."""
        usual = self._decided is None and self._accepted and self.on_host
        return usual and not row[5] & (COMPILE | ROLLOUT)

    def _emit(self, channel: Channel, row: Row) -> None:
        if self._clock is None:
            self._clock = self._state.device_clock = self._memory.clock()
            self.on_host = self._clock is None
            if self._clock is not None:
                # Host and device agree about the end of this step, so a short run can be timed from it.
                self._memory.synchronise()
                self._past.clear()
                self._origin_ns = time.perf_counter_ns()
        if self._clock is None:
            channel.step(row)
            if not self._begin_ns and self._decided is None:
                self._past.append((_window_row(row), -1.0))
            return
        self._clock.mark(row)
        self._write_finished()

    def _write_finished(self) -> None:
        """Write the steps that the device has completed, which may be long after the host."""
        if self._clock is None or self._channel is None:
            return
        for row in self._clock.finished():
            self._channel.step(row)
            if self._decided is None:
                timed = self._finished if self._begin_ns else self._past
                timed.append((_window_row(row), row[3] / 1e3))

    # Detection

    def _settle_steps(self) -> bool:
        """Return whether detection has settled and no requested knob is known to have failed."""
        steps = self._state.steps
        if not self._settle_root(steps) or steps < SETTLE_STEPS:
            return False
        if not self._settled:
            self._settled = True
            self._on_settled((), False)
            if self._channel is not None:
                self._channel.send(ReadBack(facts=self._facts()))
            self.restart()
        if self._accepted:
            return True
        self._latest = readings = self._readings()
        late = steps >= REJECT_STEPS
        unfit = self._unapplied(readings)
        if not unfit:
            self._accepted = True
        elif late and any(r.status == "refused" for r in unfit):
            self.reject(readings)
        elif late and (self._channel is not None or steps >= 4 * REJECT_STEPS):
            self._accepted = True
            if self._channel is None:
                self.reject(readings)
        if self._accepted:
            if not self._was_accepted and not unfit:
                self.on_applied()
            self._was_accepted = True
            self._on_settled(readings, True)
        return self._accepted

    def reject(self, readings: Sequence[Reading]) -> None:
        """End the process because a requested knob is not in effect; withdraw it if it once was."""
        unfit = self._unapplied(readings)
        if self._channel is None and self._was_accepted:
            # A later model or optimizer: the training so far is not discarded.
            for reading in unfit:
                self._withdraw(reading.knob, reading.reason)
            return
        self._on_settled(tuple(readings), True)
        bad = unfit[0]
        if self._channel is None:
            self.end_untuned(bad.knob, f"{bad.knob}={bad.wanted} was not applied: {bad.reason}")
        self.broke(
            kind="config_rejected",
            message=bad.reason,
            knob=bad.knob,
            how=self._how(bad.knob),
            readings=tuple(readings),
        )

    def _unapplied(self, readings: Sequence[Reading]) -> list[Reading]:
        gone = self.withdrawal.gone if self.withdrawal is not None else ()
        return [r for r in readings if r.wanted is not None and r.status != "applied" and r.knob not in gone]

    def end_untuned(self, knob: str, why: str) -> NoReturn:
        """End a run under `apply` in its first steps, as it lacks requested settings."""
        self.on_untuned(knob, why)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        sys.stderr.write(f"autotune: {why}\n")
        sys.stderr.flush()
        os._exit(6)

    def _withdraw(self, knob: str, reason: str) -> None:
        if self.withdrawal is not None:
            self.withdrawal.withdraw(knob, reason)

    def reopen(self) -> None:
        """Read the knobs again for a new model, and measure again."""
        self._state.calm.leave()
        self._accepted = False
        if self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            self.restart()

    def lost(self, knob: str, reason: str) -> None:
        """End the trial because an accepted knob is no longer applied; under `apply`, withdraw it."""
        if not self._accepted or knob not in self.hows:
            return  # what was not accepted yet is judged by its reading
        if self._channel is None and self.withdrawal is None:
            # In a distributed trial, on a rank that does not measure: the trial ends with it.
            self.end_untuned(knob, reason)
        if self._channel is None:
            self._withdraw(knob, reason)
            return
        self.broke(
            kind="config_rejected",
            message=reason,
            knob=knob,
            how=self._how(knob),
            readings=self._safe_readings(),
        )

    def fault(self, hook: str) -> None:
        """End a run under `apply` after a hook failure, rather than continue partly tuned."""
        if self._channel is not None or not self.patched:
            return
        if hook in ("torch", "boundary") and not self._accepted:
            knob = next(iter(sorted(self.patched)))
            self.end_untuned(
                knob, f"{knob} was not applied: observing the script failed at {hook}; see faults.log."
            )
        if self._accepted:
            for bad in self._unfit(self._readings()):
                self._withdraw(bad.knob, bad.reason)

    def unapplied(self) -> str | None:
        """Return why requested changes were not applied under `apply`; None if they were."""
        if self._accepted or not self.patched:
            return None
        seen = {r.knob for r in self._latest if r.status == "applied"}
        bad = next((r for r in self._unfit(self._readings()) if r.knob not in seen), None)
        return None if bad is None else f"{bad.knob}={bad.wanted} was not applied: {bad.reason}"

    def _unfit(self, readings: Sequence[Reading]) -> list[Reading]:
        return [r for r in self._unapplied(readings) if r.knob in self.patched]

    def _how(self, knob: str) -> str:
        return self.hows.get(knob, "")

    # Warm-up

    def _warm_up(self, row: Row, batches: int) -> None:
        if row[5] & COMPILE:
            self._compiled.append((row[0], self._state.compile_ns))
        ready = self.loader.ready() if self.loader is not None else None
        if ready is not None:
            self._ready.append((row[0], ready))
        if not self._settle_steps() or self._ends_early(row):
            return
        news = bool(row[5] & NEW_SHAPE) or (self.loader is None and self._was_long(row[0]))
        if row[5] & COMPILE or (news and self._shape_events < _MAX_SHAPE_EVENTS):
            # Scripts with ever new shapes are warm after a number of them.
            self._shape_events += 0 if row[5] & COMPILE else 1
            self.restart()
            return
        if self._batches == 0 and self._event_ns > row[0]:
            self._event_ns = row[0]
        self._batches += max(batches, 0 if self.loader is not None and self.loader.train else 1)
        if ready is not None:
            self._levels.append(ready)
        if not self._may_open(row[0]):
            return
        if self._inside_round(row, self._event_ns):
            return
        if self._growths < _MAX_GROWTHS and self._memory.grew():
            # The device's allocator still requests memory, so its peak is yet to come.
            self._growths += 1
            return
        self._open(row[0])

    def _was_long(self, now: int) -> bool:
        """Return whether a step far longer than usual suggests a compilation, without PyTorch's reports."""
        period, self._last_ns = now - self._last_ns if self._last_ns else 0, now
        if not period:
            return False
        usual = statistics.median(self._periods) if len(self._periods) >= SETTLE_STEPS else math.inf
        self._periods.append(period)
        return period > max(_LONG_STEP * usual, _LONG_STEP_NS)

    def _may_open(self, now: int) -> bool:
        assert self._segment is not None
        fidelity = self._segment.fidelity
        spent_s = (now - self._event_ns) / 1e9
        need = self.loader.queue_batches() if self.loader is not None else 3
        self._is_unsettled = False
        if spent_s > _MOST_WARM_UP * fidelity.max_window_s:
            self._is_unsettled = self.loader is not None and bool(self.loader.observed("num_workers"))
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

    def _ends_early(self, row: Row) -> bool:
        """Return whether no further steps are timed; ends the process unless its loss is needed."""
        if not self._accepted:
            return False
        if self._past_deadline(row[0]):
            return self._decide_short("limit", fewest=_FEWEST_BLOCKS)
        return self._ends_hopeless()

    def _ends_hopeless(self) -> bool:
        """Return whether the last few steps are so slow that the run is not continued."""
        first = self._hopeless_from() if self._may_be_hopeless else None
        if first is None:
            return False
        self._may_be_hopeless = self._decide_short("dominated", fewest=1, first=first)
        return self._may_be_hopeless

    def _hopeless_from(self) -> int | None:
        """Return the index of the first of the last steps if these are hopelessly slow; else None."""
        assert self._segment is not None
        fidelity = self._segment.fidelity
        bar = _HOPELESS_FRAC * fidelity.dominated_below
        slow_s = [period_s for row, period_s in self._periods_s(1) if row[2] < bar * period_s]
        if not bar or not slow_s:
            self._slow_for_s = 0.0
            return None
        self._slow_for_s += slow_s[0]
        if self._slow_for_s < SLOW_S:
            return None
        # Checked once per second of slow steps, as a check reads all of them.
        self._slow_for_s = 0.0
        timed = self._finished if self._clock is not None else self._rows
        count = len(self._past) + len(timed)
        steps = self._periods_s(count - FIRST_STEPS)
        slow = slow_steps(steps, bar, long_s=fidelity.max_window_s)
        begins = [row[0] - int(period * 1e9) for row, period in steps]
        if not slow or any(touched(begins[-slow:], [row[0] for row, _ in steps[-slow:]], self.disturbed())):
            return None
        return count - slow

    def _periods_s(self, count: int) -> list[tuple[WindowRow, float]]:
        """Return the last `count` timed steps with their periods; fewer if there are fewer."""
        if count <= 0:
            return []
        last = slice(-count - 1, None)
        timed = self._finished[last] if self._clock is not None else [(r, -1.0) for r in self._rows[last]]
        more = itertools.islice(reversed(self._past), max(0, count + 1 - len(timed)))
        steps = [*reversed(list(more)), *timed]
        if self._clock is not None:
            return steps[-count:]
        return [(row, (row[0] - before[0]) / 1e9) for (before, _), (row, _) in itertools.pairwise(steps)]

    def _inside_round(self, row: Row, since_ns: int) -> bool:
        """Return whether more steps may follow on the data gathered last, before the next gathering.

        A window between two such moments has the training's ratio of gathering to steps; any other has a
        rollout too many or too few. Rounds far longer than a window are not waited for.
        """
        assert self._segment is not None
        if not self._rounds or row[5] & ROLLOUT:
            return False
        longest_ns = _LONGEST_ROUND * self._segment.fidelity.max_window_s * 1e9
        return row[0] - since_ns < longest_ns and not self._past_deadline(row[0])

    def _open(self, now: int) -> None:
        assert self._segment is not None
        if self._memory.on_cuda:
            self._memory.synchronise()
            self._write_finished()
            self._read_losses()
            self._end_if_broken(ended=False)
            self._memory.grew()
            self._memory.window_opens()
        self.window_opens()
        self._opened_at_step = self._state.steps
        self._compile_before_ns = self._state.compile_ns
        if self._clock is not None:
            self._clock.begin()
            now = time.perf_counter_ns()
        self._begin_ns = now
        self._next_check_ns = now + int(self._segment.fidelity.min_window_s * 1e9)
        self._has_queue = False
        self._note_level(now)

    # Window

    def _in_window(self, row: Row) -> None:
        assert self._segment is not None
        mark = row[5]
        if mark & COMPILE:
            self._compiled.append((row[0], self._state.compile_ns))
        self._rows.append(_window_row(row))
        if mark & COMPILE and self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            self.restart()
            return
        if not self._accepted:
            self._settle_steps()
        if row[0] >= self._next_level_ns:
            self._note_level(row[0])
        if self._accepted and self._ends_hopeless():
            return
        if row[0] < self._next_check_ns or self._inside_round(row, self._begin_ns):
            return
        fidelity = self._segment.fidelity
        # Excluded time does not shorten the window.
        apart_ns = self._apart_ns() + self._lost_ns()
        spent_s = (row[0] - self._begin_ns - apart_ns) / 1e9
        if self._memory.grew():
            self._state.mark |= ALLOCATOR
        full = spent_s >= fidelity.max_window_s and len(self._rows) >= _FEWEST_BLOCKS
        if full:
            self._decide("limit", row[0])
        elif self._past_deadline(row[0]):
            self._end_in_time(row[0])
        elif len(self._rows) >= fidelity.min_steps and (enough := self._enough()):
            self._decide(enough, row[0])
        else:
            step_ns = int(spent_s * 1e9) // max(1, len(self._rows))
            wanted = self._begin_ns + apart_ns + int(spent_s * _GROWTH * 1e9)
            limit = self._begin_ns + apart_ns + int(fidelity.max_window_s * 1e9)
            self._next_check_ns = max(row[0] + step_ns // 2, min(wanted, limit))

    def _note_level(self, now: int) -> None:
        """Record the level of the queue, since the level at the window's start does not hold after a cut."""
        ready = self.loader.ready() if self.loader is not None else None
        if ready is not None:
            self._ready.append((now, ready))
        self._has_queue = self._has_queue or ready is not None
        self._next_level_ns = now + _LEVEL_NS

    def _ready_at(self, begin_ns: int) -> int | None:
        """Return the batches ready when the steady part began; None if not read at about that time."""
        levels = (level for level in self._ready if level[0] >= self._begin_ns)
        near = min(levels, key=lambda level: abs(level[0] - begin_ns), default=None)
        return near[1] if near is not None and abs(near[0] - begin_ns) <= _LEVEL_NS else None

    def _apart_ns(self) -> int:
        """Return the time of the window so far that is not training."""
        if self._formed() is not None:
            return 0
        periods, trained = self._trained()
        return int(1e9 * sum(p - (t or 0.0) for p, t in zip(periods, trained, strict=True)))

    def _lost_ns(self) -> int:
        """Return the time of disturbed blocks, which extends the window, at most to twice its length."""
        assert self._segment is not None
        if not self.disturbed():
            return 0
        lost_s = math.fsum(block.seconds for block in self._blocks()[1] if not block.clean)
        return int(1e9 * min(lost_s, self._segment.fidelity.max_window_s))

    def _timed(self) -> tuple[list[WindowRow], list[float]]:
        """Return the steps of the window with their periods, by the device's clock if it has one.

        The last steps are missing on the device's clock while the host runs ahead of it.
        """
        if self._clock is not None and self._clock_used != "host":
            return [r for r, _ in self._finished], [period_s for _, period_s in self._finished]
        ends = [self._begin_ns, *(r[0] for r in self._rows)]
        if self._decided is not None and self._rows:
            # Work that the device had left when the host's last step ended.
            ends[-1] = max(ends[-1], self._decided[1])
        return self._rows, [(b - a) / 1e9 for a, b in itertools.pairwise(ends)]

    def _trained(self) -> tuple[list[float], tuple[float | None, ...]]:
        """Return seconds from step to step, and the training part of them, None for a step set aside."""
        rows, periods = self._timed()
        return periods, self._trained_s(rows, periods)

    def _trained_s(self, rows: Sequence[WindowRow], periods: list[float]) -> tuple[float | None, ...]:
        counts = self._evaluation_counts(rows)
        return trained_s([r[3] for r in rows], [r[4] for r in rows], periods, counts=counts)

    def _evaluation_counts(self, rows: Sequence[WindowRow]) -> bool:
        decided = None if self._segment is None else self._segment.fidelity.evaluation_counts
        return evaluation_counts([r[3] for r in rows]) if decided is None else decided

    def _blocks(self) -> tuple[tuple[int, ...], tuple[intervals.Block, ...]]:
        """Return the start of each block (ns), and the blocks, of the steps that are all training."""
        assert self._segment is not None
        if not self.disturbed() and (formed := self._formed()) is not None:
            return formed.of(self._rows)
        rows, periods = self._timed()
        trained = self._trained_s(rows, periods)
        begins = [self._begin_ns, *(r[0] for r in rows)][: len(rows)]
        dirty = touched(begins, [r[0] for r in rows], self.disturbed())
        kept = [
            (b, s, r, d) for b, s, r, d in zip(begins, trained, rows, dirty, strict=True) if s is not None
        ]
        # On a clock that stops outside of training.
        ends = list(itertools.accumulate(s for _, s, _, _ in kept))
        min_block_s = self._min_block_s()
        blocks = intervals.form_blocks(
            [0.0, *ends[:-1]],
            ends,
            [r[2] for _, _, r, _ in kept],
            [r[1] / 1e9 for _, _, r, _ in kept],
            [d for _, _, _, d in kept],
            min_block_s=min_block_s,
            min_steps=max(1, self._workers()),
        )
        firsts: list[int] = []
        index = 0
        for block in blocks:
            firsts.append(kept[index][0])
            index += block.steps
        return tuple(firsts), blocks

    def _min_block_s(self) -> float:
        assert self._segment is not None
        return min(0.25, self._segment.fidelity.min_window_s / 8)

    def _formed(self) -> WindowBlocks | None:
        """Return the open window on the host's clock, if all its steps are pure training."""
        if self._clock is not None or self._decided is not None:
            return None
        key = (self._begin_ns, self._min_block_s(), max(1, self._workers()))
        if self._forming is None or self._forming.key != key:
            self._forming = WindowBlocks(*key)
        return self._forming if self._forming.knows(self._rows) else None

    def _steady(self, blocks: Sequence[intervals.Block]) -> tuple[int, str]:
        """Return the index of the first steady block of a window, and whether it was steady."""
        if self._is_short:
            return 0, "steady"
        # Disturbed blocks are no evidence about warm-up.
        clean = [k for k, b in enumerate(blocks) if b.clean]
        kept = clean if len(clean) >= _FEWEST_BLOCKS else range(len(blocks))
        shown = [blocks[k] for k in kept]
        rates = [b.samples / b.seconds if b.samples else b.steps / b.seconds for b in shown if b.seconds > 0]
        cut, steady = intervals.steady_start(rates) if len(rates) == len(shown) else (0, "steady")
        cut = kept[cut] if cut else 0
        if cut and self._clock_used == "host":
            # Host and device clocks agree at the window's start only, so nothing is cut.
            return 0, "no_steady_state"
        return cut, steady

    def _workers(self) -> int:
        found = self.loader.observed("num_workers") if self.loader is not None else None
        return int(found) if found else 1

    def _enough(self) -> str | None:
        """Return why the window may end before its limit; None if it may not."""
        assert self._segment is not None
        fidelity = self._segment.fidelity
        _, whole = self._blocks()
        cut, steady = self._steady(whole)
        # Only the clean part of the steady blocks is reported: it must be long enough and precise.
        blocks = [block for block in whole[cut:] if block.clean]
        is_part = len(blocks) < len(whole)
        too_short = math.fsum(b.seconds for b in blocks) < fidelity.min_window_s if is_part else False
        if too_short or steady == "no_steady_state" or len(blocks) < _FEWEST_BLOCKS:
            return None
        # Samples are unknown: the interval of seconds per step is used, and no rate is compared.
        per_step = not any(block.samples for block in blocks)
        unit = "s" if per_step else "samples/s"
        least, most = intervals.doubted_start(whole, cut)
        is_tight = intervals.is_tight(blocks, fidelity.target_width, unit=unit, per_step=per_step)
        if is_tight and most - least <= fidelity.target_width:
            return "tight"
        estimate = intervals.window_estimate(blocks, unit=unit, per_step=per_step)
        # A prefilled queue overestimates the rate, which errs towards continuing.
        doubt = _BEYOND_DOUBT * (max(estimate.high, most * estimate.value) - estimate.value)
        return "dominated" if not per_step and estimate.value + doubt < fidelity.dominated_below else None

    def _end_in_time(self, now: int) -> None:
        """Measure what is possible when the process's time is over."""
        end = self._device_end(now, meanwhile=False)
        if self._has_rate():
            self._decide("limit", end)
        elif not self._decide_short("limit", fewest=_FEWEST_BLOCKS):
            self._report_no_window()
            self.done("deadline")

    def _has_rate(self) -> bool:
        """Return whether the window has enough steps for a rate with an interval."""
        return len(self._rows) >= _FEWEST_STEPS and len(self._blocks()[1]) >= _FEWEST_BLOCKS

    def _decide(self, ended: str, now: int) -> None:
        """End the window; the run continues only for the loss guard."""
        now = self._device_end(now, meanwhile=False)
        self._end_window(ended, now, self.loader.ready() if self.loader is not None else None)
        self._wait_for_loss(now)

    def _decide_short(
        self, ended: str, *, fewest: int, first: int | None = None, meanwhile: bool = False
    ) -> bool:
        """Form the window from past steps; return whether there are enough.

        On a device the window begins at a moment at which the device's and the host's clock agree.

        Args:
            ended: As in `Measurement.ended`.
            fewest: Least number of steps.
            first: Index of its first step, among all retained ones; None: all but the first ones, which
                include the start-up.
            meanwhile: The script has done other work since the last step.
        """
        if self._clock is not None:
            self._memory.synchronise()
            self._write_finished()
        timed = self._finished if self._clock is not None else [(r, -1.0) for r in self._rows]
        steps = [*self._past, *timed]
        rows = [row for row, _ in steps]
        begin = first_timed([row[3] for row in rows]) if first is None else first
        if len(rows) - begin < fewest or len(rows) < 2:
            return False
        end = rows[-1][0]
        is_whole = bool(self._origin_ns) and len(steps) < _KEPT_STEPS
        if self._clock is not None:
            end = max(end, self._clock.passed_ns() if meanwhile else time.perf_counter_ns())
            whole_s = (end - self._origin_ns) / 1e9
            steps_s = math.fsum(period_s for _, period_s in steps[1:])
            agree = is_whole and abs(steps_s - whole_s) <= _CLOCKS_AGREE_FRAC * whole_s
            if not agree and first is not None:
                return False
            self._clock_used = "device" if agree else "host"
            begin = begin if agree else 1
        begin_ns = self._origin_ns if begin == 1 and is_whole else rows[begin - 1][0]
        if first is None and self._comes_from_queue(rows, begin):
            # Every run of this kind includes the loader's only start.
            begin, begin_ns = 0, self._state.began_ns
            self._clock_used = "" if self._clock is None else "host"
        self._begin_ns, self._rows = begin_ns, rows[begin:]
        self._finished = steps[begin:] if self._clock is not None else []
        self._is_short, self._is_unsettled = True, False
        self._compile_before_ns = 0
        self._opened_at_step = self._state.steps - len(self._rows)
        self._end_window(ended, end, self._ready_at(rows[-1][0]))
        if not meanwhile:
            self._wait_for_loss(end)
        return True

    def _comes_from_queue(self, rows: Sequence[WindowRow], begin: int) -> bool:
        """Return whether workers could load all batches from `begin` on before the window (one-pass run)."""
        loader = self.loader
        if loader is None or not self._state.began_ns or self._state.steps != len(rows):
            return False
        if any(row[3] & LOADER for row in rows[begin:]) or any(row[3] & COMPILE for row in rows[:begin]):
            return False
        names = ("num_workers", "prefetch_factor", "batch_size")
        workers, ahead, batch = (loader.observed(name) for name in names)
        if not isinstance(workers, int) or not isinstance(ahead, int) or not isinstance(batch, int):
            return False
        samples = sum(row[2] for row in rows[begin:]) / self._state.ranks
        return 0 < samples <= workers * ahead * batch

    def _end_window(self, ended: str, end_ns: int, ready: int | None) -> None:
        self._decided = (ended, end_ns, ready)
        self._compile_until_ns = self._state.compile_ns
        self._compile_over_ns = None

    def _device_end(self, now: int, *, meanwhile: bool) -> int:
        """Return the completion of the last step on the host's clock; `now` without a device.

        The window lies between two moments at which device and host agree, so their clocks must agree over
        its length. They do not if training was launched on a stream without events.

        Args:
            now: When the host completed the last step.
            meanwhile: The script has done other work since.
        """
        if self._clock is None:
            return now
        self._memory.synchronise()
        self._write_finished()
        end = max(now, self._clock.passed_ns() if meanwhile else time.perf_counter_ns())
        whole_s = (end - self._begin_ns) / 1e9
        steps_s = math.fsum(period_s for _, period_s in self._finished)
        same = len(self._finished) == len(self._rows)
        agree = same and abs(steps_s - whole_s) <= _CLOCKS_AGREE_FRAC * whole_s
        self._clock_used = "device" if agree else "host"
        return end

    def _wait_for_loss(self, now: int, mark: int = 0) -> None:
        assert self._segment is not None
        wanted = self._segment.fidelity.loss_samples
        late = self._past_deadline(now)
        if not (self._state.samples_total >= wanted or not self._losses or late):
            return
        if self._compile_over_ns is None:
            # Recompilations caused by a probe are not the script's.
            self._compile_over_ns = self._state.compile_ns
        if self.ceilings is not None:
            self._count(self.ceilings, mark, late=late)
        elif self.probe is None or late or self.probe.step():
            self._close("measured")

    def _count(self, probe: CeilingProbe, mark: int, *, late: bool) -> None:
        """Have the probe count steps; the segment is sent before, as the probe may fail."""
        assert self._channel is not None
        assert self._decided is not None
        if not self._sent_ns:
            self._send_closed()
            self._sent_ns = time.perf_counter_ns()
        step_s = (self._decided[1] - self._begin_ns) / 1e9 / len(self._rows)
        if late or probe.step(step_s, mark):
            spent_s = (time.perf_counter_ns() - self._sent_ns) / 1e9
            self._channel.send(Probed(figures={**probe.figures, AFTER_WINDOW_S: spent_s}))
            self.done("measured")

    def _past_deadline(self, now: int) -> bool:
        assert self._segment is not None
        return (now - self._began_ns) / 1e9 > self._segment.fidelity.deadline_s * _DEADLINE_FRAC

    # Ends

    def _close(self, why: str) -> None:
        self._send_closed()
        self.done(why)

    def _send_closed(self) -> None:
        assert self._channel is not None
        assert self._segment is not None
        assert self._decided is not None
        ended, end_ns, ready_end = self._decided
        self._drain()
        trace, readings = self._trace(), self._readings()
        if any(r.wanted is not None and r.status != "applied" for r in readings):
            self.reject(readings)
        firsts, blocks = self._blocks()
        cut, steady = self._steady(blocks)
        begin_ns = firsts[cut] if cut < len(firsts) else self._begin_ns
        evaluates = self._evaluation_counts(self._timed()[0])
        self._channel.send(ReadBack(facts=self._facts()))
        self._channel.send(
            Closed(
                trial=self._segment.trial,
                begin_ns=begin_ns,
                end_ns=end_ns,
                ended=ended,
                steady=steady,
                first_step_ns=self._first_step_ns,
                compile_s=self._compile_ns(begin_ns) / 1e9,
                late_compile_s=self._late_compile_ns(begin_ns) / 1e9,
                loss=trace,
                readings=readings,
                allocator_peak_bytes=self._memory.peak_bytes(),
                ready_begin=self._ready_at(begin_ns),
                ready_end=ready_end,
                clock=self._clock_used,
                evaluation_counts=evaluates,
                skipped_scaler_steps=self.skipped_steps(),
                graph_breaks=self.graph_breaks(),
                short=self._is_short,
                unsettled=self._is_unsettled,
                sent_ns=time.perf_counter_ns(),
                import_ns=self._import_ns,
                counters={
                    "samples_total": float(self._state.samples_total),
                    "micro_steps": float(self._state.micro_steps),
                    "restarts": float(self._restarts),
                    "window_steps": float(len(self._rows)),
                    "opened_at_step": float(self._opened_at_step),
                    # Steps over which skips are counted; a run may continue after its window.
                    "guarded_steps": float(self._state.steps - self._opened_at_step),
                    "compile_events": float(self._state.compile_events + self._state.xla_events),
                    "faults": float(len(self._state.faults.off)),
                    **_doubt(blocks, cut),
                    **self._memory.counters(),
                    **(self.probe.figures if self.probe is not None else {}),
                },
            )
        )

    def _compile_ns(self, begin_ns: int) -> int:
        """Return the compile time outside of the throughput: before the window, and in steps set aside.

        Args:
            begin_ns: Start of the steady part of the window.
        """
        if not self._compiling_counts(begin_ns):
            return self._compile_until_ns
        before = [ns for end_ns, ns in self._compiled if end_ns <= begin_ns]
        return max([self._compile_before_ns, *before[-1:]])

    def _late_compile_ns(self, begin_ns: int) -> int:
        """Return the compile time after the window; 0 if its steps include and report their own."""
        if self._compiling_counts(begin_ns):
            return 0
        over_ns = self._state.compile_ns if self._compile_over_ns is None else self._compile_over_ns
        return over_ns - self._compile_until_ns

    def _compiling_counts(self, begin_ns: int) -> bool:
        return compiling_counts([mark for end_ns, _, _, mark, _ in self._rows if end_ns > begin_ns])

    def on_applied(self) -> None:
        """Handle the first reading of every requested knob as applied."""

    def on_untuned(self, knob: str, why: str) -> None:
        """Handle the failure of a knob, before an unmeasured process ends; can be replaced."""

    def window_opens(self) -> None:
        """Handle the opening of a window; replaced if torch is loaded."""

    def skipped_steps(self) -> int:
        """Return the steps that a gradient scaler skipped; replaced if torch is loaded."""
        return 0

    def graph_breaks(self) -> int:
        """Return the graph breaks of dynamo; replaced if torch is loaded."""
        return 0

    def _drain(self) -> None:
        if self._clock is not None:
            self._memory.synchronise()
            self._write_finished()
        self._read_losses()

    def _read_losses(self) -> None:
        """Read pending losses; unreadable ones are left out."""
        read = [(s, read_loss(v), t) for s, v, t in self._losses]
        self._losses = [(s, loss, t) for s, loss, t in read if loss is not None]

    def _trace(self) -> tuple[LossPoint, ...]:
        """Return the loss from the first step on, in bins of equal step counts; ends a diverged trial.

        A single non-finite loss is left out, as the run continued after it.
        """
        points = self._losses
        self._end_if_broken()
        begin = self._state.began_ns or self._first_step_ns
        size = max(1, -(-len(points) // _LOSS_POINTS))
        thin: list[LossPoint] = []
        for index in range(0, len(points), size):
            part = points[index : index + size]
            known = [p[1] for p in part if math.isfinite(p[1])]
            if not known:
                continue
            loss = math.fsum(known) / len(known)
            thin.append(LossPoint(samples=part[-1][0], loss=loss, t_s=(part[-1][2] - begin) / 1e9))
        return tuple(thin)

    def _end_if_broken(self, *, ended: bool = True) -> None:
        """End the process if the losses read so far have diverged."""
        at = broken_at([p[1] for p in self._losses], ended=ended)
        if at is not None:
            self.diverged(self._losses[at][1])

    def script_ended(self, code: int, why: str) -> None:
        """Handle the script's end before the window's: close the available part, or only report the end."""
        if self._channel is None:
            return
        self._state.calm.leave()
        if self._sent_ns:
            self.done(why, code)
        if code == 0 and not self._state.steps and (reason := self.unseen()):
            self.broke(kind="no_metric", message=reason)
        if code == 0 and self._decided is None and len(self._rows) >= _FEWEST_STEPS:
            end = self._device_end(self._rows[-1][0], meanwhile=True)
            if self._has_rate():
                self._end_window("script_end", end, None)
        if code == 0 and self._decided is None:
            self._decide_short("script_end", fewest=1, meanwhile=True)
        if code == 0 and self._decided is not None:
            self._send_closed()
        elif code == 0 and self._state.steps:
            self._report_no_window()
        self.done(why, code)

    def _report_no_window(self) -> None:
        """Report the facts of a run without a rate.

        Ends the process if its loss diverged, or a requested knob was refused.
        """
        assert self._channel is not None
        self._drain()
        self._end_if_broken()
        readings = self._readings()
        if any(r.status == "refused" for r in readings if r.wanted is not None):
            self.reject(readings)
        self._channel.send(ReadBack(facts=self._facts()))

    def diverged(self, loss: float) -> None:
        """End the process because the loss is not finite."""
        if self._channel is None:
            return
        self.broke(kind="diverged", message=f"the loss became {loss}", readings=self._safe_readings())

    def _safe_readings(self) -> tuple[Reading, ...]:
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
                phase=self.phase,
                steps=self._state.steps,
                knob=knob,
                how=how,
                peak_bytes=peak,
                readings=readings,
            )
        )
        self._leave(code)

    def done(self, why: str, code: int = 0) -> NoReturn:
        """Write `Done` and end the process."""
        assert self._channel is not None
        self._channel.send(Done(why=why, steps=self._state.steps, code=code))
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        assert self._channel is not None
        self._channel.close()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _window_row(row: Row) -> WindowRow:
    return (row[0], row[1], row[2], row[5], row[6])


def _doubt(blocks: Sequence[intervals.Block], cut: int) -> dict[str, float]:
    """Return the range of the interval if the cut steps were no start-up; empty if they certainly were."""
    low, high = intervals.doubted_start(blocks, cut)
    if (low, high) == (1.0, 1.0) or not math.isfinite(high):
        return {}
    return {"doubt_low": low, "doubt_high": high}
