"""Further figures of a window, for reports: the ``extra`` of a measurement."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

from autotune.launch.result.window_energy import energy_of
from autotune.loss.learning_rate import RATE
from autotune.model.trial import STOPPED_S
from autotune.protocol.marks import COMPILE, EVALUATION, LOADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.result.window import Window
    from autotune.protocol.events import StepRow


def extra_of(window: Window, rate: float) -> dict[str, float]:
    """Return figures by name.

    Args:
        window: The measured steps.
        rate: Throughput of the window.
    """
    closed = window.closed
    counts = closed.evaluation_counts
    stopped_s = window.outside.stopped_s(window.outside.start_ns, closed.end_ns)
    return {
        **closed.counters,
        **window.reports.probed,
        "dirty_steps": float(
            sum(s is None or d for s, d in zip(window.trained_s, window.dirty, strict=True))
        ),
        "aside_s": sum(window.periods_s) - sum(s or 0.0 for s in window.trained_s),
        **({} if counts is None else {"evaluation_counts": float(counts)}),
        "graph_breaks": float(closed.graph_breaks),
        "skipped_scaler_steps": float(closed.skipped_scaler_steps),
        **_device_state(window),
        **energy_of(window),
        **_undelayed(window, rate),
        **_epoch_starts(window.reports.rows, closed.begin_ns, closed.end_ns),
        **_step_quantiles([seconds for _, seconds in window.clean_rows()]),
        **_rate(window),
        **({STOPPED_S: stopped_s} if stopped_s else {}),
    }


def _undelayed(window: Window, rate: float) -> dict[str, float]:
    """Return the throughput without the training thread's wait for a core, on CPU.

    For comparing runs on a loaded machine. No claim rests on it, as it ignores that other threads also
    waited.
    """
    if window.closed.allocator_peak_bytes is not None or not any(r.queue_ns for r in window.reports.rows):
        return {}
    clean = window.clean_rows()
    wall_s, delay_s = sum(seconds for _, seconds in clean), sum(row.queue_ns for row, _ in clean) / 1e9
    return {"undelayed_throughput": rate * wall_s / (wall_s - delay_s)} if delay_s < wall_s else {}


def _rate(window: Window) -> dict[str, float]:
    """Return the initial learning rate, if it was observed."""
    optimizer = window.reports.facts.optimizer if window.reports.facts is not None else None
    return {RATE: max(optimizer.rates)} if optimizer is not None and optimizer.rates else {}


def _device_state(window: Window) -> dict[str, float]:
    """Return clock, temperature and power in the window, which distinguish runs at different clocks."""
    if window.closed.allocator_peak_bytes is None:
        return {}
    begin, end = window.closed.begin_ns, window.closed.end_ns
    readings = [d for d in window.outside.devices if begin <= d.t_ns <= end]
    found: dict[str, float] = {}
    for name, values in (
        ("sm_clock_mhz", [d.sm_clock_mhz for d in readings]),
        ("temperature_c", [d.temperature_c for d in readings]),
        ("power_w", [d.power_w for d in readings]),
        ("device_busy_frac", [d.busy_frac for d in readings]),
        ("device_tensor_frac", [d.tensor_frac for d in readings]),
        ("device_dram_frac", [d.dram_frac for d in readings]),
    ):
        known = [float(v) for v in values if v is not None]
        if known:
            found[name] = max(known) if name == "temperature_c" else statistics.fmean(known)
    return found


def _step_quantiles(periods_s: Sequence[float]) -> dict[str, float]:
    """Return the 5, 25, 50, 75 and 95 % quantiles of the training steps' time."""
    if len(periods_s) < 2:
        return {}
    cuts = statistics.quantiles(periods_s, n=20, method="inclusive")
    return {f"step_s_p{5 * (i + 1):02d}": cuts[i] for i in (0, 4, 9, 14, 18)}


def _epoch_starts(rows: Sequence[StepRow], begin_ns: int, end_ns: int) -> dict[str, float]:
    """Return the cost of starting the training loader, beyond a step, and the number of starts.

    Computed from all steps but the first, whose loader starts with the script. Empty if no start was
    observed.
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
