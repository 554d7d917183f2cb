"""Event channel of the process; steps are buffered and written at most four times a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from autotune.protocol.events import Steps
from autotune.protocol.lines import Row, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.protocol.events import Event

FLUSH_NS = 250_000_000
BEAT_NS = 1_000_000_000

__all__ = ["BEAT_NS", "FLUSH_NS", "Channel", "Row"]


class Channel:
    """Event file of this process."""

    def __init__(self, path: Path, nonce: str) -> None:
        self._writer = Writer(path, nonce)
        self._rows: list[Row] = []
        self._flushed_ns = 0
        self._beat_ns = 0
        """Time of the last heartbeat; 0 if steps were reported since."""
        self.before_flush: Callable[[], None] | None = None
        """Hands over pending steps before a flush."""

    def send(self, event: Event) -> None:
        """Write an event now, after buffered steps, so that events on disk are in order."""
        self.flush()
        self._writer.write(event)

    def step(self, row: Row) -> None:
        """Buffer one step."""
        self._rows.append(row)
        if row[0] - self._flushed_ns > FLUSH_NS:
            self.flush()

    def steps(self, rows: Sequence[Row]) -> None:
        """Buffer one or more steps."""
        self._rows += rows
        if rows[-1][0] - self._flushed_ns > FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write the buffered steps."""
        if self.before_flush is not None:
            self.before_flush()
        self._flushed_ns = time.perf_counter_ns()
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        self._beat_ns = 0
        self._writer.write_rows(rows)

    def beat(self) -> None:
        """Send a heartbeat while no step ends: an empty batch of steps.

        At most one per second, but always one after a report of steps: the launcher allows more time after a
        heartbeat.
        """
        now = time.perf_counter_ns()
        if now - self._beat_ns < BEAT_NS:
            return
        self.flush()
        self._beat_ns = now
        self._writer.write(Steps(rows=()))

    def close(self) -> None:
        """Force all data to disk."""
        self.flush()
        self._writer.sync()
