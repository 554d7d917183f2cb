"""Disturbances of a window: other processes, heat, limits, and the search itself."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.compare.break_even import LEAST_COMPILE_S
from autotune.launch.result.window import FEWEST_STEPS, LOST_BLOCKS_FRAC
from autotune.model.measurement import Contamination
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.disturbed import touched
from autotune.protocol.marks import COMPILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.result.host_samples import HostSample
    from autotune.launch.result.window import Window


BURSTY_RATIO = 1.05
CONTENDED_FOREIGN_FRAC = 0.10
CONTENDED_QUEUE_FRAC = 0.05
CONTENDED_PRESSURE_FRAC = 0.10
CONTENDED_STILL_FRAC = 0.05
"""Mean number of throttled CPUs, as a share of the quota."""
BUSY_FRAC = 0.85


def contamination_of(window: Window) -> Contamination:
    """Return the disturbances during the window, with their flags."""
    begin, end = window.closed.begin_ns, window.closed.end_ns
    # The search starts only once, so a later measurement is not disturbed by it.
    begin = max([begin, *(last for _, last in window.outside.disturbed if last < end)])
    inside = [s for s in window.outside.samples if begin <= s.t_ns <= end]
    queue_frac = sum(r.queue_ns for r in window.rows) / 1e9 / window.seconds
    rates, flags = _Rates.of(inside), list(window.outside.flags)
    flags += ["cpu_contended"] if _cpu_contended(window, queue_frac, rates) else []
    flags += ["cpu_throttled"] if _is_stopped(window, rates) else []
    devices = [d for d in window.outside.devices if begin <= d.t_ns <= end]
    flags += ["foreign_gpu"] if any(d.foreign for d in devices) else []
    flags += ["gpu_shared"] if any(d.resident for d in devices) else []
    flags += ["throttled"] if any(d.throttled for d in devices) else []
    errors = [d.ecc_errors for d in window.outside.devices if d.ecc_errors is not None]
    flags += ["ecc_errors"] if errors and errors[-1] > errors[0] else []
    if window.closed.steady in ("drifting", "no_steady_state"):
        flags.append(window.closed.steady)
    periods = [s for _, s in window.clean_rows()]
    middle = statistics.median(periods)
    if middle > 0 and statistics.fmean(periods) / middle > BURSTY_RATIO:
        flags.append("bursty")
    flags += ["recompiled"] if any(r.mark & COMPILE for r in window.rows) else []
    flags += ["compiled_late"] if window.closed.late_compile_s >= LEAST_COMPILE_S else []
    flags += ["alloc_cliff"] if window.closed.counters.get("alloc_retries", 0) > 0 else []
    flags += ["stopped"] if any(a < end and begin < b for a, b in window.outside.stops) else []
    flags += ["from_queue"] if window.is_from_queue() else []
    flags += ["short"] if window.closed.short else []
    flags += ["unsettled"] if window.closed.unsettled else []
    return Contamination(
        run_queue_frac=queue_frac,
        pressure_frac=rates.pressure,
        # Load on CPUs outside of the trial's quota does not slow it.
        foreign_cpu_frac=rates.foreign if window.outside.quota is None else rates.quota_foreign,
        flags=tuple(dict.fromkeys(flags)),
    )


def _cpu_contended(window: Window, queue_frac: float, rates: _Rates) -> bool:
    """Return whether other processes took CPU time that the trial needed.

    A trial with more threads than cores waits for itself. So delay counts only together with a busy machine
    and CPU time used outside the trial. Under a quota, processes that share it may also use it up.
    """
    delayed = queue_frac > CONTENDED_QUEUE_FRAC or (rates.pressure or 0.0) > CONTENDED_PRESSURE_FRAC
    if delayed and _is_full(rates.foreign, rates.busy, window.outside.cpus):
        return True
    stopped = queue_frac > CONTENDED_QUEUE_FRAC or _is_stopped(window, rates)
    quota = window.outside.quota
    return quota is not None and stopped and _is_full(rates.quota_foreign, rates.quota_busy, quota)


def _is_stopped(window: Window, rates: _Rates) -> bool:
    """Return whether the quota was used up, by any process, and its processes were throttled."""
    quota = window.outside.quota
    return quota is not None and (rates.still or 0.0) > CONTENDED_STILL_FRAC * quota


def lost_to_others(window: Window) -> Failure | None:
    """Return a Failure if most of the window was disturbed by device use, heat or a stopped script.

    While the search starts beside its first trial, it counts as another process.
    """
    stopped, clean = sum(window.stopped), len(window.stopped) - sum(window.stopped)
    if stopped and (clean < FEWEST_STEPS or stopped > LOST_BLOCKS_FRAC * len(window.stopped)):
        return Failure(
            kind=FailureKind.CONTENDED,
            message=f"the script was stopped during {stopped} of {len(window.stopped)} measured steps",
            evidence={"samples": len(window.stopped), "bad": stopped},
        )
    starting = touched([r.t_ns for r in window.rows], [r.t_ns for r in window.rows], window.outside.disturbed)
    if sum(starting) > LOST_BLOCKS_FRAC * len(starting):
        return Failure(
            kind=FailureKind.CONTENDED,
            message=f"the search was still starting in {sum(starting)} of {len(starting)} measured steps",
            evidence={"samples": len(starting), "bad": sum(starting)},
        )
    inside = [d for d in window.outside.devices if window.closed.begin_ns <= d.t_ns <= window.closed.end_ns]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """CPU use between the first and the last sample, in cores; None if unreadable.

    Args:
        pressure: CPU pressure, 0..1.
        busy, foreign: Use of all permitted CPUs: by all processes, and by those outside the trial.
        quota_busy, quota_foreign: The same under the trial's quota.
        still: Mean number of CPUs throttled by the quota.
    """

    pressure: float | None = None
    busy: float | None = None
    foreign: float | None = None
    quota_busy: float | None = None
    quota_foreign: float | None = None
    still: float | None = None

    @classmethod
    def of(cls, samples: Sequence[HostSample]) -> _Rates:
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
    """Return whether nearly all CPUs were busy, partly with foreign work."""
    if foreign is None or busy is None:
        return False
    return foreign >= CONTENDED_FOREIGN_FRAC * cpus and busy > BUSY_FRAC * cpus
