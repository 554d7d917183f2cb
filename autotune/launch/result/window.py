"""The measured steps of a segment, with their periods: the source of all figures."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.model.facts import COUNTED
from autotune.protocol.disturbed import spans, touched
from autotune.protocol.marks import trained_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.result.host_samples import HostSamples
    from autotune.launch.result.process_reports import ProcessReports
    from autotune.protocol.events import Closed, StepRow

MIN_BLOCK_S = 0.25
QUEUE_FALL_FRAC = 0.02
LOST_BLOCKS_FRAC = 0.5
FEWEST_STEPS = 3
"""A window with fewer steps left after a stop is measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The steps between two moments, with periods."""

    closed: Closed
    reports: ProcessReports
    outside: HostSamples
    rows: tuple[StepRow, ...]
    periods_s: tuple[float, ...]
    trained_s: tuple[float | None, ...]
    """None for a step that is set aside: no training, or a stopped script."""
    dirty: tuple[bool, ...]
    stopped: tuple[bool, ...]
    counts_samples: bool

    @classmethod
    def of(cls, closed: Closed, reports: ProcessReports, outside: HostSamples) -> Window:
        rows = tuple(r for r in reports.rows if closed.begin_ns < r.t_ns <= closed.end_ns)
        stamps = [closed.begin_ns, *(r.t_ns for r in rows)]
        if rows:
            # The window ends when the device has completed its last step, after the host.
            stamps[-1] = max(stamps[-1], closed.end_ns)
        periods = tuple((b - a) / 1e9 for a, b in itertools.pairwise(stamps))
        # The host runs ahead of the device. The process, which has the device's idle times, has checked that
        # both agree over the window.
        if closed.clock == "device" and rows and min(r.device_ms for r in rows) > 0:
            periods = tuple(r.device_ms / 1e3 for r in rows)
        facts = reports.facts
        trained = trained_s(
            [r.mark for r in rows],
            [r.aside_ns for r in rows],
            periods,
            counts=closed.evaluation_counts,
        )
        stopped = touched(stamps[:-1], stamps[1:], outside.stops)
        moved = tuple(None if still else s for s, still in zip(trained, stopped, strict=True))
        return cls(
            closed=closed,
            reports=reports,
            outside=outside,
            rows=rows,
            periods_s=periods,
            # Without any step there is no figure; `lost_to_others` rejects such a window.
            trained_s=moved if any(s is not None for s in moved) else trained,
            dirty=_dirty(stamps, outside),
            stopped=stopped,
            counts_samples=facts is not None
            and facts.samples_source in COUNTED
            and any(r.samples for r in rows),
        )

    @property
    def seconds(self) -> float:
        return sum(self.periods_s)

    def clean_rows(self) -> list[tuple[StepRow, float]]:
        """Return the training steps and their seconds; at least one, by the rule for setting steps aside."""
        return [(row, s) for row, s in zip(self.rows, self.trained_s, strict=True) if s is not None]

    def kept_frac(self) -> float:
        """Share of the consumed batches that were also produced inside the window."""
        consumed, fell = self._drained()
        if fell < 2 or fell < QUEUE_FALL_FRAC * consumed or fell >= consumed:
            return 1.0
        return (consumed - fell) / consumed

    def is_from_queue(self) -> bool:
        """Return whether all consumed batches were produced before the window."""
        consumed, fell = self._drained()
        return fell >= max(2.0, consumed)

    def _drained(self) -> tuple[float, float]:
        """Return the batches consumed, and the decrease of queued ones; 0 if unknown."""
        closed, facts = self.closed, self.reports.facts
        if closed.ready_begin is None or closed.ready_end is None or facts is None:
            return 0.0, 0.0
        # Consumed batches are those of all ranks, the loader that of rank 0.
        samples = sum(r.samples for r in self.rows) / facts.ranks
        batch = facts.loader.batch_size if facts.loader else None
        consumed = samples / batch if batch else len(self.rows) * facts.backward_per_step
        return consumed, float(closed.ready_begin - closed.ready_end)


def _dirty(stamps: Sequence[int], outside: HostSamples) -> tuple[bool, ...]:
    """Return the steps in which the script was stopped, the accelerator shared, or the search starting.

    Steps with reduced clocks are included. The trial is informed while it runs
    (`autotune.protocol.disturbed`) and measures longer.
    """
    spoilt = spans((d.t_ns, d.spoils) for d in outside.devices)
    return touched(stamps[:-1], stamps[1:], (*spoilt, *outside.stops, *outside.disturbed))
