"""When warm-up ends, when the window is long enough, and the end of the process.

Nothing here raises into the script. A measured process ends at once from the boundary: `Closed` and
`Done` are on disk before, and no handler, join or bare ``except`` of the script can get in between.
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
"""Times the usual step, and at least so long: taken for a compilation of which nobody tells."""
_LOSS_POINTS = 300
_FEWEST_STEPS = 6
_FEWEST_BLOCKS = 3
_KEPT_STEPS = 4096
"""Steps before a window that are kept, for a run that ends without one; about 1 MiB."""
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
"""Windows for which the end of a round is waited for."""
_LEVEL_NS = 250_000_000
"""From one look at the queue of the loader to the next, while a window is open: about a block."""
_CALM_NS = 500_000_000
"""Steps that are alike are counted, and their losses looked at, after so long at the latest."""


class Recorder:
    """Records the window of one process.

    Args:
        state: Shared counters.
        channel: The event file; None under `apply`.
        segment: What to measure; None under `apply`.
        memory: Allocator figures.
        readings: Computes the status of every knob now.
        facts: Computes what the run showed; called outside timed windows only.
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
        """Knob -> how its change travels, for the record of a rejection."""
        self.patched: set[str] = set()
        """Knobs that are carried out in this process, not by an option or the environment."""
        self._settle_root = settle_root
        self.disturbed: Callable[[], Sequence[Span]] = tuple
        """When others spoilt the timing, as far as the launcher has told."""
        self.stop_timing_imports: Callable[[], int] = int
        """Nanoseconds that the script's imports took; called once, when the first step has ended."""
        self._import_ns = 0
        self.withdrawal: Withdrawal | None = None
        """Under `apply`: undoes what the run contradicts."""
        self.unseen: Callable[[], str] = str
        """Why a run had no step, as far as that is known."""
        self.loader: Loader | None = None
        self.rank: RankRecorder | None = None
        """Logs every step of this rank, where several processes train together."""
        self.probe: Probe | Capture | None = None
        """Goes on after the window, where that was asked for."""
        self.ceilings: CeilingProbe | None = None
        """Goes on once the segment is sent, where that was asked for."""
        self._sent_ns = 0
        """When it was sent, in that case."""
        self._clock: DeviceClock | None = None
        self.on_host = True
        """Steps are timed by the host alone, as far as is known."""
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
        """Steps before which something was gathered to train on."""
        self._shape_events = 0
        self._periods: deque[int] = deque(maxlen=15)
        self._last_ns = 0
        self._begin_ns = 0
        self._rows: list[WindowRow] = []
        self._forming: WindowBlocks | None = None
        self._finished: list[tuple[WindowRow, float]] = []
        """Rows of the window that the device has come by, with their periods in seconds."""
        self._growths = 0
        self._next_check_ns = 0
        self._ready: deque[tuple[int, int]] = deque(maxlen=_KEPT_STEPS)
        """When, and how many batches lay ready in the loader's queue."""
        self._next_level_ns = 0
        self._has_queue = False
        self._decided: tuple[str, int, int | None] | None = None
        self._past: deque[tuple[WindowRow, float]] = deque(maxlen=_KEPT_STEPS)
        """Steps before the window, with the device's periods in seconds; -1 by the host's clock."""
        self._origin_ns = 0
        """End of the first of them where the device had done all of it; 0 where no device trains."""
        self._is_short = False
        """The window is made of the steps that there were, without the usual warm-up."""
        self._is_unsettled = False
        """The window opened before the level of the loader's queue had settled."""
        self._may_be_hopeless = True
        """Whether a few slow steps can end the run; not where the device's clock does not see them."""
        self._slow_for_s = 0.0
        self._opened_at_step = 0
        self._compile_before_ns = 0
        self._compile_until_ns = 0
        self._compile_over_ns: int | None = None
        """Compiling of the process when the run had gone on long enough for its loss."""
        self._compiled: list[tuple[int, int]] = []
        """Ends of steps in the window that compiled, and the compiling of the process up to them (ns)."""

    @property
    def measures(self) -> bool:
        """False under `apply`: nothing is recorded."""
        return self._channel is not None

    @property
    def phase(self) -> str:
        """``import``, ``setup``, ``warmup`` or ``window``."""
        if self._begin_ns:
            return "window"
        if self._state.steps:
            return "warmup"
        return "setup" if self.loader is not None else "import"

    def restart(self, *, forgets: bool = False) -> None:
        """Warm up again: something changed that the window must not contain.

        Args:
            forgets: The steps so far were not those that are to be timed.
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
        """One step has ended."""
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
        """When an open window is looked at next; 0 where each step may be one to decide at."""
        may = self._begin_ns and self._decided is None and self._accepted and self.on_host and self.measures
        if not may or self.rank is not None:
            return 0
        look_ns = self._next_level_ns if self._has_queue else now + _CALM_NS
        return min(self._next_check_ns, look_ns)

    def calm_steps(self, rows: Sequence[Row], losses: Sequence[float], samples_total: int) -> None:
        """Steps inside of an open window, before it is looked at again: `step` of each.

        Args:
            rows: Of one or more such steps.
            losses: One each.
            samples_total: Of the run, when the last of them had ended.
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
        """A step inside of an open window, before it is looked at again, on the host's clock."""
        usual = self._decided is None and self._accepted and self.on_host
        return usual and not row[5] & (COMPILE | ROLLOUT)

    def _emit(self, channel: Channel, row: Row) -> None:
        if self._clock is None:
            self._clock = self._state.device_clock = self._memory.clock()
            self.on_host = self._clock is None
            if self._clock is not None:
                # Host and device agree about the end of this step, from which a short run is timed.
                self._memory.synchronise()
                self._past.clear()
                self._origin_ns = time.perf_counter_ns()
        if self._clock is None:
            channel.step(row)
            if not self._begin_ns and self._decided is None:
                self._past.append((_window_row(row), -1.0))
            return
        self._clock.mark(row)
        self._pass_on()

    def _pass_on(self) -> None:
        """Write the steps that the device has come by, which may be long after the host."""
        if self._clock is None or self._channel is None:
            return
        for row in self._clock.finished():
            self._channel.step(row)
            if self._decided is None:
                timed = self._finished if self._begin_ns else self._past
                timed.append((_window_row(row), row[3] / 1e3))

    # Detection

    def _settle_steps(self) -> bool:
        """Whether detection has settled and nothing speaks against the requested knobs so far."""
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
        """A knob that was asked for is not in effect: end the process, or withdraw the knob where it was."""
        unfit = self._unapplied(readings)
        if self._channel is None and self._was_accepted:
            # A later model or optimizer: what was trained so far is not given away.
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
        """Under `apply`, in the first steps: better no training than one that is not what was asked for."""
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
        """A new model has come: the knobs are read again with it, and measuring begins again."""
        self._state.calm.leave()
        self._accepted = False
        if self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            self.restart()

    def lost(self, knob: str, reason: str) -> None:
        """A knob that was accepted is not carried out any more: end the trial; under `apply`, withdraw it."""
        if not self._accepted or knob not in self.hows:
            return  # what was not accepted yet is judged by its reading
        if self._channel is None and self.withdrawal is None:
            # Of several processes of a trial one that does not measure: the trial ends with it.
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
        """Under `apply`: a hook failed; nothing goes on half tuned."""
        if self._channel is not None or not self.patched:
            return
        if hook in ("torch", "boundary") and not self._accepted:
            knob = next(iter(sorted(self.patched)))
            self.end_untuned(
                knob, f"{knob} was not applied: watching the script failed at {hook}; see faults.log."
            )
        if self._accepted:
            for bad in self._unfit(self._readings()):
                self._withdraw(bad.knob, bad.reason)

    def unapplied(self) -> str | None:
        """After a run under `apply`: why what was asked for did not happen; None where it did."""
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
            # Scripts whose shapes never settle are warm once they have seen some.
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
            # The device's allocator still asks for memory; its peak is yet to come.
            self._growths += 1
            return
        self._open(row[0])

    def _was_long(self, now: int) -> bool:
        """Without PyTorch nobody may tell of compiling: a step far beyond the usual one is taken for that."""
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
        """Whether the steps so far are all that is timed; ends the process unless its loss is waited for."""
        if not self._accepted:
            return False
        if self._past_deadline(row[0]):
            return self._decide_short("limit", fewest=_FEWEST_BLOCKS)
        return self._ends_hopeless()

    def _ends_hopeless(self) -> bool:
        """Whether the last few steps are so slow that they are all that is timed."""
        first = self._hopeless_from() if self._may_be_hopeless else None
        if first is None:
            return False
        self._may_be_hopeless = self._decide_short("dominated", fewest=1, first=first)
        return self._may_be_hopeless

    def _hopeless_from(self) -> int | None:
        """Index of the first of the last steps where these are hopelessly slow, of all kept; else None."""
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
        # Once for every second of slow steps only, as going through all of them takes time.
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
        """The last `count` steps that were timed, with their periods; fewer where there are fewer."""
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
        """More steps may follow on what was gathered last, before something is gathered anew.

        A window from one such moment to another holds as much of gathering as of steps on it, as the training
        does. Between two others it would hold a rollout too many or too few. Rounds that last far longer
        than a window are not waited for.
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
            self._pass_on()
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
        # What is set aside takes nothing off the window.
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
        """How full the queue is: where the start of a window is cut off, its own level says nothing."""
        ready = self.loader.ready() if self.loader is not None else None
        if ready is not None:
            self._ready.append((now, ready))
        self._has_queue = self._has_queue or ready is not None
        self._next_level_ns = now + _LEVEL_NS

    def _ready_at(self, begin_ns: int) -> int | None:
        """Batches that lay ready when the steady part began; None where nobody looked at about that time."""
        looks = (look for look in self._ready if look[0] >= self._begin_ns)
        near = min(looks, key=lambda look: abs(look[0] - begin_ns), default=None)
        return near[1] if near is not None and abs(near[0] - begin_ns) <= _LEVEL_NS else None

    def _apart_ns(self) -> int:
        """Time of the window so far that is no training."""
        if self._formed() is not None:
            return 0
        periods, trained = self._trained()
        return int(1e9 * sum(p - (t or 0.0) for p, t in zip(periods, trained, strict=True)))

    def _lost_ns(self) -> int:
        """Time of blocks that others spoilt: so much longer the window is, and twice as long at the most."""
        assert self._segment is not None
        if not self.disturbed():
            return 0
        lost_s = math.fsum(block.seconds for block in self._blocks()[1] if not block.clean)
        return int(1e9 * min(lost_s, self._segment.fidelity.max_window_s))

    def _timed(self) -> tuple[list[WindowRow], list[float]]:
        """Steps of the window with their periods: the device's where it has a clock, else the host's.

        By the device's clock the last steps are missing while the host runs ahead of it.
        """
        if self._clock is not None and self._clock_used != "host":
            return [r for r, _ in self._finished], [period_s for _, period_s in self._finished]
        ends = [self._begin_ns, *(r[0] for r in self._rows)]
        if self._decided is not None and self._rows:
            # What the device still had to do when the host's last step ended.
            ends[-1] = max(ends[-1], self._decided[1])
        return self._rows, [(b - a) / 1e9 for a, b in itertools.pairwise(ends)]

    def _trained(self) -> tuple[list[float], tuple[float | None, ...]]:
        """Seconds from step to step, and how much of them trained, None where a step is set aside."""
        rows, periods = self._timed()
        return periods, self._trained_s(rows, periods)

    def _trained_s(self, rows: Sequence[WindowRow], periods: list[float]) -> tuple[float | None, ...]:
        counts = self._evaluation_counts(rows)
        return trained_s([r[3] for r in rows], [r[4] for r in rows], periods, counts=counts)

    def _evaluation_counts(self, rows: Sequence[WindowRow]) -> bool:
        decided = None if self._segment is None else self._segment.fidelity.evaluation_counts
        return evaluation_counts([r[3] for r in rows]) if decided is None else decided

    def _blocks(self) -> tuple[tuple[int, ...], tuple[intervals.Block, ...]]:
        """When each block began (ns), and the blocks, of the steps that are all training."""
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
        # On a clock that stands still while no step trains.
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
        """The open window by the host's clock, if its steps are all nothing but training."""
        if self._clock is not None or self._decided is not None:
            return None
        key = (self._begin_ns, self._min_block_s(), max(1, self._workers()))
        if self._forming is None or self._forming.key != key:
            self._forming = WindowBlocks(*key)
        return self._forming if self._forming.knows(self._rows) else None

    def _steady(self, blocks: Sequence[intervals.Block]) -> tuple[int, str]:
        """Index of the first steady block of a window, and whether it was steady."""
        if self._is_short:
            return 0, "steady"
        # What others spoilt tells nothing of warming up.
        clean = [k for k, b in enumerate(blocks) if b.clean]
        kept = clean if len(clean) >= _FEWEST_BLOCKS else range(len(blocks))
        shown = [blocks[k] for k in kept]
        rates = [b.samples / b.seconds if b.samples else b.steps / b.seconds for b in shown if b.seconds > 0]
        cut, steady = intervals.steady_start(rates) if len(rates) == len(shown) else (0, "steady")
        cut = kept[cut] if cut else 0
        if cut and self._clock_used == "host":
            # Only where the window opened does the host's clock say how far the device was: nothing is cut.
            return 0, "no_steady_state"
        return cut, steady

    def _workers(self) -> int:
        found = self.loader.observed("num_workers") if self.loader is not None else None
        return int(found) if found else 1

    def _enough(self) -> str | None:
        """Why the window may end before its limit; None where it may not."""
        assert self._segment is not None
        fidelity = self._segment.fidelity
        _, whole = self._blocks()
        cut, steady = self._steady(whole)
        # What will be published is the clean part of what is steady: that has to be long enough, and tight.
        blocks = [block for block in whole[cut:] if block.clean]
        is_part = len(blocks) < len(whole)
        too_short = math.fsum(b.seconds for b in blocks) < fidelity.min_window_s if is_part else False
        if too_short or steady == "no_steady_state" or len(blocks) < _FEWEST_BLOCKS:
            return None
        # Samples unknown: seconds per step tell how tight the interval is, and no rate is compared.
        per_step = not any(block.samples for block in blocks)
        unit = "s" if per_step else "samples/s"
        least, most = intervals.doubted_start(whole, cut)
        is_tight = intervals.is_tight(blocks, fidelity.target_width, unit=unit, per_step=per_step)
        if is_tight and most - least <= fidelity.target_width:
            return "tight"
        estimate = intervals.window_estimate(blocks, unit=unit, per_step=per_step)
        # A prefilled queue makes a rate look higher than it is, which errs towards going on.
        doubt = _BEYOND_DOUBT * (max(estimate.high, most * estimate.value) - estimate.value)
        return "dominated" if not per_step and estimate.value + doubt < fidelity.dominated_below else None

    def _end_in_time(self, now: int) -> None:
        """The time of the process is over: what can tell something is measured."""
        end = self._device_end(now, meanwhile=False)
        if self._can_tell():
            self._decide("limit", end)
        elif not self._decide_short("limit", fewest=_FEWEST_BLOCKS):
            self._tell_no_window()
            self.done("deadline")

    def _can_tell(self) -> bool:
        """The window holds steps enough for a rate and an interval around it."""
        return len(self._rows) >= _FEWEST_STEPS and len(self._blocks()[1]) >= _FEWEST_BLOCKS

    def _decide(self, ended: str, now: int) -> None:
        """The window is over; the run goes on only for the loss guard."""
        now = self._device_end(now, meanwhile=False)
        self._end_window(ended, now, self.loader.ready() if self.loader is not None else None)
        self._wait_for_loss(now)

    def _decide_short(
        self, ended: str, *, fewest: int, first: int | None = None, meanwhile: bool = False
    ) -> bool:
        """Make the window of steps that have ended already; whether there are enough.

        On a device the window begins where the device's clock and the host's are known to agree.

        Args:
            ended: As in `Measurement.ended`.
            fewest: Steps that it holds at the least.
            first: Index of its first step, among all that are kept; None for what is left when the
                first ones, which carry the start-up, are dropped.
            meanwhile: The script has done other things since the last step.
        """
        if self._clock is not None:
            self._memory.synchronise()
            self._pass_on()
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
            told_s = math.fsum(period_s for _, period_s in steps[1:])
            agree = is_whole and abs(told_s - whole_s) <= _CLOCKS_AGREE_FRAC * whole_s
            if not agree and first is not None:
                return False
            self._clock_used = "device" if agree else "host"
            begin = begin if agree else 1
        begin_ns = self._origin_ns if begin == 1 and is_whole else rows[begin - 1][0]
        if first is None and self._comes_from_queue(rows, begin):
            # The only start of the loader is a part of every such run, and all there is to tell of it.
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
        """Whether workers could load every batch from `begin` on before the window, in a run of one pass."""
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
        """When the last step was really done, on the host's clock; `now` where no device trains.

        The window lies between two moments at which device and host agree, so over all of it their
        clocks have to. They do not where training was launched somewhere the events did not go.

        Args:
            now: When the host was done with the last step.
            meanwhile: The script has done other things since.
        """
        if self._clock is None:
            return now
        self._memory.synchronise()
        self._pass_on()
        end = max(now, self._clock.passed_ns() if meanwhile else time.perf_counter_ns())
        whole_s = (end - self._begin_ns) / 1e9
        told_s = math.fsum(period_s for _, period_s in self._finished)
        same = len(self._finished) == len(self._rows)
        agree = same and abs(told_s - whole_s) <= _CLOCKS_AGREE_FRAC * whole_s
        self._clock_used = "device" if agree else "host"
        return end

    def _wait_for_loss(self, now: int, mark: int = 0) -> None:
        assert self._segment is not None
        wanted = self._segment.fidelity.loss_samples
        late = self._past_deadline(now)
        if not (self._state.samples_total >= wanted or not self._losses or late):
            return
        if self._compile_over_ns is None:
            # What a probe makes compile anew is none of the script's.
            self._compile_over_ns = self._state.compile_ns
        if self.ceilings is not None:
            self._count(self.ceilings, mark, late=late)
        elif self.probe is None or late or self.probe.step():
            self._close("measured")

    def _count(self, probe: CeilingProbe, mark: int, *, late: bool) -> None:
        """Let the probe count steps; what it may break is sent before."""
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
                    # Those on which skips are counted: a run may go on after its window.
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
        """Compiling that is no part of the throughput: before the window, and in steps that are set aside.

        Args:
            begin_ns: Of the steady part of the window.
        """
        if not self._compiling_counts(begin_ns):
            return self._compile_until_ns
        before = [ns for end_ns, ns in self._compiled if end_ns <= begin_ns]
        return max([self._compile_before_ns, *before[-1:]])

    def _late_compile_ns(self, begin_ns: int) -> int:
        """Compiling since the window; none where it is a part of its steps, which have told what it costs."""
        if self._compiling_counts(begin_ns):
            return 0
        over_ns = self._state.compile_ns if self._compile_over_ns is None else self._compile_over_ns
        return over_ns - self._compile_until_ns

    def _compiling_counts(self, begin_ns: int) -> bool:
        return compiling_counts([mark for end_ns, _, _, mark, _ in self._rows if end_ns > begin_ns])

    def on_applied(self) -> None:
        """Called once every requested knob was first read as applied."""

    def on_untuned(self, knob: str, why: str) -> None:
        """Told before a process that is not measured ends for want of a knob; set where somebody listens."""

    def window_opens(self) -> None:
        """Told when a window opens; set where there is torch."""

    def skipped_steps(self) -> int:
        """Steps that a gradient scaler skipped; set where there is torch."""
        return 0

    def graph_breaks(self) -> int:
        """Graph breaks of dynamo; set where there is torch."""
        return 0

    def _drain(self) -> None:
        if self._clock is not None:
            self._memory.synchronise()
            self._pass_on()
        self._read_losses()

    def _read_losses(self) -> None:
        """Those that cannot be read are not known, and left out."""
        read = [(s, read_loss(v), t) for s, v, t in self._losses]
        self._losses = [(s, loss, t) for s, loss, t in read if loss is not None]

    def _trace(self) -> tuple[LossPoint, ...]:
        """The loss from the first step on, bins of equal step counts; ends the trial where it broke.

        A single loss that is no number is left out, as the run went on after it.
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
        """By the losses that were read by now."""
        at = broken_at([p[1] for p in self._losses], ended=ended)
        if at is not None:
            self.diverged(self._losses[at][1])

    def script_ended(self, code: int, why: str) -> None:
        """The script came to its end before the window did: close what is there, or only say so."""
        if self._channel is None:
            return
        self._state.calm.leave()
        if self._sent_ns:
            self.done(why, code)
        if code == 0 and not self._state.steps and (reason := self.unseen()):
            self.broke(kind="no_metric", message=reason)
        if code == 0 and self._decided is None and len(self._rows) >= _FEWEST_STEPS:
            end = self._device_end(self._rows[-1][0], meanwhile=True)
            if self._can_tell():
                self._end_window("script_end", end, None)
        if code == 0 and self._decided is None:
            self._decide_short("script_end", fewest=1, meanwhile=True)
        if code == 0 and self._decided is not None:
            self._send_closed()
        elif code == 0 and self._state.steps:
            self._tell_no_window()
        self.done(why, code)

    def _tell_no_window(self) -> None:
        """What the run showed beside a rate.

        Ends the process where its loss broke, or a knob that was asked for was refused.
        """
        assert self._channel is not None
        self._drain()
        self._end_if_broken()
        readings = self._readings()
        if any(r.status == "refused" for r in readings if r.wanted is not None):
            self.reject(readings)
        self._channel.send(ReadBack(facts=self._facts()))

    def diverged(self, loss: float) -> None:
        """The loss is no number any more."""
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
    """How far the interval reaches if what was cut off was no start; empty where it is one beyond doubt."""
    low, high = intervals.doubted_start(blocks, cut)
    if (low, high) == (1.0, 1.0) or not math.isfinite(high):
        return {}
    return {"doubt_low": low, "doubt_high": high}
