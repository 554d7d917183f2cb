"""Measurement of one process: end of warm-up, length of the window, and what follows it.

The run ends at a step boundary, once the window, the loss guard and a requested probe are satisfied.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from autotune.model.trial import AFTER_WINDOW_S
from autotune.protocol.events import Closed, Probed, ReadBack
from autotune.protocol.marks import compiling_counts
from autotune.trial.measure.compile_time import CompileTime
from autotune.trial.measure.hopeless_run import HopelessRun
from autotune.trial.measure.loss_trace import LossTrace
from autotune.trial.measure.queue_levels import QueueLevels
from autotune.trial.measure.timed_steps import TimedSteps, WindowEnd, window_row
from autotune.trial.measure.warm_up import WarmUp
from autotune.trial.measure.window import FEWEST_BLOCKS, FEWEST_STEPS, Window
from autotune.trial.runtime.state import ALLOCATOR, COMPILE, LOADER, ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.model.facts import RunFacts
    from autotune.model.measurement import LossPoint, Reading
    from autotune.model.trial import Segment
    from autotune.trial.measure.acceptance import Acceptance
    from autotune.trial.measure.process_end import ProcessEnd
    from autotune.trial.measure.sources import Sources
    from autotune.trial.measure.window_blocks import Row as WindowRow
    from autotune.trial.probe.ceiling_probe import CeilingProbe
    from autotune.trial.runtime.channel import Channel, Row
    from autotune.trial.runtime.memory import DeviceMemory
    from autotune.trial.runtime.state import RuntimeState

_GROWTH = 1.3
_MAX_RESTARTS = 3
_MAX_GROWTHS = 3
_DEADLINE_FRAC = 0.92
_LONGEST_ROUND = 1.5
"""Longest wait for the end of a round, in windows."""
_CALM_NS = 500_000_000
"""Longest time until uniform steps are counted and their losses checked."""


class MeasuredRun:
    """Measures one process and ends it.

    Args:
        state: Shared counters.
        channel: The event channel.
        segment: What to measure.
        memory: Allocator figures.
        acceptance: Decides whether the requested knobs are in effect.
        ending: Ends the process.
        sources: What the hooks give.
        readings: Returns the status of every knob now.
        facts: Returns the facts of the run; called outside timed windows only.
    """

    def __init__(
        self,
        state: RuntimeState,
        channel: Channel,
        segment: Segment,
        memory: DeviceMemory,
        *,
        acceptance: Acceptance,
        ending: ProcessEnd,
        sources: Sources,
        readings: Callable[[], tuple[Reading, ...]],
        facts: Callable[[], RunFacts],
    ) -> None:
        self._state = state
        self._channel = channel
        self._trial, self._fidelity = segment.trial, segment.fidelity
        self._memory = memory
        self._acceptance = acceptance
        self._ending = ending
        self._sources = sources
        self._readings = readings
        self._facts = facts
        self.steps = TimedSteps(state, channel, memory)
        self.losses = LossTrace()
        self._window = Window(self.steps, self._fidelity, sources)
        self._warm_up = WarmUp(self._fidelity, sources)
        self._queue = QueueLevels(sources)
        self._compile = CompileTime(state)
        self._hopeless: HopelessRun | None = HopelessRun(self.steps, self._fidelity, sources)
        """Finds a few slow steps that end the run; None once the device's clock was seen to miss them."""
        self._began_ns = time.perf_counter_ns()
        self._first_step_ns = 0
        self._import_ns = 0
        self._restarts = 0
        self._growths = 0
        self._rounds = 0
        """Steps preceded by data gathering (rollouts)."""
        self._next_check_ns = 0
        self._opened_at_step = 0
        self._sent_ns = 0
        """When the measurement was sent, if a probe counts steps after it."""

    def restart(self, *, forgets: bool = False) -> None:
        """Warm up again after a change that the window must not contain.

        Args:
            forgets: Drop the steps so far, which differ from those to be timed.
        """
        self._state.calm.leave()
        self._state.calm.fruitless = 0
        if self.steps.end is None:
            self.steps.forget_window(and_past=forgets)
            self._warm_up.restart()

    def reopen(self) -> None:
        """Measure again, a few times at most, because the script has changed what trains."""
        if self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            self.restart()

    def step(self, row: Row, loss: Any, batches: int) -> None:
        """Record the end of a step."""
        steps = self.steps
        if steps.begin_ns and row[0] < min(self._next_check_ns, self._queue.next_ns) and self._is_usual(row):
            self._channel.step(row)
            if loss is not None:
                self.losses.points.append((self._state.samples_total, loss, row[0]))
            steps.rows.append(window_row(row))
            return
        if not self._first_step_ns:
            self._first_step_ns = row[0]
            self._warm_up.event_ns = row[0]
            self._import_ns = self._sources.stop_timing_imports()
        steps.add(row)
        self._rounds += bool(row[5] & ROLLOUT)
        if loss is not None:
            self.losses.points.append((self._state.samples_total, loss, row[0]))
        if steps.end is not None:
            self._wait_for_loss(row[0], row[5])
        elif steps.begin_ns:
            self._in_window(row)
        else:
            self._before_window(row, batches)

    def calm_until_ns(self, now: int) -> int:
        """Return when an open window is evaluated next; 0 if each step may require a decision."""
        if not (self.steps.is_open and self._acceptance.accepted and self.steps.clock is None):
            return 0
        look_ns = self._queue.next_ns if self._queue.has_queue else now + _CALM_NS
        return min(self._next_check_ns, look_ns)

    def calm_steps(self, rows: Sequence[Row], losses: Sequence[float], samples_total: int) -> None:
        """Record steps inside an open window, between two evaluations; like `step` for each.

        Args:
            rows: One or more such steps.
            losses: One per step.
            samples_total: Samples of the run at the end of the last step.
        """
        if not self.steps.is_open:
            return
        self._channel.steps(rows)
        self.steps.rows += [window_row(row) for row in rows]
        seen = samples_total - sum(row[2] for row in rows)
        totals = itertools.accumulate((row[2] for row in rows), initial=seen)
        next(totals)
        self.losses.points += [(s, loss, row[0]) for s, loss, row in zip(totals, losses, rows, strict=True)]

    def script_ended(self, code: int, why: str) -> None:
        """Handle the script's end before the window's: close the available part, or only report the end."""
        if self._sent_ns:
            self._ending.done(why, code)
        if code == 0 and not self._state.steps and (reason := self._sources.unseen()):
            self._ending.broke(kind="no_metric", message=reason)
        if code == 0 and self.steps.end is None and len(self.steps.rows) >= FEWEST_STEPS:
            end_ns = self.steps.device_end(self.steps.rows[-1][0], meanwhile=True)
            if self._window.has_rate():
                self._end_window(WindowEnd("script_end", end_ns, None))
        if code == 0 and self.steps.end is None:
            self._decide_short("script_end", fewest=1, meanwhile=True)
        if code == 0 and self.steps.end is not None:
            self._send_closed(self.steps.end)
        elif code == 0 and self._state.steps:
            self._report_no_window()
        self._ending.done(why, code)

    def _is_usual(self, row: Row) -> bool:
        """Return whether a step is inside an open window, between two evaluations, on the host's clock."""
        usual = self.steps.end is None and self._acceptance.accepted and self.steps.clock is None
        return usual and not row[5] & (COMPILE | ROLLOUT)

    def _past_deadline(self, now: int) -> bool:
        return (now - self._began_ns) / 1e9 > self._fidelity.deadline_s * _DEADLINE_FRAC

    # Warm-up

    def _before_window(self, row: Row, batches: int) -> None:
        if row[5] & COMPILE:
            self._compile.compiled(row[0])
        ready = self._queue.add(row[0])
        if not self._acceptance.settle() or self._ends_early(row):
            return
        if self._warm_up.starts_again(row):
            self.restart()
            return
        self._warm_up.add(row, batches, ready)
        if not self._warm_up.may_open(row[0]) or self._inside_round(row, self._warm_up.event_ns):
            return
        if self._growths < _MAX_GROWTHS and self._memory.grew():
            # The device's allocator still requests memory, so its peak is yet to come.
            self._growths += 1
            return
        self._open(row[0])

    def _ends_early(self, row: Row) -> bool:
        """Return whether no further steps are timed; ends the process unless its loss is needed."""
        if not self._acceptance.accepted:
            return False
        if self._past_deadline(row[0]):
            return self._decide_short("limit", fewest=FEWEST_BLOCKS)
        return self._ends_hopeless()

    def _ends_hopeless(self) -> bool:
        """Return whether the last few steps are so slow that the run is not continued."""
        first = self._hopeless.first() if self._hopeless is not None else None
        if first is None:
            return False
        if self._decide_short("dominated", fewest=1, first=first):
            return True
        self._hopeless = None
        return False

    def _inside_round(self, row: Row, since_ns: int) -> bool:
        """Return whether more steps may follow on the data gathered last, before the next gathering.

        A window between two such moments has the training's ratio of gathering to steps; any other has a
        rollout too many or too few. Rounds far longer than a window are not waited for.
        """
        if not self._rounds or row[5] & ROLLOUT:
            return False
        longest_ns = _LONGEST_ROUND * self._fidelity.max_window_s * 1e9
        return row[0] - since_ns < longest_ns and not self._past_deadline(row[0])

    def _open(self, now: int) -> None:
        if self._memory.on_cuda:
            self.steps.wait_for_device()
            self.losses.read()
            self._end_if_broken(ended=False)
            self._memory.grew()
            self._memory.window_opens()
        self._sources.window_opens()
        self._opened_at_step = self._state.steps
        self._compile.window_opens()
        self.steps.open(now)
        self._next_check_ns = self.steps.begin_ns + int(self._fidelity.min_window_s * 1e9)
        self._queue.window_opens(self.steps.begin_ns)

    # Window

    def _in_window(self, row: Row) -> None:
        compiled = bool(row[5] & COMPILE)
        if compiled:
            self._compile.compiled(row[0])
        self.steps.rows.append(window_row(row))
        if compiled and self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            self.restart()
            return
        if not self._acceptance.accepted:
            self._acceptance.settle()
        if row[0] >= self._queue.next_ns:
            self._queue.add_inside(row[0])
        if self._acceptance.accepted and self._ends_hopeless():
            return
        if row[0] < self._next_check_ns or self._inside_round(row, self.steps.begin_ns):
            return
        fidelity, count = self._fidelity, len(self.steps.rows)
        # Excluded time does not shorten the window.
        begin_ns = self.steps.begin_ns + self._window.apart_ns() + self._window.lost_ns()
        spent_s = (row[0] - begin_ns) / 1e9
        if self._memory.grew():
            self._state.mark |= ALLOCATOR
        if spent_s >= fidelity.max_window_s and count >= FEWEST_BLOCKS:
            self._decide("limit", row[0])
        elif self._past_deadline(row[0]):
            self._end_in_time(row[0])
        elif count >= fidelity.min_steps and (enough := self._window.enough()):
            self._decide(enough, row[0])
        else:
            step_ns = int(spent_s * 1e9) // max(1, count)
            wanted = begin_ns + int(spent_s * _GROWTH * 1e9)
            limit = begin_ns + int(fidelity.max_window_s * 1e9)
            self._next_check_ns = max(row[0] + step_ns // 2, min(wanted, limit))

    def _end_in_time(self, now: int) -> None:
        """Measure what is possible when the process's time is over."""
        end_ns = self.steps.device_end(now, meanwhile=False)
        if self._window.has_rate():
            self._decide("limit", end_ns)
        elif not self._decide_short("limit", fewest=FEWEST_BLOCKS):
            self._report_no_window()
            self._ending.done("deadline")

    def _decide(self, why: str, now: int) -> None:
        """End the window; the run continues only for the loss guard."""
        end_ns = self.steps.device_end(now, meanwhile=False)
        self._end_window(WindowEnd(why, end_ns, self._queue.ready()))
        self._wait_for_loss(end_ns)

    def _decide_short(
        self, why: str, *, fewest: int, first: int | None = None, meanwhile: bool = False
    ) -> bool:
        """Form the window from past steps; return whether there are enough.

        Args:
            why: As in `Measurement.ended`.
            fewest: Least number of steps.
            first: Index of its first step, among all retained ones; None: all but the start-up.
            meanwhile: The script has done other work since the last step.
        """
        steps = self.steps
        end_ns = steps.form_from_past(
            fewest=fewest, first=first, meanwhile=meanwhile, is_from_queue=self._comes_from_queue
        )
        if end_ns is None:
            return False
        self._window.is_short, self._warm_up.is_unsettled = True, False
        self._compile.window_opens(before_ns=0)
        self._opened_at_step = self._state.steps - len(steps.rows)
        ready = self._queue.at(steps.rows[-1][0], since_ns=steps.begin_ns)
        self._end_window(WindowEnd(why, end_ns, ready))
        if not meanwhile:
            self._wait_for_loss(end_ns)
        return True

    def _comes_from_queue(self, rows: Sequence[WindowRow], begin: int) -> bool:
        """Return whether workers could load all batches from `begin` on before the window (one-pass run)."""
        loader = self._sources.loader
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

    def _end_window(self, end: WindowEnd) -> None:
        self.steps.end = end
        self._compile.window_ends()

    # After the window

    def _wait_for_loss(self, now: int, mark: int = 0) -> None:
        assert self.steps.end is not None
        wanted = self._fidelity.loss_samples
        late = self._past_deadline(now)
        if not (self._state.samples_total >= wanted or not self.losses.points or late):
            return
        self._compile.run_ends()
        probe = self._sources.probe
        if self._sources.ceilings is not None:
            self._count(self._sources.ceilings, self.steps.end, mark, late=late)
        elif probe is None or late or probe.step():
            self._send_closed(self.steps.end)
            self._ending.done("measured")

    def _count(self, probe: CeilingProbe, end: WindowEnd, mark: int, *, late: bool) -> None:
        """Have the probe count steps; the measurement is sent before, as the probe may fail."""
        if not self._sent_ns:
            self._send_closed(end)
            self._sent_ns = time.perf_counter_ns()
        step_s = (end.end_ns - self.steps.begin_ns) / 1e9 / len(self.steps.rows)
        if late or probe.step(step_s, mark):
            spent_s = (time.perf_counter_ns() - self._sent_ns) / 1e9
            self._channel.send(Probed(figures={**probe.figures, AFTER_WINDOW_S: spent_s}))
            self._ending.done("measured")

    # Reports

    def _send_closed(self, end: WindowEnd) -> None:
        state, steps, sources = self._state, self.steps, self._sources
        self._read_late()
        trace, readings = self._trace(), self._readings()
        if any(r.wanted is not None and r.status != "applied" for r in readings):
            self._acceptance.reject(readings)
        steady = self._window.steady()
        compiling = compiling_counts([row[3] for row in steps.rows if row[0] > steady.begin_ns])
        self._channel.send(ReadBack(facts=self._facts()))
        self._channel.send(
            Closed(
                trial=self._trial,
                begin_ns=steady.begin_ns,
                end_ns=end.end_ns,
                ended=end.why,
                steady=steady.verdict,
                first_step_ns=self._first_step_ns,
                compile_s=self._compile.apart_ns(steady.begin_ns, counts=compiling) / 1e9,
                late_compile_s=self._compile.late_ns(counts=compiling) / 1e9,
                loss=trace,
                readings=readings,
                allocator_peak_bytes=self._memory.peak_bytes(),
                ready_begin=self._queue.at(steady.begin_ns, since_ns=steps.begin_ns),
                ready_end=end.ready,
                clock=steps.clock_used,
                evaluation_counts=self._window.evaluation_counts(),
                skipped_scaler_steps=sources.skipped_steps(),
                graph_breaks=sources.graph_breaks(),
                short=self._window.is_short,
                unsettled=self._warm_up.is_unsettled,
                sent_ns=time.perf_counter_ns(),
                import_ns=self._import_ns,
                counters={
                    "samples_total": float(state.samples_total),
                    "micro_steps": float(state.micro_steps),
                    "restarts": float(self._restarts),
                    "window_steps": float(len(steps.rows)),
                    "opened_at_step": float(self._opened_at_step),
                    # Steps over which skips are counted; a run may continue after its window.
                    "guarded_steps": float(state.steps - self._opened_at_step),
                    "compile_events": float(state.compile_events + state.xla_events),
                    "faults": float(len(state.faults.off)),
                    **steady.doubt,
                    **self._memory.counters(),
                    **(sources.probe.figures if sources.probe is not None else {}),
                },
            )
        )

    def _report_no_window(self) -> None:
        """Report the facts of a run without a rate.

        Ends the process if its loss diverged, or a requested knob was refused.
        """
        self._read_late()
        self._end_if_broken()
        readings = self._readings()
        if any(r.status == "refused" for r in readings if r.wanted is not None):
            self._acceptance.reject(readings)
        self._channel.send(ReadBack(facts=self._facts()))

    def _read_late(self) -> None:
        self.steps.wait_for_device()
        self.losses.read()

    def _trace(self) -> tuple[LossPoint, ...]:
        """Return the loss from the first step on; ends a diverged trial."""
        self._end_if_broken()
        return self.losses.thinned(self._state.began_ns or self._first_step_ns)

    def _end_if_broken(self, *, ended: bool = True) -> None:
        """End the process if the losses read so far have diverged."""
        loss = self.losses.broken(ended=ended)
        if loss is not None:
            self._ending.diverged(loss)
