"""A scaling study in words and as an object: one source for terminal, page, JSON and MLflow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from autotune.compare.scaling import HALF

if TYPE_CHECKING:
    from autotune.compare.scaling import Scaling
    from autotune.model.measurement import Estimate

COLUMNS: Final = ("processes", "throughput", "efficiency", "per million", "communication", "memory")
_NONE: Final = "-"


def figure(estimate: Estimate | None, digits: int = 3) -> str:
    """Return ``1,234 [1,200, 1,268]``; ``-`` without a figure. An interval without an end is left open."""
    if estimate is None:
        return _NONE
    value, low, high = (number(x, digits) for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def number(value: float, digits: int = 3) -> str:
    """Return a figure with `digits` significant digits: ``1,230``, ``0.0451``."""
    if not math.isfinite(value):
        return "?"
    if value == 0.0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits - 1 - math.floor(math.log10(abs(value)))):,.{places}f}"


def rows(found: Scaling) -> list[tuple[str, ...]]:
    """Return the cells of the table, by `COLUMNS`."""
    table: list[tuple[str, ...]] = []
    for point in found.points:
        share, peak = point.communication_frac, point.peak_bytes
        waits = _NONE if share is None else f"{100 * share:.0f} %"
        waits += "" if point.straggler is None else f" (rank {point.straggler} is late)"
        table.append(
            (
                str(point.processes),
                figure(point.throughput),
                figure(point.efficiency, 2),
                figure(point.cost),
                waits,
                _NONE if peak is None else f"{peak / 2**30:.2f} GiB",
            )
        )
    return table


def sentences(found: Scaling) -> list[str]:
    """Return the findings, a sentence each."""
    measured = [p for p in found.points if p.throughput is not None]
    sentences: list[str] = []
    if found.knee is not None:
        least = f"{100 * HALF:.0f} % of the ideal gain"
        if found.knee == measured[-1].processes:
            sentences.append(f"No knee up to {found.knee} processes: each step brings at least {least}.")
        else:
            sentences.append(
                f"The knee is at {_processes(found.knee)}: the next step brings less than {least}."
            )
        if not found.is_clear:
            sentences.append("The intervals do not settle the knee; more rounds narrow them.")
    if found.cheapest is not None and found.fastest is not None and len(measured) > 1:
        sentences.append(_best_counts(found.fastest, found.cheapest))
    sentences += [f"{_processes(p.processes).capitalize()}: {p.failure}." for p in found.points if p.failure]
    if not found.counts_samples and measured:
        sentences.append(
            "Samples could not be counted, so steps are shown, without efficiency, cost and knee."
        )
    batches = [p.effective_batch for p in measured if p.effective_batch > 0]
    if batches and max(batches) > min(batches):
        sentences.append(
            f"The effective batch is {batches[0]:g} with {_processes(measured[0].processes)} "
            f"and {batches[-1]:g} with {_processes(measured[-1].processes)}: these are different trainings."
        )
    if found.set_aside:
        runs = "One run is" if found.set_aside == 1 else f"{found.set_aside} runs are"
        sentences.append(f"{runs} in no ratio: other processes used the machine meanwhile.")
    return sentences


def _best_counts(fastest: int, cheapest: int) -> str:
    first = _processes(fastest).capitalize()
    verb = "is" if fastest == 1 else "are"
    if fastest == cheapest:
        return f"{first} {verb} fastest and {'costs' if fastest == 1 else 'cost'} least per sample."
    second = f"{_processes(cheapest)} {'costs' if cheapest == 1 else 'cost'}"
    return f"{first} {verb} fastest; {second} least per sample."


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"


def bars(found: Scaling, width: int = 40) -> list[str]:
    """Return a plot for a terminal: throughput as a bar, with a mark at the ideal one."""
    measured = [(p.processes, p.throughput.value) for p in found.points if p.throughput is not None]
    if not measured:
        return []
    fewest, base = measured[0]
    largest = max(max(rate, base * count / fewest) for count, rate in measured)
    lines: list[str] = []
    for count, rate in measured:
        filled = round(width * rate / largest)
        ideal = min(width - 1, max(filled, round(width * base * count / fewest / largest) - 1))
        bar = "█" * filled + "·" * (ideal - filled)
        lines.append(f"{count:>9}  {bar + ('|' if ideal >= filled else ''):<{width}}  {number(rate)}")
    return lines


def as_object(found: Scaling) -> dict[str, Any]:
    """Return the figures for JSON."""
    return {
        "unit": found.unit,
        "price_per_process_hour": found.price or None,
        "knee": found.knee,
        "knee_is_clear": found.is_clear,
        "fastest": found.fastest,
        "cheapest": found.cheapest,
        "runs_set_aside": found.set_aside,
        "points": [
            {
                "processes": p.processes,
                "throughput": _estimate(p.throughput),
                "efficiency": _estimate(p.efficiency),
                "cost_per_million_samples": _estimate(p.cost),
                "communication_frac": p.communication_frac,
                "straggler": p.straggler,
                "peak_bytes": p.peak_bytes,
                "effective_batch": p.effective_batch or None,
                "failure": p.failure or None,
            }
            for p in found.points
        ],
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    low, high = (x if math.isfinite(x) else None for x in (estimate.low, estimate.high))
    return {
        "value": estimate.value,
        "low": low,
        "high": high,
        "n": estimate.n,
        "unit": estimate.unit,
        "confidence": estimate.confidence,
    }
