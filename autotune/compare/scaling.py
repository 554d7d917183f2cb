"""Throughput, efficiency and cost by number of processes, and the knee, from interleaved runs. Pure.

The runs belong to a study whose configs differ in the number of processes alone: rounds of the stage CONFIRM,
each with one fresh run per number. Ratios are paired by round, with the scatter and the floor of a
confirmation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autotune.compare.amortised_rate import amortised, mean_rate, rate_unit
from autotune.compare.rounds import confirmation_cycles, disturbed_pairs
from autotune.model.config import Config
from autotune.model.measurement import Estimate
from autotune.model.rank_figures import communication_frac
from autotune.model.trial import Stage
from autotune.statistics.intervals import ratio_interval
from autotune.statistics.spread import LEAST_SPREAD, TAU_SHARE, successive

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial

PROCESSES: Final = "processes"
"""Config key of the number of processes of a run; no knob of a search."""
HALF: Final = 0.5
"""Least share of the ideal gain of more processes: below it each added process costs twice as much as the
first."""
SAMPLES: Final = "samples/s"
_PER_MILLION: Final = 1e6
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Result of one number of processes.

    Args:
        processes: Number of processes.
        throughput: Mean over runs; None without a measured run.
        efficiency: Speedup over the fewest processes, divided by the factor of processes.
        cost: Cost of a million samples, in the unit of the price; None without a price.
        communication_frac: Share of a step in which a rank is blocked in communication; None if unknown.
        straggler: Rank that the others wait for in most runs; None without one.
        peak_bytes: Peak memory of the fullest rank; of the process tree without an accelerator.
        effective_batch: Samples per optimizer step of all processes; 0 if unknown.
        failure: Why a run yielded no figure; empty if all did.
    """

    processes: int
    throughput: Estimate | None = None
    efficiency: Estimate | None = None
    cost: Estimate | None = None
    communication_frac: float | None = None
    straggler: int | None = None
    peak_bytes: int | None = None
    effective_batch: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Result of a scaling study.

    Args:
        points: Results by number of processes.
        knee: Most processes up to which each step reached half of its ideal gain; None before two numbers
            were measured.
        is_clear: The intervals on both sides of the knee agree with it.
        price: Price of one process for an hour; 0 for none.
        unit: Unit of the throughput.
        set_aside: Number of runs excluded from ratios, as other processes used the machine meanwhile.
    """

    points: tuple[Point, ...]
    knee: int | None
    is_clear: bool
    price: float
    unit: str
    set_aside: int = 0

    @property
    def counts_samples(self) -> bool:
        """Whether samples are counted. Steps of different numbers of processes are not comparable."""
        return self.unit == SAMPLES

    @property
    def cheapest(self) -> int | None:
        """Number of processes with the least cost per sample; None without a throughput."""
        known = [p for p in self._comparable if p.throughput is not None and p.throughput.value > 0]
        each = {p.processes: p.processes / p.throughput.value for p in known if p.throughput is not None}
        return min(each, key=lambda count: each[count], default=None)

    @property
    def fastest(self) -> int | None:
        """Number of processes with the highest throughput; None without one."""
        known = {p.processes: p.throughput.value for p in self._comparable if p.throughput is not None}
        return max(known, key=lambda count: known[count], default=None)

    @property
    def _comparable(self) -> tuple[Point, ...]:
        return self.points if self.counts_samples else ()


def config_of(processes: int, fewest: int) -> Config:
    """Return the config of a run. The fewest processes are the reference of all others."""
    return Config() if processes == fewest else Config({PROCESSES: processes})


def processes_of(config: Config, fewest: int) -> int:
    """Return the number of processes of a config of `config_of`."""
    value = config.get(PROCESSES, fewest)
    return value if isinstance(value, int) else fewest


def own_processes(study: Study, fewest: int) -> int:
    """Return how many processes the script starts by itself, whatever its launcher starts; 0 if none.

    Args:
        study: Study of `autotune.driver.scaling`.
        fewest: Number of processes of the reference.
    """
    runs = ((processes_of(t.config, fewest), t.measurement) for t in study.finished())
    # A single process has no figures by rank.
    seen = ((requested, len(m.ranks)) for requested, m in runs if m is not None and m.ranks)
    return next((found for requested, found in seen if found != requested), 0)


def scaling(study: Study, counts: Sequence[int], price: float = 0.0) -> Scaling:
    """Return the results of the runs of this study.

    Args:
        study: Study of `autotune.driver.scaling`.
        counts: Numbers of processes, ascending.
        price: Price of one process for an hour, in any unit; 0 for none.
    """
    fewest = counts[0]
    configs = {count: config_of(count, fewest) for count in counts}
    cycles = confirmation_cycles(study)
    rates = {
        group: {c: amortised(study, t.measurement) for c, t in runs.items() if t.measurement is not None}
        for group, runs in cycles.items()
    }
    floor = max(LEAST_SPREAD, TAU_SHARE * successive(rates))
    points = tuple(_point(study, count, configs, cycles, rates, floor, price) for count in counts)
    found = Scaling(
        points=points,
        knee=None,
        is_clear=False,
        price=price,
        unit=rate_unit(study),
        set_aside=disturbed_pairs(study, Stage.CONFIRM, Config()),
    )
    if not found.counts_samples:
        return found
    knee, is_clear = _knee([p.processes for p in points if p.throughput is not None], configs, rates, floor)
    return replace(found, knee=knee, is_clear=is_clear)


def _point(
    study: Study,
    count: int,
    configs: Mapping[int, Config],
    cycles: Mapping[int, Mapping[Config, Trial]],
    rates: Mapping[int, Mapping[Config, float]],
    floor: float,
    price: float,
) -> Point:
    config, fewest = configs[count], next(iter(configs))
    runs = [(rates[g][config], t.measurement) for g, r in cycles.items() if (t := r.get(config)) is not None]
    measured = [(rate, m) for rate, m in runs if m is not None]
    failures = [t.failure for t in study.of(config) if t.failure is not None and t.failure.kind.teaches]
    failure = f"{failures[-1].kind.words}: {failures[-1].message}" if failures else ""
    if not measured:
        return Point(processes=count, failure=failure)
    throughput = mean_rate([(rate, m.throughput) for rate, m in measured], rate_unit(study))
    efficiency = _efficiency(count, fewest, configs, rates, floor) if throughput.unit == SAMPLES else None
    shares = [share for _, m in measured if (share := communication_frac(m.ranks)) is not None]
    late = [m.straggler.rank for _, m in measured if m.straggler is not None]
    common = max(late, key=late.count, default=None)
    return Point(
        processes=count,
        throughput=throughput,
        efficiency=efficiency,
        cost=_cost(throughput, count, price),
        communication_frac=math.fsum(shares) / len(shares) if shares else None,
        straggler=common if common is not None and 2 * late.count(common) > len(measured) else None,
        peak_bytes=max((b for _, m in measured if (b := m.memory.peak_bytes) is not None), default=None),
        effective_batch=measured[-1][1].effective_batch,
        failure=failure,
    )


def _efficiency(
    count: int,
    fewest: int,
    configs: Mapping[int, Config],
    rates: Mapping[int, Mapping[Config, float]],
    floor: float,
) -> Estimate | None:
    """Return the speedup over the fewest processes, divided by the factor of processes; 1 for the fewest."""
    if count == fewest:
        runs = sum(configs[fewest] in r for r in rates.values())
        return Estimate(value=1.0, low=1.0, high=1.0, n=runs, unit="ratio")
    speedup = _ratio(configs[count], configs[fewest], rates, floor)
    return None if speedup is None else _scaled(speedup, fewest / count)


def _ratio(
    config: Config, other: Config, rates: Mapping[int, Mapping[Config, float]], floor: float
) -> Estimate | None:
    """Return the rate of one config over that of another, paired by round; None without a pair."""
    pairs = [(r[config], r[other]) for r in rates.values() if config in r and other in r]
    logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]
    return ratio_interval(logs, tau=floor) if logs else None


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(
        value=estimate.value * factor,
        low=estimate.low * factor,
        high=estimate.high * factor,
        n=estimate.n,
        unit="ratio",
        confidence=estimate.confidence,
    )


def _cost(throughput: Estimate, count: int, price: float) -> Estimate | None:
    """Return the price of a million samples; None without a price or without samples."""
    if price <= 0.0 or throughput.value <= 0.0 or throughput.unit != SAMPLES:
        return None

    def each(rate: float) -> float:
        return price * count / _HOUR_S / rate * _PER_MILLION if rate > 0.0 else math.inf

    return Estimate(
        value=each(throughput.value),
        low=each(throughput.high),
        high=each(throughput.low),
        n=throughput.n,
        unit="per million samples",
        confidence=throughput.confidence,
    )


def _knee(
    counts: Sequence[int],
    configs: Mapping[int, Config],
    rates: Mapping[int, Mapping[Config, float]],
    floor: float,
) -> tuple[int | None, bool]:
    """Return the knee, and whether the intervals on both of its sides agree with it."""
    if len(counts) < 2:
        return None, False
    is_clear = True
    for fewer, more in itertools.pairwise(counts):
        gain = _ratio(configs[more], configs[fewer], rates, floor)
        least = 1.0 + HALF * (more / fewer - 1.0)
        if gain is None or gain.value < least:
            return fewer, is_clear and gain is not None and gain.high < least
        is_clear = is_clear and gain.low >= least
    return counts[-1], is_clear
