"""Folds what a trial process told and what was seen of it from outside into one Measurement."""

from __future__ import annotations

import bisect
import itertools
import math
import os
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from autotune.core.break_even import LEAST_COMPILE_S
from autotune.core.facts import COUNTED
from autotune.core.learning_rate import RATE
from autotune.core.live import Part
from autotune.core.measurement import Contamination, Estimate, Measurement, Memory
from autotune.core.stats import form_blocks, window_estimate
from autotune.core.table import ASIDE, Blocks
from autotune.core.trial import Failure, FailureKind
from autotune.devices.energy import EnergySample, spent_j
from autotune.protocol.disturbed import spans, touched
from autotune.protocol.events import Broke, Closed, Compiling, Done, Hello, Seen, StepRow, Steps
from autotune.protocol.losses import broken_at
from autotune.protocol.marks import COMPILE, EVALUATION, LOADER, trained_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.core.change import Change
    from autotune.core.config import Config
    from autotune.core.facts import RunFacts
    from autotune.core.trial import Outcome
    from autotune.protocol.events import Event

MIN_BLOCK_S = 0.25
BURSTY_RATIO = 1.05
CONTENDED_FOREIGN_FRAC = 0.10
CONTENDED_QUEUE_FRAC = 0.05
CONTENDED_PRESSURE_FRAC = 0.10
CONTENDED_STILL_FRAC = 0.05
"""CPUs that stood still, as a share of a quota."""
BUSY_FRAC = 0.85
QUEUE_FALL_FRAC = 0.02
LOST_BLOCKS_FRAC = 0.5
SKIPPED_SCALER_FRAC = 0.5
_WIDEN: Mapping[str, float] = {"steady": 1.0, "drifting": 1.5, "no_steady_state": 2.0}
_MARKS: Mapping[int, str] = {
    EVALUATION: "evaluation",
    COMPILE: "compile",
    4: "new_shape",
    8: "gc",
    LOADER: "loader_start",
    32: "allocator",
}
"""Bits of `autotune.protocol.events.StepRow.mark` in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the process tree and the machine, by the guard.

    Args:
        t_ns: `time.perf_counter_ns()`.
        bytes: Memory of the tree.
        busy_s: CPU seconds that all CPUs which the trial may use had spent by then; None where unreadable.
        own_s: CPU seconds of the tree.
        pressure_us: Microseconds for which some task had waited for a CPU (PSI); None unreadable.
        quota_s: CPU seconds of all processes under the trial's quota; None without one, or unreadable.
        still_s: Seconds for which that quota had CPUs stand still, those of all CPUs together.
    """

    t_ns: int
    bytes: int
    busy_s: float | None
    own_s: float
    pressure_us: float | None
    quota_s: float | None = None
    still_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One look at the accelerators a trial uses, by the launcher.

    Args:
        used_bytes: Memory in use on the fullest of them.
        foreign: A process outside the trial's tree computed on one of them.
        throttled: Clocks were held down by hardware: heat, slowdown, power brake.
        total_bytes: Memory of the fullest of them; 0 where unknown.
        sm_clock_mhz: Of the slowest of them; None where unknown.
        temperature_c: Of the hottest of them.
        power_w: Of all of them together.
        ecc_errors: Memory errors that could not be corrected, since the driver was loaded.
        resident: A process outside the tree was on one of them, and whether it computed is not known.
        busy_frac: Share of the time since the look before in which they computed, on average; None unknown.
        tensor_frac: The same of their tensor units.
        dram_frac: Share of the bandwidth of their memories.
    """

    t_ns: int
    used_bytes: int = 0
    foreign: bool = False
    throttled: bool = False
    total_bytes: int = 0
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    ecc_errors: int | None = None
    resident: bool = False
    busy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None

    @property
    def spoils(self) -> bool:
        """What is timed now is set aside."""
        return self.foreign or self.throttled


@dataclass
class Told:
    """Everything a trial process has told so far; `take` adds one event."""

    hello: Hello | None = None
    rows: list[StepRow] = field(default_factory=list[StepRow])
    compiles: list[Compiling] = field(default_factory=list[Compiling])
    facts: RunFacts | None = None
    closed: dict[int, Closed] = field(default_factory=dict[int, Closed])
    parts: dict[int, Closed] = field(default_factory=dict[int, Closed])
    """Of a visit, by `Closed.part`."""
    done: Done | None = None
    broke: Broke | None = None
    beating: bool = False
    """Its last sign of life was no step: it evaluates or writes a checkpoint."""

    def take(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, Steps):
            self.rows.extend(event.rows)
            self.beating = not event.rows
        elif isinstance(event, Closed) and event.part:
            self.parts[event.part] = event
        elif isinstance(event, Closed):
            self.closed[event.trial] = event
        elif isinstance(event, Compiling):
            self.compiles.append(event)
        elif isinstance(event, Seen):
            self.facts = event.facts
        elif isinstance(event, Hello):
            self.hello = event
        elif isinstance(event, Done):
            self.done = event
        else:
            self.broke = event

    @property
    def steps(self) -> int:
        """Optimizer steps known of."""
        said = [e.steps for e in (self.done, self.broke) if e is not None]
        return max([len(self.rows), *said])

    @property
    def compiling(self) -> bool:
        """A compile has begun and not ended."""
        return sum(1 if c.began else -1 for c in self.compiles) > 0

    def median_step_s(self) -> float:
        """Median of the last steps' periods, 0 where fewer than two are known."""
        recent = self.rows[-101:]
        periods = [b.t_ns - a.t_ns for a, b in itertools.pairwise(recent)]
        return statistics.median(periods) / 1e9 if periods else 0.0

    def compile_s_before(self, t_ns: int) -> float:
        """Seconds of compiling before a moment; overlapping compiles count once."""
        total, depth, began = 0, 0, 0
        for event in self.compiles:
            t = min(event.t_ns, t_ns)
            if event.began:
                began = t if depth == 0 else began
                depth += 1
            elif depth:
                depth -= 1
                total += t - began if depth == 0 else 0
        return (total + (t_ns - min(began, t_ns) if depth else 0)) / 1e9


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What was seen of a trial from outside.

    Args:
        start_ns: `perf_counter_ns` when its process was started.
        peak_bytes: Memory of its tree.
        limit_bytes: What it was allowed; 0 for no limit.
        cold: Its compile caches were empty.
        cpus: CPUs that this process may use, as ``busy_s`` counts them.
        quota: CPUs' worth of time that the trial may use, where that is less; None else.
        flags: Further contamination flags (``wrote_outside``).
        energies: Looks at energy counters, where there are any.
    """

    start_ns: int
    samples: Sequence[Sample] = ()
    devices: Sequence[DeviceSample] = ()
    peak_bytes: int = 0
    limit_bytes: int = 0
    cold: bool = False
    cpus: int = field(default_factory=_usable_cpus)
    quota: float | None = None
    flags: tuple[str, ...] = ()
    energies: Sequence[EnergySample] = ()

    def until(self, t_ns: int) -> Outside:
        """What had been seen by then; memory is the largest that had been looked at."""
        samples = tuple(s for s in self.samples if s.t_ns <= t_ns)
        seen_bytes = max((s.bytes for s in samples), default=self.peak_bytes)
        return replace(
            self,
            samples=samples,
            devices=tuple(d for d in self.devices if d.t_ns <= t_ns),
            peak_bytes=min(seen_bytes, self.peak_bytes),
        )


def read_samples(rows: Iterable[Sequence[Any]]) -> tuple[Sample, ...]:
    """Samples from the guard's result."""
    return tuple(
        Sample(
            t_ns=int(r[0]),
            bytes=int(r[1]),
            busy_s=r[2],
            own_s=float(r[3]),
            pressure_us=r[4],
            quota_s=r[5] if len(r) > 5 else None,
            still_s=r[6] if len(r) > 6 else None,
        )
        for r in rows
    )


def measure(closed: Closed, told: Told, outside: Outside, changes: Sequence[Change] = ()) -> Outcome:
    """The outcome of one closed segment.

    Throughput is the ratio of sums over the window's blocks. Steps are set aside only on evidence from
    outside the stream of step times: a step with an evaluation or a compile inside it, a block with
    another user of the accelerator.
    Where a loader's queue was still draining, what came out of it is taken off.

    Returns:
        A `Measurement`; or a `Failure` where a knob did not take effect, the loss is not finite, the
        gradient scaler skipped most steps, or others used the accelerator for most of the window.
    """
    rejected = rejection(closed, changes)
    if rejected is not None:
        return rejected
    window = _Window.of(closed, told, outside)
    if not window.rows or window.seconds <= 0:
        return Failure(
            kind=FailureKind.NO_METRIC,
            message=f"no step ended inside the window ({told.steps} steps were seen in all)",
            evidence={"steps": told.steps},
        )
    measurement = window.measurement()
    lost = window.lost()
    if lost is not None:
        return replace(lost, readings=measurement)
    return _diverged(closed, measurement) or measurement


def visit_part(closed: Closed, config: Config | None, told: Told, outside: Outside, since_ns: int) -> Part:
    """One part of a visit that was measured to its end, by the rules of any window.

    Args:
        closed: What the process told of it.
        config: What it had; None for the process's own.
        told: Everything the process told.
        outside: What was seen of it.
        since_ns: When the part before was told.
    """
    outcome = measure(closed, told, outside)
    seconds = max(0.0, (closed.sent_ns - since_ns) / 1e9)
    if isinstance(outcome, Failure):
        return Part(config=config, rate=None, seconds=seconds, failure=outcome.kind.label)
    return Part(
        config=config,
        rate=outcome.throughput,
        seconds=seconds,
        data_wait_frac=outcome.data_wait_frac,
        steps=outcome.steps,
    )


def raw_window(closed: Closed, told: Told, outside: Outside) -> tuple[Blocks, float]:
    """The window behind a measurement, for recorders: nothing removed, what spoils a block said beside it.

    Returns:
        Its blocks, a step that is no training as a whole in a block of its own; and the share of the
        consumed batches that was also produced inside the window, by which the throughput was lowered.
    """
    window = _Window.of(closed, told, outside)
    return (window.raw(), window.kept_frac()) if window.rows else (Blocks(), 1.0)


def rejection(closed: Closed, changes: Sequence[Change]) -> Failure | None:
    """A Failure where a knob that was asked for was not seen to take effect."""
    for reading in closed.readings:
        if reading.wanted is not None and reading.status != "applied":
            how = next((c.spelling.how for c in changes if c.knob == reading.knob), "")
            why = reading.reason or f"found {reading.found!r}"
            return Failure(
                kind=FailureKind.CONFIG_REJECTED,
                message=f"{reading.knob}={reading.wanted} did not take effect: {why}",
                evidence={"knob": reading.knob, "how": how, "status": reading.status},
            )
    return None


def _diverged(closed: Closed, measurement: Measurement) -> Failure | None:
    at = broken_at([p.loss for p in measurement.loss])
    if at is not None:
        bad = measurement.loss[at]
        return Failure(
            kind=FailureKind.DIVERGED,
            message=f"the loss became {bad.loss} after {bad.samples} samples",
            evidence={"samples": bad.samples},
            readings=measurement,
        )
    # A step that was skipped ended like any other; those before the steady part and after the window count.
    opened = int(max(closed.counters.get(name, 0) for name in ("window_steps", "guarded_steps")))
    tried = max(measurement.steps, opened, closed.skipped_scaler_steps)
    if closed.skipped_scaler_steps > SKIPPED_SCALER_FRAC * tried:
        return Failure(
            kind=FailureKind.DIVERGED,
            message=f"the gradient scaler skipped {closed.skipped_scaler_steps} of {tried} steps",
            evidence={"skipped": closed.skipped_scaler_steps, "steps": tried},
            readings=measurement,
        )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The steps between two moments, with periods; one place for all that is computed from them."""

    closed: Closed
    told: Told
    outside: Outside
    rows: tuple[StepRow, ...]
    periods_s: tuple[float, ...]
    trained_s: tuple[float | None, ...]
    dirty: tuple[bool, ...]
    counts_samples: bool

    @classmethod
    def of(cls, closed: Closed, told: Told, outside: Outside) -> _Window:
        rows = tuple(r for r in told.rows if closed.begin_ns < r.t_ns <= closed.end_ns)
        stamps = [closed.begin_ns, *(r.t_ns for r in rows)]
        if rows:
            # The window ends when the device has done its last step, which the host left behind before.
            stamps[-1] = max(stamps[-1], closed.end_ns)
        periods = tuple((b - a) / 1e9 for a, b in itertools.pairwise(stamps))
        # The host runs ahead of the device step by step; that both agree over all of it was looked at
        # in the process, which alone knows moments at which the device stood still.
        if closed.clock == "device" and rows and min(r.device_ms for r in rows) > 0:
            periods = tuple(r.device_ms / 1e3 for r in rows)
        facts = told.facts
        return cls(
            closed=closed,
            told=told,
            outside=outside,
            rows=rows,
            periods_s=periods,
            trained_s=trained_s(
                [r.mark for r in rows],
                [r.aside_ns for r in rows],
                periods,
                counts=closed.evaluation_counts,
            ),
            dirty=_dirty(stamps, outside),
            counts_samples=facts is not None
            and facts.samples_source in COUNTED
            and any(r.samples for r in rows),
        )

    @property
    def seconds(self) -> float:
        return sum(self.periods_s)

    def measurement(self) -> Measurement:
        rows, closed = self.rows, self.closed
        throughput, step_time = self._estimates()
        first_ns = closed.first_step_ns or rows[0].t_ns
        startup_s = (first_ns - self.outside.start_ns) / 1e9 - self.told.compile_s_before(first_ns)
        kept = self._clean_rows()
        wait_s = sum(r.wait_ns for r, _ in kept) / 1e9
        counts = closed.evaluation_counts
        return Measurement(
            throughput=throughput,
            step_time_s=step_time,
            data_wait_frac=min(1.0, wait_s / (sum(s for _, s in kept) or 1.0)),
            memory=Memory(
                allocator=closed.allocator_peak_bytes,
                device=self._device_bytes(),
                pss=self.outside.peak_bytes or None,
                limit=self._limit_bytes() or None,
            ),
            loss=closed.loss,
            compile_s=closed.compile_s,
            late_compile_s=closed.late_compile_s,
            cold_compile=self.outside.cold and closed.compile_s > 0,
            startup_s=max(0.0, startup_s),
            warmup_steps=sum(r.t_ns <= closed.begin_ns for r in self.told.rows),
            steps=len(rows),
            window_s=self.seconds,
            effective_batch=sum(r.samples for r in rows) / len(rows),
            contamination=self._contamination(),
            readings=closed.readings,
            ended=closed.ended,
            extra={
                **closed.counters,
                "dirty_steps": float(
                    sum(s is None or d for s, d in zip(self.trained_s, self.dirty, strict=True))
                ),
                "aside_s": sum(self.periods_s) - sum(s or 0.0 for s in self.trained_s),
                **({} if counts is None else {"evaluation_counts": float(counts)}),
                "graph_breaks": float(closed.graph_breaks),
                "skipped_scaler_steps": float(closed.skipped_scaler_steps),
                **self._device_state(),
                **self._energy(),
                **self._undelayed(throughput.value),
                **_epoch_starts(self.told.rows, closed.begin_ns, closed.end_ns),
                **_step_quantiles([seconds for _, seconds in kept]),
                **self._rate(),
            },
        )

    def _undelayed(self, rate: float) -> dict[str, float]:
        """The throughput without the time that the training thread waited for a core; on a CPU that tells it.

        For people who compare runs of a full machine. No claim rests on it: that the other threads waited as
        well, and this one for them, does not show.
        """
        if self.closed.allocator_peak_bytes is not None or not any(r.queue_ns for r in self.told.rows):
            return {}
        kept = self._clean_rows()
        wall_s, delay_s = sum(seconds for _, seconds in kept), sum(row.queue_ns for row, _ in kept) / 1e9
        return {"undelayed_throughput": rate * wall_s / (wall_s - delay_s)} if delay_s < wall_s else {}

    def _rate(self) -> dict[str, float]:
        """The learning rate that the run began with, where it was seen."""
        optimizer = self.told.facts.optimizer if self.told.facts is not None else None
        return {RATE: max(optimizer.rates)} if optimizer is not None and optimizer.rates else {}

    def _energy(self) -> dict[str, float]:
        """Joules that training the window's steps took, by the counters there are; empty without any.

        Of the same time as the throughput: what was set aside there is no training's energy either. Steps
        that are set aside as a whole are taken to need what the others do.
        """
        seen = self.outside.energies
        spans, share = self._counted_spans() if seen else ((), 0.0)
        if share <= LOST_BLOCKS_FRAC:
            return {}

        def spent(points: Sequence[tuple[int, float]]) -> float | None:
            joules = self._spent_j(points, spans)
            return None if joules is None else joules / share

        found: dict[str, float] = {}
        cpu = spent([(s.t_ns, s.cpu_j) for s in seen if s.cpu_j is not None])
        if cpu is not None:
            found["energy_cpu_j"] = cpu
        if self.closed.allocator_peak_bytes is None:
            return found
        told = {d.uuid for d in self.told.facts.devices} if self.told.facts is not None else set[str]()
        uuids = {uuid for s in seen for uuid in s.device_j}
        used = uuids & told or (uuids if len(uuids) == 1 else set[str]())
        points = {u: [(s.t_ns, s.device_j[u]) for s in seen if u in s.device_j] for u in used}
        parts = [spent(each) for each in points.values()]
        known = [part for part in parts if part is not None]
        if known and len(known) == len(parts):
            found["energy_gpu_j"] = math.fsum(known)
        return found

    def _counted_spans(self) -> tuple[Sequence[tuple[int, int]], float]:
        """When the steps that count trained, and which share of all samples they had."""
        stamps = [self.closed.begin_ns, *(r.t_ns for r in self.rows)]
        stamps[-1] = max(stamps[-1], self.closed.end_ns)
        spans: list[tuple[int, int]] = []
        counted = whole = 0
        for i, (row, period_s, own_s) in enumerate(
            zip(self.rows, self.periods_s, self.trained_s, strict=True)
        ):
            each = row.samples if self.counts_samples else 1
            whole += each
            if own_s is None or self.dirty[i]:
                continue
            counted += each
            # What is evaluated at the end of an epoch comes before the next step's own work.
            begin = min(stamps[i + 1], stamps[i] + round(1e9 * (period_s - own_s)))
            if spans and spans[-1][1] == begin:
                begin = spans.pop()[0]
            spans.append((begin, stamps[i + 1]))
        return spans, counted / whole if whole else 0.0

    def _spent_j(self, points: Sequence[tuple[int, float]], spans: Sequence[tuple[int, int]]) -> float | None:
        """Energy of these parts of the window; None where the looks at a counter cannot tell it.

        Between two looks power is taken to be even, which it is not where one of them lies in what was cut
        out: there only what lies between two looks counts, and stands for what is beside it.
        """
        looks = [t_ns for t_ns, _ in points]
        window_ends = max(self.rows[-1].t_ns, self.closed.end_ns)
        joules, told_ns = 0.0, 0
        for begin, end in spans:
            first, last = begin, end
            if begin != self.closed.begin_ns:
                at = bisect.bisect_left(looks, begin)
                first = looks[at] if at < len(looks) else end
            if end != window_ends:
                at = bisect.bisect_right(looks, end)
                last = looks[at - 1] if at else begin
            if last <= first:
                continue
            part = spent_j(points, first, last)
            if part is None:
                return None
            joules, told_ns = joules + part, told_ns + last - first
        whole_ns = sum(end - begin for begin, end in spans)
        return joules * whole_ns / told_ns if told_ns > LOST_BLOCKS_FRAC * whole_ns else None

    def _device_bytes(self) -> int | None:
        """What was used on the device; None where the script trains without one that is there."""
        if self.closed.allocator_peak_bytes is None:
            return None
        return max((d.used_bytes for d in self.outside.devices), default=0) or None

    def _limit_bytes(self) -> int:
        """What runs out: the device's memory where one trains, else what the process tree may take."""
        if self.closed.allocator_peak_bytes is None:
            return self.outside.limit_bytes
        seen = max((d.total_bytes for d in self.outside.devices), default=0)
        facts = self.told.facts
        return seen or max((d.memory_bytes for d in facts.devices), default=0) if facts else seen

    def _device_state(self) -> dict[str, float]:
        """Clock, heat and power inside the window: two runs at different clocks are told apart by them."""
        if self.closed.allocator_peak_bytes is None:
            return {}
        begin, end = self.closed.begin_ns, self.closed.end_ns
        seen = [d for d in self.outside.devices if begin <= d.t_ns <= end]
        found: dict[str, float] = {}
        for name, values in (
            ("sm_clock_mhz", [d.sm_clock_mhz for d in seen]),
            ("temperature_c", [d.temperature_c for d in seen]),
            ("power_w", [d.power_w for d in seen]),
            ("device_busy_frac", [d.busy_frac for d in seen]),
            ("device_tensor_frac", [d.tensor_frac for d in seen]),
            ("device_dram_frac", [d.dram_frac for d in seen]),
        ):
            known = [float(v) for v in values if v is not None]
            if known:
                found[name] = max(known) if name == "temperature_c" else statistics.fmean(known)
        return found

    def _clean_rows(self) -> list[tuple[StepRow, float]]:
        """Steps that trained, and how long; never none, by the rule for what is set aside."""
        return [(row, s) for row, s in zip(self.rows, self.trained_s, strict=True) if s is not None]

    def _estimates(self) -> tuple[Estimate, Estimate]:
        ends: list[float] = []
        at = 0.0
        kept = self._clean_rows()
        for _, period in kept:
            at += period
            ends.append(at)
        loader = self.told.facts.loader if self.told.facts else None
        blocks = form_blocks(
            [0.0, *ends[:-1]],
            ends,
            [r.samples if self.counts_samples else 1 for r, _ in kept],
            [r.wait_ns / 1e9 for r, _ in kept],
            [d for d, s in zip(self.dirty, self.trained_s, strict=True) if s is not None],
            min_block_s=MIN_BLOCK_S,
            min_steps=max(1, loader.num_workers if loader else 1),
        )
        unit = "samples/s" if self.counts_samples else "steps/s"
        produced = self.kept_frac()
        wide = _WIDEN.get(self.closed.steady, 1.0)
        tight = self.closed.ended == "tight"
        rate = window_estimate(blocks, unit=unit, is_stopped=tight)
        each = window_estimate(blocks, unit="s", per_step=True, is_stopped=tight)
        throughput, step_time = _adjusted(rate, produced, wide), _adjusted(each, 1.0 / produced, wide)
        throughput, step_time = _doubted(throughput, step_time, self.closed.counters)
        if self._is_from_queue():
            # How fast the loader is by itself, this window cannot tell.
            return replace(throughput, low=0.0), replace(step_time, high=math.inf)
        return throughput, step_time

    def kept_frac(self) -> float:
        """Share of the consumed batches that was also produced inside the window."""
        consumed, fell = self._drained()
        if fell < 2 or fell < QUEUE_FALL_FRAC * consumed or fell >= consumed:
            return 1.0
        return (consumed - fell) / consumed

    def _is_from_queue(self) -> bool:
        """Nothing that the window consumed was produced in it, so that nothing can be taken off either."""
        consumed, fell = self._drained()
        return fell >= max(2.0, consumed)

    def _drained(self) -> tuple[float, float]:
        """Batches that were consumed, and by how many those that lay ready became fewer; 0 where unknown."""
        closed, facts = self.closed, self.told.facts
        if closed.ready_begin is None or closed.ready_end is None or facts is None:
            return 0.0, 0.0
        samples = sum(r.samples for r in self.rows)
        batch = facts.loader.batch_size if facts.loader else None
        consumed = samples / batch if batch else len(self.rows) * facts.backward_per_step
        return consumed, float(closed.ready_begin - closed.ready_end)

    def raw(self) -> Blocks:
        """Every step of the window in blocks; see `raw_window`."""
        groups = self._groups()
        stamps = [self.closed.begin_ns, *(r.t_ns for r in self.rows)]
        delays = any(r.queue_ns for r in self.told.rows)
        flags: list[str] = []
        for group in groups:
            marks = 0
            for i in group:
                marks |= self.rows[i].mark
            begin, end = stamps[group[0]], stamps[group[-1] + 1]
            seen = [d for d in self.outside.devices if begin <= d.t_ns < end]
            words = [word for bit, word in _MARKS.items() if marks & bit]
            words += [ASIDE] if self.trained_s[group[0]] is None else []
            words += ["foreign_gpu"] if any(d.foreign for d in seen) else []
            words += ["throttled"] if any(d.throttled for d in seen) else []
            flags.append(" ".join(words))
        apart_s = [p - (t or 0.0) for p, t in zip(self.periods_s, self.trained_s, strict=True)]
        return Blocks(
            num_steps=tuple(len(group) for group in groups),
            num_samples=tuple(sum(self.rows[i].samples for i in group) for group in groups),
            elapsed_s=tuple(round(math.fsum(self.periods_s[i] for i in group), 7) for group in groups),
            aside_s=tuple(
                0.0 if ASIDE in words else round(math.fsum(apart_s[i] for i in group), 7)
                for group, words in zip(groups, flags, strict=True)
            ),
            wait_s=tuple(round(sum(self.rows[i].wait_ns for i in group) / 1e9, 7) for group in groups),
            # A kernel that does not tell leaves zeros throughout.
            run_delay_s=tuple(
                round(sum(self.rows[i].queue_ns for i in group) / 1e9, 7) if delays else None
                for group in groups
            ),
            flags=tuple(flags),
        )

    def _groups(self) -> list[list[int]]:
        """Indices of consecutive steps, a block long; a step that is set aside stands alone.

        What is left before such a step, or at the end, joins the block before it.
        """
        loader = self.told.facts.loader if self.told.facts else None
        fewest = max(1, loader.num_workers if loader else 1)
        groups: list[list[int]] = []
        begun: list[int] = []
        seconds = 0.0
        joins = False
        for index, trained in enumerate((*self.trained_s, None)):
            if trained is None:
                if begun and joins:
                    groups[-1] += begun
                elif begun:
                    groups.append(begun)
                groups += [[index]] if index < len(self.rows) else []
                begun, seconds, joins = [], 0.0, False
                continue
            begun.append(index)
            seconds += trained
            if seconds >= MIN_BLOCK_S * (1.0 - 1e-9) and len(begun) >= fewest:
                groups.append(begun)
                begun, seconds, joins = [], 0.0, True
        return groups

    def _contamination(self) -> Contamination:
        begin, end = self.closed.begin_ns, self.closed.end_ns
        inside = [s for s in self.outside.samples if begin <= s.t_ns <= end]
        queue_frac = sum(r.queue_ns for r in self.rows) / 1e9 / self.seconds
        seen, flags = _Rates.of(inside), list(self.outside.flags)
        flags += ["cpu_contended"] if self._cpu_contended(queue_frac, seen) else []
        flags += ["cpu_throttled"] if self._is_stopped(seen) else []
        devices = [d for d in self.outside.devices if begin <= d.t_ns <= end]
        flags += ["foreign_gpu"] if any(d.foreign for d in devices) else []
        flags += ["gpu_shared"] if any(d.resident for d in devices) else []
        flags += ["throttled"] if any(d.throttled for d in devices) else []
        errors = [d.ecc_errors for d in self.outside.devices if d.ecc_errors is not None]
        flags += ["ecc_errors"] if errors and errors[-1] > errors[0] else []
        if self.closed.steady in ("drifting", "no_steady_state"):
            flags.append(self.closed.steady)
        periods = [s for _, s in self._clean_rows()]
        middle = statistics.median(periods)
        if middle > 0 and statistics.fmean(periods) / middle > BURSTY_RATIO:
            flags.append("bursty")
        flags += ["recompiled"] if any(r.mark & COMPILE for r in self.rows) else []
        flags += ["compiled_late"] if self.closed.late_compile_s >= LEAST_COMPILE_S else []
        flags += ["alloc_cliff"] if self.closed.counters.get("alloc_retries", 0) > 0 else []
        flags += ["from_queue"] if self._is_from_queue() else []
        return Contamination(
            run_queue_frac=queue_frac,
            pressure_frac=seen.pressure,
            # What others do on CPUs that a quota leaves idle for the trial is none of its business.
            foreign_cpu_frac=seen.foreign if self.outside.quota is None else seen.quota_foreign,
            flags=tuple(dict.fromkeys(flags)),
        )

    def _cpu_contended(self, queue_frac: float, seen: _Rates) -> bool:
        """Others took CPU that the trial would have used.

        A trial with more threads than cores waits for itself; so delay alone does not count, only
        delay together with a busy machine and CPU time spent outside the trial. Where the trial has a quota,
        those under the same quota may use it up as well.
        """
        delayed = queue_frac > CONTENDED_QUEUE_FRAC or (seen.pressure or 0.0) > CONTENDED_PRESSURE_FRAC
        if delayed and _is_full(seen.foreign, seen.busy, self.outside.cpus):
            return True
        stopped = queue_frac > CONTENDED_QUEUE_FRAC or self._is_stopped(seen)
        quota = self.outside.quota
        return quota is not None and stopped and _is_full(seen.quota_foreign, seen.quota_busy, quota)

    def _is_stopped(self, seen: _Rates) -> bool:
        """The quota was used up, by whomever, and what it was meant for stood still."""
        quota = self.outside.quota
        return quota is not None and (seen.still or 0.0) > CONTENDED_STILL_FRAC * quota

    def lost(self) -> Failure | None:
        """A Failure where others held the accelerator, or heat its clocks, for most of the window."""
        inside = [d for d in self.outside.devices if self.closed.begin_ns <= d.t_ns <= self.closed.end_ns]
        if not inside:
            return None
        for kind, bad, words in (
            (FailureKind.CONTENDED, sum(d.foreign for d in inside), "another process used the accelerator"),
            (
                FailureKind.THROTTLED,
                sum(d.throttled for d in inside),
                "the accelerator's clocks were held down",
            ),
        ):
            if bad > LOST_BLOCKS_FRAC * len(inside):
                return Failure(
                    kind=kind,
                    message=f"{words} in {bad} of {len(inside)} samples of the window",
                    evidence={"samples": len(inside), "bad": bad},
                )
        return None


def _dirty(stamps: Sequence[int], outside: Outside) -> tuple[bool, ...]:
    """Steps during which others used the accelerator, or its clocks were held down.

    The trial is told of them while it runs (`autotune.protocol.disturbed`), and measures longer.
    """
    return touched(stamps[:-1], stamps[1:], spans((d.t_ns, d.spoils) for d in outside.devices))


def _step_quantiles(periods_s: Sequence[float]) -> dict[str, float]:
    """5, 25, 50, 75 and 95 % of the steps that trained: how even they were, for those who look at the run."""
    if len(periods_s) < 2:
        return {}
    cuts = statistics.quantiles(periods_s, n=20, method="inclusive")
    return {f"step_s_p{5 * (i + 1):02d}": cuts[i] for i in (0, 4, 9, 14, 18)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What was used between the first and the last sample, in cores; None where nobody could look.

    Args:
        pressure: On CPUs, 0..1.
        busy, foreign: Of all CPUs that may be used: by everybody, and by others than the trial.
        quota_busy, quota_foreign: The same under the trial's quota.
        still: CPUs that stood still, on average, because the quota was used up.
    """

    pressure: float | None = None
    busy: float | None = None
    foreign: float | None = None
    quota_busy: float | None = None
    quota_foreign: float | None = None
    still: float | None = None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Rates:
        if len(samples) < 2:
            return cls()
        first, last = samples[0], samples[-1]
        seconds = (last.t_ns - first.t_ns) / 1e9

        def rate(before: float | None, after: float | None) -> float | None:
            return None if before is None or after is None else (after - before) / seconds

        own = (last.own_s - first.own_s) / seconds
        pressure = rate(first.pressure_us, last.pressure_us)
        busy, used = rate(first.busy_s, last.busy_s), rate(first.quota_s, last.quota_s)
        return cls(
            pressure=None if pressure is None else min(1.0, pressure / 1e6),
            busy=busy,
            foreign=None if busy is None else max(0.0, busy - own),
            quota_busy=used,
            quota_foreign=None if used is None else max(0.0, used - own),
            still=rate(first.still_s, last.still_s),
        )


def _is_full(foreign: float | None, busy: float | None, cpus: float) -> bool:
    """Nearly all of them were busy, and with others' work too."""
    if foreign is None or busy is None:
        return False
    return foreign >= CONTENDED_FOREIGN_FRAC * cpus and busy > BUSY_FRAC * cpus


def _adjusted(estimate: Estimate, factor: float, widen: float) -> Estimate:
    value = estimate.value * factor
    return replace(
        estimate,
        value=value,
        low=max(0.0, value - (estimate.value - estimate.low) * factor * widen),
        high=value + (estimate.high - estimate.value) * factor * widen,
    )


def _doubted(rate: Estimate, step: Estimate, counters: Mapping[str, float]) -> tuple[Estimate, Estimate]:
    """Intervals that hold as well where what was cut off the window was no start of its own."""
    low, high = counters.get("doubt_low", 1.0), counters.get("doubt_high", 1.0)
    slowest = step.value / low if low > 0.0 else math.inf
    return (
        replace(rate, low=min(rate.low, low * rate.value), high=max(rate.high, high * rate.value)),
        replace(step, low=min(step.low, step.value / high), high=max(step.high, slowest)),
    )


def _epoch_starts(rows: Sequence[StepRow], begin_ns: int, end_ns: int) -> dict[str, float]:
    """What a start of the training loader costs beyond a step, and how many the window holds; empty unseen.

    From all steps but the first, whose loader starts with the script.
    """
    steps = [
        (b.mark, (b.t_ns - a.t_ns - max(0, b.aside_ns)) / 1e9, begin_ns < b.t_ns <= end_ns)
        for a, b in itertools.pairwise(rows)
        if b.t_ns <= end_ns and not b.mark & COMPILE and not (b.mark & EVALUATION and b.aside_ns < 0)
    ]
    plain = [seconds for mark, seconds, _ in steps if not mark & LOADER]
    starts = [(seconds, inside) for mark, seconds, inside in steps if mark & LOADER]
    if not starts or len(plain) < len(starts):
        return {}
    usual = statistics.median(plain)
    return {
        "epoch_start_s": max(0.0, statistics.fmean(seconds - usual for seconds, _ in starts)),
        "epoch_starts": float(sum(inside for _, inside in starts)),
    }
