"""Logs of all ranks, merged into the reports of rank 0: samples, losses, memory, figures per rank.

While it runs, rank 0 multiplies its own samples by the number of ranks. Here each step gets the sum over the
ranks. The loss is the mean over the ranks that computed one, which is the loss that averaged gradients
minimize. Memory is the maximum.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.model.measurement import LossPoint
from autotune.model.rank_figures import RankFigures, Straggler
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.rank_log import UNKNOWN, RankLog, file_name, read_rank_log
from autotune.statistics.intervals import mean_interval

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.launch.result.process_reports import ProcessReports
    from autotune.launch.result.window import Window
    from autotune.protocol.events import Closed, StepRow

NAMED_FROM = 0.03
"""Wait of the other ranks, as a share of a step, from which a rank is named as a straggler.

Below it the family of communication knobs is dropped as well (docs/decisions/0135).
"""
_FEWEST_BLOCKS = 3
_BLOCKS = 8
"""Number of blocks of a window for the interval of a straggler's share."""


def fold_ranks(reports: ProcessReports, folder: Path, ranks: int) -> None:
    """Add the logs of all ranks to the reports of rank 0; do nothing if one is missing.

    Args:
        reports: Reports of the trial.
        folder: Folder of the trial.
        ranks: Number of ranks started; a script may have started others itself.
    """
    ranks = max(ranks, 1 if reports.facts is None else reports.facts.ranks)
    if ranks == 1:
        ranks = sum(1 for _ in folder.glob(file_name("*")))
    logs = [log for rank in range(ranks) if (log := read_rank_log(folder, rank)) is not None]
    reports.ranks = tuple(logs)
    if len(logs) < ranks or ranks < 2:
        return
    before = [row.samples for row in reports.rows]
    reports.rows[:] = summed_rows(reports.rows, logs, ranks)
    for trial, closed in reports.closed.items():
        reports.closed[trial] = replace(
            closed,
            loss=_mean_trace(closed, before, reports.rows, logs),
            allocator_peak_bytes=_largest(closed, logs),
        )


def summed_rows(rows: Sequence[StepRow], logs: Sequence[RankLog], ranks: int) -> list[StepRow]:
    """Return the steps of rank 0 with the samples of all ranks.

    For a step that a rank has not logged, the samples of its last step are used: the last steps are missing
    if rank 0 ended first.
    """
    found: list[StepRow] = []
    for k, row in enumerate(rows):
        others = [log.samples[min(k, len(log.samples) - 1)] for log in logs[1:]]
        found.append(replace(row, samples=row.samples // ranks + sum(others)))
    return found


def _largest(closed: Closed, logs: Sequence[RankLog]) -> int | None:
    peaks = [log.peak_bytes for log in logs if log.peak_bytes is not None]
    own = [closed.allocator_peak_bytes] if closed.allocator_peak_bytes is not None else []
    return max([*peaks, *own], default=None)


def _mean_trace(
    closed: Closed, before: Sequence[int], rows: Sequence[StepRow], logs: Sequence[RankLog]
) -> tuple[LossPoint, ...]:
    """Return the trace of rank 0, averaged with the losses of the other ranks over the same steps."""
    counted = list(itertools.accumulate(before))
    true = list(itertools.accumulate(row.samples for row in rows))
    found: list[LossPoint] = []
    first = 0
    for point in closed.loss:
        last = min(bisect.bisect_left(counted, point.samples), len(true) - 1)
        means = [point.loss]
        for log in logs[1:]:
            losses = [x for x in log.losses[first : last + 1] if x is not None]
            means += [math.fsum(losses) / len(losses)] if losses else []
        mean = math.fsum(means) / len(means)
        found.append(LossPoint(samples=true[last] if true else point.samples, loss=mean, t_s=point.t_s))
        first = last + 1
    return tuple(found)


def rank_figures(window: Window) -> tuple[tuple[RankFigures, ...], Straggler | None]:
    """Return each rank's figures in the window, and the rank that the others wait for."""
    logs, rows = window.reports.ranks, window.rows
    if len(logs) < 2 or not rows:
        return (), None
    first = next(k for k, row in enumerate(window.reports.rows) if row.t_ns == rows[0].t_ns)
    found = tuple(_figures(log, first, first + len(rows), window.seconds) for log in logs)
    blocks = _wait_blocks(logs, first, len(rows))
    return found, straggler([figures.device for figures in found], blocks)


def _figures(log: RankLog, first: int, last: int, seconds: float) -> RankFigures:
    part = slice(first, last)
    samples, waits = log.samples[part], log.wait_ns[part]
    return RankFigures(
        rank=log.rank,
        device=log.device,
        steps=len(samples),
        samples_per_step=sum(samples) / len(samples) if samples else 0.0,
        input_wait_frac=min(1.0, sum(waits) / 1e9 / seconds) if seconds > 0 else 0.0,
        communication_frac=_blocked_frac(log, first, last),
        peak_bytes=log.peak_bytes,
        gradient_bytes=_bytes_per_step(log, first, last),
    )


def _bytes_per_step(log: RankLog, first: int, last: int) -> float | None:
    """Return the bytes passed to reductions per step; None if unknown.

    A figure covers all steps since the previous figure.
    """
    known = [k for k, size in enumerate(log.gradient_bytes[:last]) if k >= first and size is not None]
    if len(known) < 2:
        return None
    return sum(log.gradient_bytes[k] or 0 for k in known[1:]) / (known[-1] - known[0])


def _blocked_frac(log: RankLog, first: int, last: int) -> float | None:
    """Return the share of the steps' time in which a rank was blocked in communication; None if unknown.

    Each figure covers all steps since the previous one, so both sums begin there.
    """
    known = [k for k in range(max(first, 1), min(last, len(log.t_ns))) if log.communication_ns[k] != UNKNOWN]
    if len(known) < 2:
        return None
    blocked_ns = sum(log.communication_ns[k] for k in known[1:])
    spent_ns = log.t_ns[known[-1]] - log.t_ns[known[0]]
    return min(1.0, blocked_ns / spent_ns) if spent_ns > 0 else None


def _wait_blocks(logs: Sequence[RankLog], first: int, count: int) -> list[list[float]]:
    size = max(1, count // _BLOCKS)
    found: list[list[float]] = []
    for begin in range(first, first + count - size + 1, size):
        shares = [_blocked_frac(log, begin, begin + size + 1) for log in logs]
        if all(share is not None for share in shares):
            found.append([share or 0.0 for share in shares])
    return found


def straggler(devices: Sequence[str], blocks: Sequence[Sequence[float]]) -> Straggler | None:
    """Return the rank that the others wait for, or None.

    A rank that arrives late at a collective waits least in it; the others wait for that rank and for the
    transfer. So the others' wait beyond the smallest wait is the straggler's share.

    Args:
        devices: One per rank.
        blocks: Per block of steps and rank: share of the time in which the rank was blocked in communication.
    """
    if len(devices) < 2 or len(blocks) < _FEWEST_BLOCKS:
        return None
    means = [math.fsum(block[rank] for block in blocks) / len(blocks) for rank in range(len(devices))]
    slow = min(range(len(devices)), key=lambda rank: means[rank])
    others = [rank for rank in range(len(devices)) if rank != slow]
    waits = [math.fsum(block[rank] - block[slow] for rank in others) / len(others) for block in blocks]
    value, low, high = mean_interval(waits)
    if value < NAMED_FROM or low <= 0.0:
        return None
    return Straggler(rank=slow, device=devices[slow], wait_frac=value, low=low, high=high)


def with_rank(failure: Failure, logs: Sequence[RankLog]) -> Failure:
    """Return the failure with the rank whose loss broke first, where it is about a loss."""
    broken = [(at, log.rank) for log in logs if (at := log.broke_at) is not None]
    if failure.kind is not FailureKind.DIVERGED or not broken:
        return failure
    at, rank = min(broken)
    return replace(
        failure,
        message=f"{failure.message} (first in rank {rank}, at step {at + 1})",
        evidence={**failure.evidence, "rank": rank, "step": at + 1},
    )
