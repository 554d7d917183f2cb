"""The unfiltered window of a measurement, for recorders, with the disturbances of each block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.launch.result.window import MIN_BLOCK_S, Window
from autotune.protocol.marks import COMPILE, EVALUATION, LOADER
from autotune.testing.table import ASIDE, Blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.launch.result.host_samples import HostSamples
    from autotune.launch.result.process_reports import ProcessReports
    from autotune.protocol.events import Closed

_MARKS: Mapping[int, str] = {
    EVALUATION: "evaluation",
    COMPILE: "compile",
    4: "new_shape",
    8: "gc",
    LOADER: "loader_start",
    32: "allocator",
}
"""Bits of `autotune.protocol.events.StepRow.mark` in words."""


def raw_window(closed: Closed, reports: ProcessReports, outside: HostSamples) -> tuple[Blocks, float]:
    """Return the unfiltered window of a measurement, for recorders, with the disturbances of each block.

    Returns:
        Its blocks, with a separate block for a step without training; and the share of the consumed batches
        that was also produced inside the window. The throughput was reduced by that share.
    """
    window = Window.of(closed, reports, outside)
    return (_raw(window), window.kept_frac()) if window.rows else (Blocks(), 1.0)


def _raw(window: Window) -> Blocks:
    """Every step of the window in blocks; see `raw_window`."""
    groups = _groups(window)
    stamps = [window.closed.begin_ns, *(r.t_ns for r in window.rows)]
    delays = any(r.queue_ns for r in window.reports.rows)
    flags: list[str] = []
    for group in groups:
        marks = 0
        for i in group:
            marks |= window.rows[i].mark
        begin, end = stamps[group[0]], stamps[group[-1] + 1]
        seen = [d for d in window.outside.devices if begin <= d.t_ns < end]
        words = [word for bit, word in _MARKS.items() if marks & bit]
        words += [ASIDE] if window.trained_s[group[0]] is None else []
        words += ["foreign_gpu"] if any(d.foreign for d in seen) else []
        words += ["throttled"] if any(d.throttled for d in seen) else []
        flags.append(" ".join(words))
    apart_s = [p - (t or 0.0) for p, t in zip(window.periods_s, window.trained_s, strict=True)]
    return Blocks(
        num_steps=tuple(len(group) for group in groups),
        num_samples=tuple(sum(window.rows[i].samples for i in group) for group in groups),
        elapsed_s=tuple(round(math.fsum(window.periods_s[i] for i in group), 7) for group in groups),
        aside_s=tuple(
            0.0 if ASIDE in words else round(math.fsum(apart_s[i] for i in group), 7)
            for group, words in zip(groups, flags, strict=True)
        ),
        wait_s=tuple(round(sum(window.rows[i].wait_ns for i in group) / 1e9, 7) for group in groups),
        # A kernel without this figure leaves zeros throughout.
        run_delay_s=tuple(
            round(sum(window.rows[i].queue_ns for i in group) / 1e9, 7) if delays else None
            for group in groups
        ),
        flags=tuple(flags),
    )


def _groups(window: Window) -> list[list[int]]:
    """Return indices of consecutive steps, a block long; a step that is set aside is separate.

    Remaining steps before such a step, or at the end, join the block before it.
    """
    loader = window.reports.facts.loader if window.reports.facts else None
    fewest = max(1, loader.num_workers if loader else 1)
    groups: list[list[int]] = []
    begun: list[int] = []
    seconds = 0.0
    joins = False
    for index, trained in enumerate((*window.trained_s, None)):
        if trained is None:
            if begun and joins:
                groups[-1] += begun
            elif begun:
                groups.append(begun)
            groups += [[index]] if index < len(window.rows) else []
            begun, seconds, joins = [], 0.0, False
            continue
        begun.append(index)
        seconds += trained
        if seconds >= MIN_BLOCK_S * (1.0 - 1e-9) and len(begun) >= fewest:
            groups.append(begun)
            begun, seconds, joins = [], 0.0, True
    return groups
