"""Results of one run of a script, each figure with its interval. Standard library only."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from autotune.model.config import Value
from autotune.model.rank_figures import RankFigures, Straggler

_LARGEST_RATIO = 100.0
"""A ratio above it is an artefact of too few pairs (intervals of two pairs in short searches end there)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with an interval, never a bare number.

    Args:
        value: Point estimate.
        low: Lower end of the two-sided interval.
        high: Upper end.
        n: Independent parts it rests on (blocks, pairs).
        unit: ``samples/s``, ``steps/s``, ``s``, ``ratio``, ``bytes``.
        confidence: Of the interval; above 0.95 where several candidates or looks share one claim.
    """

    value: float
    low: float
    high: float
    n: int
    unit: str
    confidence: float = 0.95

    @property
    def relative_width(self) -> float:
        """Width of the interval as a share of the value; infinite at zero."""
        return (self.high - self.low) / self.value if self.value else float("inf")

    @property
    def is_bounded(self) -> bool:
        """Return whether the interval of a ratio is informative: no end at 0, at infinity or above 100."""
        return self.n > 0 and self.low >= 0.005 and self.high <= _LARGEST_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """Mean loss of the steps that ended at this many samples.

    Args:
        samples: Samples consumed since the start of training, this step included.
        loss: Loss of the optimizer step (mean over its micro-steps).
        t_s: Seconds since the first step began, as the script ran (compile included).
    """

    samples: int
    loss: float
    t_s: float


class LossTrace(Sequence[LossPoint]):
    """Points of a loss, 24 bytes each in place of some 100 for an object of its own.

    A study holds the trace of every run during the search, which is most of the growth of a driver's memory.
    Every number is preserved bit for bit.
    """

    __slots__ = ("_numbers",)

    def __init__(self, points: Sequence[LossPoint]) -> None:
        self._numbers = array("d", [n for p in points for n in (p.samples, p.loss, p.t_s)])

    def __len__(self) -> int:
        return len(self._numbers) // 3

    @overload
    def __getitem__(self, index: int) -> LossPoint: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LossPoint, ...]: ...
    def __getitem__(self, index: int | slice) -> LossPoint | tuple[LossPoint, ...]:
        where = range(len(self))[index]
        return self._at(where) if isinstance(where, int) else tuple(map(self._at, where))

    def _at(self, index: int) -> LossPoint:
        samples, loss, t_s = self._numbers[3 * index : 3 * index + 3]
        return LossPoint(samples=int(samples), loss=loss, t_s=t_s)

    def __iter__(self) -> Iterator[LossPoint]:
        numbers = iter(self._numbers)
        # Three times the same iterator: it gives out three numbers at a time.
        for samples, loss, t_s in zip(numbers, numbers, numbers, strict=True):
            yield LossPoint(samples=int(samples), loss=loss, t_s=t_s)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LossTrace):
            return self._numbers.tobytes() == other._numbers.tobytes()
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @staticmethod
    def of(points: Sequence[LossPoint]) -> Sequence[LossPoint]:
        """Return the same points, packed where that is smaller and loses nothing."""
        if isinstance(points, LossTrace) or not points or max(abs(p.samples) for p in points) >= 2**53:
            return points
        return LossTrace(points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks in bytes; None where the machine or the run does not report them.

    Args:
        allocator: `torch.cuda.max_memory_reserved`.
        device: Used on the device as NVML counts it, context included.
        pss: Proportional set size of the whole process tree, sampled from outside.
        limit: What the trial was allowed: of the device where one trains, else of the machine.
    """

    allocator: int | None = None
    device: int | None = None
    pss: int | None = None
    limit: int | None = None

    @property
    def peak_bytes(self) -> int | None:
        """Return the limiting peak: the device's, else the process tree's.

        Device memory was sampled a few times a second, so the allocator may have had more.
        """
        figures = [figure for figure in (self.device, self.allocator) if figure is not None]
        return max(figures) if figures else self.pss


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """Evidence from outside the timing stream that something else used the machine.

    Args:
        run_queue_frac: Nanoseconds the trial's main thread was runnable but waiting, over wall.
        pressure_frac: CPU pressure (PSI `some`) during the window, 0..1; None where unreadable.
        foreign_cpu_frac: CPU time of processes outside the trial's tree, in cores; of those under the same
            quota where there is one.
        flags: ``cpu_contended``, ``cpu_throttled``, ``neighbour``, ``foreign_gpu``, ``gpu_shared``,
            ``throttled``, ``drifting``, ``no_steady_state``, ``bursty``, ``recompiled``, ``compiled_late``,
            ``alloc_cliff``, ``ecc_errors``, ``from_queue``, ``stopped``.
    """

    run_queue_frac: float = 0.0
    pressure_frac: float | None = None
    foreign_cpu_frac: float | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a knob in the running process.

    Args:
        knob: Name.
        wanted: Requested value; None if the knob was not requested.
        found: Value read back; None if it could not be read.
        status: ``applied``, ``refused``, ``not_reached``, or ``asis`` without a request.
        reason: Why not, as a sentence; when applied, the limits of the reading, else empty.
    """

    knob: str
    wanted: Value | None
    found: Value | None
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measured run.

    Args:
        throughput: Samples per second of the steady window (steps/s where samples are unconfirmed;
            see its unit). A ratio of sums, the wait for data included.
        step_time_s: Seconds per optimizer step, same window.
        data_wait_frac: Share of the window that the loop spent waiting for the next batch.
        memory: Peaks.
        loss: Trace from the first step on, thinned to at most some hundred points.
        compile_s: Seconds of compiling outside of the throughput, cold or warm cache: before the window, and
            in its steps that were set aside.
        late_compile_s: The same after the window, while the run continued for its loss, as for an evaluation
            with other shapes. 0 also if a run ended with its window.
        cold_compile: Whether the compile cache of this config was empty.
        startup_s: From the start of the process to the end of the first step, compile excluded.
        import_s: Part of `startup_s` in which the interpreter started and modules were imported. It is longer
            for first reads from disk. 0 in a study of an earlier version.
        setup_s: The rest of `startup_s`: models, data, the first step. 0 as above.
        warmup_s: From the end of the first step to the start of the window, compile excluded. 0 as above.
        warmup_steps: Steps before the window.
        steps: Steps inside the window.
        window_s: Length of the window.
        effective_batch: Samples per optimizer step in the window.
        contamination: Outside evidence.
        readings: One for every requested knob, and for all readable ones.
        ended: ``tight``, ``limit``, ``dominated`` or ``script_end``: reason for the end of measuring.
        ranks: One per rank of a distributed training; else empty.
        straggler: The rank that the others wait for, if there is one.
    """

    throughput: Estimate
    step_time_s: Estimate
    data_wait_frac: float
    memory: Memory
    loss: Sequence[LossPoint] = ()
    compile_s: float = 0.0
    cold_compile: bool = False
    startup_s: float = 0.0
    warmup_steps: int = 0
    steps: int = 0
    window_s: float = 0.0
    effective_batch: float = 0.0
    contamination: Contamination = field(default_factory=Contamination)
    readings: tuple[Reading, ...] = ()
    ended: str = "limit"
    extra: Mapping[str, float] = field(default_factory=dict[str, float])
    late_compile_s: float = 0.0
    import_s: float = 0.0
    setup_s: float = 0.0
    warmup_s: float = 0.0
    ranks: tuple[RankFigures, ...] = ()
    straggler: Straggler | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", LossTrace.of(self.loss))

    @property
    def all_compile_s(self) -> float:
        """Compiling that a run pays for beside its steps, before its window and after it."""
        return self.compile_s + self.late_compile_s

    def amortised(self, run_steps: int | None) -> float:
        """Throughput over a planned run of this many optimizer steps, compile charged to it.

        Args:
            run_steps: Length of the real run in steps of *this* config; None leaves it steady.
        """
        if not run_steps or self.step_time_s.value <= 0:
            return self.throughput.value
        steady_s = run_steps * self.step_time_s.value
        return self.throughput.value * steady_s / (steady_s + self.all_compile_s)
