"""Samples of a trial process taken outside of it: by the guard, the launcher, and energy counters."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.devices.energy_counters import EnergySample
    from autotune.protocol.disturbed import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One sample of the process tree and the machine, by the guard.

    Args:
        t_ns: `time.perf_counter_ns()`.
        bytes: Memory of the process tree.
        busy_s: CPU seconds used so far on all CPUs that the trial may use; None if unreadable.
        own_s: CPU seconds of the process tree.
        pressure_us: Microseconds for which some task waited for a CPU (PSI); None if unreadable.
        quota_s: CPU seconds of all processes under the trial's quota; None without one, or if unreadable.
        still_s: Throttled time under that quota, summed over CPUs, in seconds.
        stopped: The script was stopped for some of the time since the previous sample: by a signal, with the
            whole machine, or with the guard.
    """

    t_ns: int
    bytes: int
    busy_s: float | None
    own_s: float
    pressure_us: float | None
    quota_s: float | None = None
    still_s: float | None = None
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One sample of the trial's accelerators, by the launcher.

    Args:
        used_bytes: Memory in use on the fullest of them.
        foreign: A process outside the trial's tree computed on one of them.
        throttled: Clocks were reduced by hardware: heat, slowdown, power brake.
        total_bytes: Memory of the fullest of them; 0 where unknown.
        sm_clock_mhz: Clock of the slowest of them; None if unknown.
        temperature_c: Temperature of the hottest of them.
        power_w: Power of all of them together.
        ecc_errors: Uncorrectable memory errors since the driver was loaded.
        resident: A process outside the tree was on one of them; whether it computed is unknown.
        busy_frac: Mean share of the time since the previous sample in which they computed; None if unknown.
        tensor_frac: The same for their tensor units.
        dram_frac: Share of their memory bandwidth in use.
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
        """Whether steps timed now are set aside."""
        return self.foreign or self.throttled


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSamples:
    """All samples of a trial taken outside its process.

    Args:
        start_ns: `perf_counter_ns` when its process was started.
        peak_bytes: Memory of its process tree.
        limit_bytes: Memory limit; 0 for none.
        cold: Its compile caches were empty.
        cpus: CPUs that this process may use, as ``busy_s`` counts them.
        quota: CPUs' worth of time that the trial may use, if that is less; else None.
        flags: Further contamination flags (``wrote_outside``).
        energies: Readings of energy counters, if there are any.
        disturbed: Times at which the search itself loaded the machine, as while it starts beside its first
            trial.
    """

    start_ns: int
    samples: Sequence[HostSample] = ()
    devices: Sequence[DeviceReading] = ()
    peak_bytes: int = 0
    limit_bytes: int = 0
    cold: bool = False
    cpus: int = field(default_factory=_usable_cpus)
    quota: float | None = None
    flags: tuple[str, ...] = ()
    energies: Sequence[EnergySample] = ()
    disturbed: Sequence[Span] = ()

    @property
    def stops(self) -> tuple[tuple[int, int], ...]:
        """Spans in which the script was stopped, from the sample before to the one after."""
        return tuple((a.t_ns, b.t_ns) for a, b in itertools.pairwise(self.samples) if b.stopped)

    def stopped_s(self, begin_ns: int, end_ns: int) -> float:
        """Return the seconds between two moments in which the script was stopped, counted like `stops`."""
        return sum(max(0, min(b, end_ns) - max(a, begin_ns)) for a, b in self.stops) / 1e9

    def until(self, t_ns: int) -> HostSamples:
        """Return the samples up to a moment, with the peak memory up to then.

        One later sample is included, as it reports whether the script was stopped before it.
        """
        count = sum(s.t_ns <= t_ns for s in self.samples)
        seen_bytes = max((s.bytes for s in self.samples[:count]), default=self.peak_bytes)
        return replace(
            self,
            samples=self.samples[: count + 1],
            devices=tuple(d for d in self.devices if d.t_ns <= t_ns),
            peak_bytes=min(seen_bytes, self.peak_bytes),
        )


def read_samples(rows: Iterable[Sequence[Any]]) -> tuple[HostSample, ...]:
    """Return the samples in the guard's result."""
    return tuple(
        HostSample(
            t_ns=int(r[0]),
            bytes=int(r[1]),
            busy_s=r[2],
            own_s=float(r[3]),
            pressure_us=r[4],
            quota_s=r[5] if len(r) > 5 else None,
            still_s=r[6] if len(r) > 6 else None,
            stopped=bool(r[7]) if len(r) > 7 else False,
        )
        for r in rows
    )
