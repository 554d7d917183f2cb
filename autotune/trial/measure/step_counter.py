"""Step boundary: one optimizer step that took effect. All decisions to end a run are made here."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.protocol.losses import BAD_LOSSES
from autotune.trial.hooks.step.losses import read_loss
from autotune.trial.runtime.exception_kind import kind_of
from autotune.trial.runtime.queue_delay import QueueDelay
from autotune.trial.runtime.sdk_reports import Later, is_computed_later, number
from autotune.trial.runtime.state import COLLECTION, EVALUATION

if TYPE_CHECKING:
    from autotune.protocol.lines import Row
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.step.optimizer import Optimizer
    from autotune.trial.measure.recorder import Recorder
    from autotune.trial.records.loader_stats import LoaderStats
    from autotune.trial.records.steady_steps import Noted
    from autotune.trial.runtime.state import RuntimeState

_SILENT_STEPS = 8
_UNFED_STEPS = 8
_MESSAGE_CHARS = 500
_MOST_REPORTED_SIZES = 4
_LATE_STEPS = 2
"""Delay in steps before a reported loss on a device is read.

So host and device need not synchronize at every step, and the host is never further ahead than that.
"""
_COUNTED_FROM = 3
"""Step from which garbage collection time is counted; earlier ones are imports and set-up."""
_COUNTED_NS = 1_000_000_000
"""Least time for an estimate of that share."""
_QUEUE_NS = 50_000_000
"""Interval between readings of the run queue; each takes a system call."""


class _Period(NamedTuple):
    """Counts of the hooks between two possible boundaries."""

    end_ns: int
    queued_ns: int
    fetched: int | None
    """Samples from training loaders; None without one."""
    input_samples: int
    wait_ns: int
    mark: int
    aside_ns: int
    losses: list[tuple[Any, float]]
    batches: int
    backwards: int

    def then(self, later: _Period) -> _Period:
        """Return both periods as one."""
        counts = [count for count in (self.fetched, later.fetched) if count is not None]
        return _Period(
            end_ns=later.end_ns,
            queued_ns=self.queued_ns + later.queued_ns,
            fetched=sum(counts) if counts else None,
            input_samples=self.input_samples + later.input_samples,
            wait_ns=self.wait_ns + later.wait_ns,
            mark=self.mark | later.mark,
            aside_ns=-1 if min(self.aside_ns, later.aside_ns) < 0 else self.aside_ns + later.aside_ns,
            losses=self.losses + later.losses,
            batches=self.batches + later.batches,
            backwards=self.backwards + later.backwards,
        )


class StepCounter:
    """Turns the counts of the hooks since the last step into one row.

    The first optimizer observed is the anchor. If it does not step while others do, the anchor moves.
    `sdk.step` replaces every other source. Possible steps are held back until they are confirmed, so that
    none is lost.
    """

    def __init__(self, state: RuntimeState, recorder: Recorder) -> None:
        self._state = state
        self._recorder = recorder
        self.loader: Loader | None = None
        self.optimizer: Optimizer | None = None
        self._anchor: weakref.ref[Any] | None = None
        self._others: dict[int, int] = {}
        self._held: list[tuple[int, _Period]] = []
        """(optimizer, or 0 for a backward pass; counts before its step)."""
        self._by_sdk = False
        # Signal handlers and finalizers of the script may report a step during another one.
        self._lock = threading.RLock()
        self._reported_steps = self._reported_with_samples = 0
        self._reported_samples = self._counted_samples = 0
        self.reported_sizes: set[int] = set()
        """Reported samples per step, the first few distinct values."""
        self._unfed = 0
        self.reuses = False
        """Many steps in a row took no new batch of the training loader, so it does not give their samples."""
        self._late: deque[Later] = deque()
        self._queue = QueueDelay()
        self._queue_ns = self._queue.ns()
        self._queue_read_ns = 0
        self._bad = 0
        self.backward_total = 0
        self.batch_total = 0
        self._first_backwards = 0
        self._collects_ns = self._collected_ns = self._counted_ns = 0
        """Start of the current collection, time of all collections, and start of their count."""
        if recorder.measures:
            # Python drops exceptions in this callback, and with them a Ctrl-C: no callback in a real
            # training.
            gc.callbacks.append(self._collected)

    def anchor_optimizer(self) -> Any:
        """Return the optimizer whose step is the boundary; None for another source."""
        return self._anchor() if self._anchor is not None else None

    @property
    def reports_samples(self) -> bool:
        """Whether the script has reported the sample count of every step."""
        return 0 < self._reported_steps == self._reported_with_samples

    def reported_ratio(self) -> float:
        """Return reported samples per sample of the model's calls; 0 if unknown."""
        return (
            self._reported_samples / self._counted_samples
            if self.reports_samples and self._counted_samples
            else 0.0
        )

    def backwards_per_step(self) -> float:
        """Return backward passes per step, over the complete periods observed."""
        whole = self._state.steps - 1
        return self.backward_total / whole if whole > 0 else float(self._first_backwards)

    def batches_per_step(self) -> float | None:
        """Return batches fetched per step, over the complete periods observed; None without any."""
        whole = self._state.steps - 1
        return self.batch_total / whole if whole > 0 and self.batch_total else None

    def passed(self, optimizer: Any) -> None:
        """Handle a step that took effect (None: counted by backward passes)."""
        if self._by_sdk:
            return
        self._state.calm.leave()
        hook = self.optimizer
        if hook is not None and not hook.closure and self._is_usual(optimizer):
            try:
                self._close_usual(hook)
            except Exception as error:
                self._failed(error)
            return
        if self._state.capturing():
            return
        try:
            before = self.anchor_optimizer()
            periods = self._ended(optimizer)
            for period in periods:
                self._close_step(period)
            if len(periods) > 1 and before is not self.anchor_optimizer():
                # Held steps end all at once, so no window may begin among them.
                self._recorder.restart()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Handle an error in counting a step: a measured run ends."""
        self._state.faults.note("boundary", error)
        if self._recorder.measures:
            # Without counted steps the run cannot be measured, however long it is.
            kind, message = _broken(error)
            self._recorder.ending.broke(kind=kind, error=type(error).__name__, message=message)

    def _is_usual(self, optimizer: Any) -> bool:
        """Return whether a step is the anchor's, on the CPU, between two others, with all counts known."""
        state, anchor = self._state, self._anchor
        return (
            bool(state.backwards)
            and state.steps >= _COUNTED_FROM
            and not (self._held or self._others or state.evaluating or state.faults.off)
            and not state.mark & EVALUATION
            and optimizer is not None
            and anchor is not None
            and anchor() is optimizer
            and self._recorder.on_host
            and self._losses_are_numbers()
            # A measured loss is on the CPU, so no graph capture is active.
            and (state.keeps_losses or not state.capturing())
        )

    def _losses_are_numbers(self) -> bool:
        state = self._state
        for value, _ in state.losses:
            if type(value) is not float:
                return False
        return bool(state.losses) or not state.keeps_losses

    def _close_usual(self, optimizer: Optimizer) -> None:
        """Do the work of `_take` and `_close_step` for a usual step."""
        state, loader = self._state, self.loader
        now = time.perf_counter_ns()
        samples = None if loader is None else loader.take_samples()
        batches, backwards, inputs, losses = state.batches, state.backwards, state.input_samples, state.losses
        row = (
            *(now, state.wait_ns, (inputs if samples is None else samples) * state.ranks, -1.0),
            *(self._queued_ns(now), state.mark, 0),
        )
        state.losses = []
        state.wait_ns = state.input_samples = state.backwards = state.batches = state.mark = 0
        state.steps += 1
        state.samples_total += row[2]
        if samples is not None and not state.replays:
            self._unfed = 0 if batches else self._unfed + 1
            self.reuses = self.reuses or self._unfed > _UNFED_STEPS
        optimizer.accumulation.note(backwards)
        self.backward_total += backwards
        self.batch_total += batches
        if loader is not None and inputs and not loader.built_any:
            loader.input_batch = inputs // backwards
        loss = None
        if losses:
            loss = 0.0
            for value, factor in losses:
                loss += value * factor
            if self._bad or not math.isfinite(loss):
                self._judge(loss)
        if state.at_step:
            for callback in tuple(state.at_step):
                callback()
        self._recorder.step(row, loss, batches)
        if backwards == 1 and len(losses) == 1 and not (state.at_step or state.mark):
            self._begin_calm(optimizer, batches, samples, inputs)

    def _begin_calm(self, optimizer: Optimizer, batches: int, samples: int | None, inputs: int) -> None:
        """Start a uniform stretch, as the last step had one batch and one pass."""
        state, loader, anchor = self._state, self.loader, self.anchor_optimizer()
        until_ns = self._recorder.calm_until_ns(self._queue_read_ns)
        if (
            not until_ns
            or self._late
            or state.replays
            or state.faults.off
            or anchor is None
            or loader is None
        ):
            return
        call = optimizer.calm_call(anchor, inputs)
        record = None if samples is None else loader.calm_record(samples)
        if call is None or batches != (record is not None) or (record is None) != (samples is None):
            return
        state.calm.begin(
            self,
            record=record,
            call=call,
            optimizer=anchor,
            samples=inputs if samples is None else samples,
            until_ns=until_ns,
            queue_ns=self._queue_read_ns + _QUEUE_NS,
        )

    def queued_ns(self, now: int) -> tuple[int, int]:
        """Return the run queue time since the last reading, and the time of the next one."""
        queued_ns = self._queued_ns(now)
        return queued_ns, self._queue_read_ns + _QUEUE_NS

    def count_steady(self, rows: list[Noted], record: LoaderStats | None, samples: int) -> None:
        """Count uniform steps, as `_close_usual` does for each.

        Args:
            rows: One per step.
            record: Loader; None without one.
            samples: Samples per step in this process.
        """
        state, loader, optimizer = self._state, self.loader, self.optimizer
        count, batches = len(rows), 0 if record is None else 1
        try:
            if record is not None and loader is not None:
                loader.count_steady(record, samples, [row[1] for row in rows])
            if not rows:
                return
            if optimizer is not None:
                optimizer.count_steady(count)
            self.backward_total += count
            self.batch_total += batches * count
            samples *= state.ranks
            full: list[Row] = [(end, wait, samples, -1.0, queued, 0, 0) for end, wait, _, queued in rows]
            losses = [row[2] for row in rows]
            inside = count - 1 if not self._bad and all(map(math.isfinite, losses)) else 0
            if inside:
                state.steps += inside
                state.samples_total += samples * inside
                self._recorder.calm_steps(full[:inside], losses[:inside], state.samples_total)
            for row, loss in zip(full[inside:], losses[inside:], strict=True):
                state.steps += 1
                state.samples_total += samples
                if self._bad or not math.isfinite(loss):
                    self._judge(loss)
                self._recorder.step(row, loss, batches)
        except Exception as error:
            self._failed(error)

    def fetched_calmly(self, record: LoaderStats, samples: int, wait_ns: int) -> None:
        """Count the batch of an unfinished uniform step."""
        try:
            if self.loader is not None:
                self.loader.fetched_calmly(record, samples, wait_ns)
        except Exception as error:
            self._state.faults.note("loader", error)

    def passes_calmly(self, loss: float, *, is_over: bool) -> None:
        """Count the backward pass of an unfinished uniform step."""
        if self.optimizer is not None:
            self.optimizer.passes_calmly(loss, is_over=is_over)

    def may_have_passed(self) -> None:
        """Record the end of a backward pass that may stand for a step."""
        if self._by_sdk or self._state.capturing():
            return
        try:
            self._held.append((0, self._take()))
        except Exception as error:
            self._state.faults.note("boundary", error)

    def _ended(self, optimizer: Any) -> list[_Period]:
        """Return the periods completed by this step: none if it may be part of a step."""
        key = 0 if optimizer is None else id(optimizer)
        if optimizer is not None:
            anchor = self.anchor_optimizer()
            if anchor is None:
                self._anchor = weakref.ref(optimizer)
            elif anchor is not optimizer:
                steps = self._others.get(key, 0) + 1
                self._others[key] = steps
                if steps <= _SILENT_STEPS:
                    # Evaluations are checked where a period certainly ends.
                    self._held.append((key, self._take(apart=False)))
                    return []
                self._anchor = weakref.ref(optimizer)
                self._recorder.restart(forgets=True)
        self._others.clear()
        return self._with_held(self._take(), key)

    def _with_held(self, last: _Period, key: int) -> list[_Period]:
        """Return the periods with the held ones: each step of the new anchor ends one, others join one."""
        held, self._held = self._held, []
        periods: list[_Period] = []
        part: _Period | None = None
        for by, period in held:
            part = period if part is None else part.then(period)
            if by == key:
                periods.append(part)
                part = None
        return [*periods, last if part is None else part.then(last)]

    def _take(self, *, apart: bool = True) -> _Period:
        """Return the counts since the last call and reset them.

        Args:
            apart: Include evaluation time.
        """
        state = self._state
        now = time.perf_counter_ns()
        period = _Period(
            end_ns=now,
            queued_ns=self._queued_ns(now),
            fetched=self.loader.take_samples() if self.loader is not None else None,
            input_samples=state.input_samples,
            wait_ns=state.wait_ns,
            mark=state.mark if apart else 0,
            aside_ns=state.take_aside_ns() if apart else 0,
            losses=state.losses,
            batches=state.batches,
            backwards=state.backwards,
        )
        state.losses = []
        state.wait_ns = state.input_samples = state.backwards = state.batches = 0
        if apart:
            state.mark = 0
        return period

    def _queued_ns(self, now: int) -> int:
        if now - self._queue_read_ns < _QUEUE_NS:
            return 0
        self._queue_read_ns, before_ns = now, self._queue_ns
        self._queue_ns = self._queue.ns()
        return self._queue_ns - before_ns

    def sdk_step(self, samples: int | None, loss: Any) -> None:
        """Handle `autotune.sdk.step`, from any thread."""
        if not self._state.active:
            return
        self._state.calm.leave()
        if not self._state.here():
            self._state.calm.end_soon()
        with self._lock:
            try:
                self._close_reported_step(samples, loss)
            except Exception as error:
                self._state.faults.note("sdk", error)
                if self._recorder.measures:
                    # Without counted steps the run cannot be measured, however long it is.
                    kind, message = _broken(error)
                    self._recorder.ending.broke(kind=kind, error=type(error).__name__, message=message)

    def _close_reported_step(self, samples: int | None, loss: Any) -> None:
        self._by_sdk = True
        period = self._with_held(self._take(), -1)[-1]
        if loss is not None:
            # Replaces all observed counts, including held ones.
            period = period._replace(losses=self._reported_loss(loss))
        given = None if samples is None else int(samples)
        self._reported_steps += 1
        self._reported_with_samples += given is not None
        if given is not None:
            self._note_reported(given, period.input_samples)
        if period.fetched is not None and not self.reuses:
            # Samples of a training loader have priority over the script's report.
            given = None
        elif given is None and period.fetched is None and not period.input_samples:
            # Unknown; the loss is then recorded per step.
            given = 1
        self._close_step(period, given)

    def _note_reported(self, given: int, shown: int) -> None:
        if len(self.reported_sizes) < _MOST_REPORTED_SIZES:
            self.reported_sizes.add(given)
        if self._reported_steps > 1:
            # Calls before the first step may have been for other purposes.
            self._reported_samples += given
            self._counted_samples += shown

    def _reported_loss(self, loss: Any) -> list[tuple[Any, float]]:
        """Return the loss that the script reported for a step; empty once it was unreadable."""
        faults = self._state.faults
        if not self._recorder.measures or "reported_loss" in faults.off:
            return []
        if isinstance(loss, (int, float)):
            return [(loss, 1.0)]
        if hasattr(loss, "detach"):
            value = loss.detach()
            # The output of a CUDA graph is overwritten by its next replay.
            return [(value.clone() if getattr(value, "is_cuda", False) else value, 1.0)]
        try:
            # The first loss is read at once, to check that it is a number.
            if self._reported_steps and is_computed_later(loss):
                return [(Later(loss, lambda error: faults.note("reported_loss", error)), 1.0)]
            return [(number(loss), 1.0)]
        except Exception as error:
            faults.note("reported_loss", error)
            return []

    def _close_step(self, period: _Period, given: int | None = None) -> None:
        state, optimizer = self._state, self.optimizer
        state.steps += 1
        if state.steps == _COUNTED_FROM:
            self._counted_ns, self._collected_ns = time.perf_counter_ns(), 0
        samples = period.fetched if given is None else given
        if samples is None:
            samples = period.input_samples
        samples *= state.ranks
        state.samples_total += samples
        if period.fetched is not None and not state.replays:
            self._unfed = 0 if period.batches else self._unfed + 1
            self.reuses = self.reuses or self._unfed > _UNFED_STEPS
        if optimizer is not None and period.backwards:
            optimizer.accumulation.note(1 if optimizer.closure else period.backwards)
        if state.steps > 1:
            # Work before the anchor's first step belongs to no complete period.
            self.backward_total += period.backwards
            self.batch_total += period.batches
        else:
            self._first_backwards = period.backwards
        if period.input_samples and self.loader is not None and not self.loader.built_any:
            self.loader.input_batch = period.input_samples // max(1, period.backwards)
        row = (
            *(period.end_ns, period.wait_ns, samples, -1.0),
            *(period.queued_ns, period.mark, period.aside_ns),
        )
        loss = None
        try:
            if "loss" not in state.faults.off:
                loss = self._loss(period.losses)
        except Exception as error:
            state.faults.note("loss", error)
        if state.at_step:
            for callback in tuple(state.at_step):
                callback()
        self._recorder.step(row, loss, period.batches)

    def _loss(self, losses: list[tuple[Any, float]]) -> Any:
        """Return the step's loss as a number if that is free, else as a value to read later."""
        if not losses or not self._state.keeps_losses:
            return None
        optimizer = self.optimizer
        if optimizer is not None and optimizer.closure:
            losses = losses[:1]
        for value, _ in losses:
            if getattr(value, "is_cuda", False):
                return losses
            if isinstance(value, Later):
                self._late.append(value)
                if len(self._late) > _LATE_STEPS:
                    self._judge(self._late.popleft().read())
                return losses
        loss = read_loss(losses)
        self._judge(loss)
        return loss

    def _judge(self, loss: float | None) -> None:
        """End the process if the loss has diverged; an unknown loss is no evidence."""
        if loss is None:
            return
        self._bad = 0 if math.isfinite(loss) else self._bad + 1
        if self._bad >= BAD_LOSSES:
            self._recorder.ending.diverged(loss)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if not self._state.active:
            return
        if phase == "start":
            self._collects_ns = time.perf_counter_ns()
            return
        if self._collects_ns:
            self._collected_ns += time.perf_counter_ns() - self._collects_ns
            self._collects_ns = 0
        if info.get("generation") == 2:
            self._state.note(COLLECTION)

    def collecting_frac(self) -> float | None:
        """Return the share of time in garbage collection, over all threads; None before it is known."""
        whole_ns = time.perf_counter_ns() - self._counted_ns
        if not self._counted_ns or whole_ns < _COUNTED_NS:
            return None
        return min(1.0, self._collected_ns / whole_ns)

    def release(self) -> None:
        """Release system resources."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        self._queue.close()


def _broken(error: Exception) -> tuple[str, str]:
    """Return failure kind and message: asynchronous kernel errors surface at any later device call."""
    kind = kind_of(error)
    if kind in ("oom_cuda", "oom_host", "cuda_fatal"):
        return kind, (str(error).strip().splitlines() or [""])[0][:_MESSAGE_CHARS]
    return "no_metric", f"counting steps failed: {error}"
