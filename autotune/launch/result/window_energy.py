"""Energy of a window's training steps, from the available counters."""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING

from autotune.devices.energy_counters import spent_j
from autotune.launch.result.window import LOST_BLOCKS_FRAC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.result.window import Window


def energy_of(window: Window) -> dict[str, float]:
    """Return the joules of the window's training steps, by counter; empty without counters.

    The same time counts as for the throughput. Steps set aside as a whole are assumed to use as much as the
    others.
    """
    counters = window.outside.energies
    spans, share = _counted_spans(window) if counters else ((), 0.0)
    if share <= LOST_BLOCKS_FRAC:
        return {}

    def spent(points: Sequence[tuple[int, float]]) -> float | None:
        joules = _spent_j(window, points, spans)
        return None if joules is None else joules / share

    found: dict[str, float] = {}
    cpu = spent([(s.t_ns, s.cpu_j) for s in counters if s.cpu_j is not None])
    if cpu is not None:
        found["energy_cpu_j"] = cpu
    if window.closed.allocator_peak_bytes is None:
        return found
    reported = (
        {d.uuid for d in window.reports.facts.devices} if window.reports.facts is not None else set[str]()
    )
    uuids = {uuid for s in counters for uuid in s.device_j}
    used = uuids & reported or (uuids if len(uuids) == 1 else set[str]())
    points = {u: [(s.t_ns, s.device_j[u]) for s in counters if u in s.device_j] for u in used}
    parts = [spent(each) for each in points.values()]
    known = [part for part in parts if part is not None]
    if known and len(known) == len(parts):
        found["energy_gpu_j"] = math.fsum(known)
    return found


def _counted_spans(window: Window) -> tuple[Sequence[tuple[int, int]], float]:
    """Return the time spans of the counted steps, and their share of all samples."""
    stamps = [window.closed.begin_ns, *(r.t_ns for r in window.rows)]
    stamps[-1] = max(stamps[-1], window.closed.end_ns)
    spans: list[tuple[int, int]] = []
    counted = whole = 0
    for i, (row, period_s, own_s) in enumerate(
        zip(window.rows, window.periods_s, window.trained_s, strict=True)
    ):
        each = row.samples if window.counts_samples else 1
        whole += each
        if own_s is None or window.dirty[i]:
            continue
        counted += each
        # An evaluation at the end of an epoch precedes the next step's own work.
        begin = min(stamps[i + 1], stamps[i] + round(1e9 * (period_s - own_s)))
        if spans and spans[-1][1] == begin:
            begin = spans.pop()[0]
        spans.append((begin, stamps[i + 1]))
    return spans, counted / whole if whole else 0.0


def _spent_j(
    window: Window, points: Sequence[tuple[int, float]], spans: Sequence[tuple[int, int]]
) -> float | None:
    """Return the energy of these spans; None if the readings of a counter do not resolve it.

    Power is assumed constant between two readings, unless one of them is in an excluded part. There only
    the time between readings inside the span counts, extrapolated to the rest.
    """
    times = [t_ns for t_ns, _ in points]
    window_ends = max(window.rows[-1].t_ns, window.closed.end_ns)
    joules, covered_ns = 0.0, 0
    for begin, end in spans:
        first, last = begin, end
        if begin != window.closed.begin_ns:
            at = bisect.bisect_left(times, begin)
            first = times[at] if at < len(times) else end
        if end != window_ends:
            at = bisect.bisect_right(times, end)
            last = times[at - 1] if at else begin
        if last <= first:
            continue
        part = spent_j(points, first, last)
        if part is None:
            return None
        joules, covered_ns = joules + part, covered_ns + last - first
    whole_ns = sum(end - begin for begin, end in spans)
    return joules * whole_ns / covered_ns if covered_ns > LOST_BLOCKS_FRAC * whole_ns else None
