"""What leaves the process: events, buffered steps at most four times a second."""

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
    """The event file of this process."""

    def __init__(self, path: Path, nonce: str) -> None:
        self._writer = Writer(path, nonce)
        self._rows: list[Row] = []
        self._flushed_ns = 0
        self._beat_ns = 0
        """When the launcher was last told of life alone; 0 where it has been told of steps since."""
        self.before_flush: Callable[[], None] | None = None
        """Hands over first what is not buffered yet."""

    def send(self, event: Event) -> None:
        """Write now, buffered steps first, so that the order on disk is the order of events."""
        self.flush()
        self._writer.write(event)

    def step(self, row: Row) -> None:
        """Buffer one step."""
        self._rows.append(row)
        if row[0] - self._flushed_ns > FLUSH_NS:
            self.flush()

    def steps(self, rows: Sequence[Row]) -> None:
        """The same of one or more steps."""
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
        """A sign of life where no step ends: an empty batch of steps.

        At most one a second, but always one where steps have been told of since the last: the launcher
        waits longer for a process whose last word was this.
        """
        now = time.perf_counter_ns()
        if now - self._beat_ns < BEAT_NS:
            return
        self.flush()
        self._beat_ns = now
        self._writer.write(Steps(rows=()))

    def close(self) -> None:
        """Force everything to disk."""
        self.flush()
        self._writer.sync()
