"""Peak of the CUDA allocator, and device time without synchronising. Inert without CUDA."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.trial.channel import Row


class DeviceClock:
    """Periods between step ends on the device, by a ring of reused events."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._free: list[Any] = []
        self._pending: deque[tuple[Row, Any]] = deque()
        self._previous: Any = None

    def mark(self, row: Row) -> None:
        """Record an event at a step's end; nothing waits."""
        event = self._free.pop() if self._free else self._torch.cuda.Event(enable_timing=True)
        event.record()
        self._pending.append((row, event))

    def finished(self) -> Iterator[Row]:
        """Rows whose event the device has passed, with their period in milliseconds."""
        while self._pending and self._pending[0][1].query():
            row, event = self._pending.popleft()
            device_ms = -1.0
            if self._previous is not None:
                device_ms = float(self._previous.elapsed_time(event))
                self._free.append(self._previous)
            self._previous = event
            yield (row[0], row[1], row[2], device_ms, row[4], row[5], row[6])


class Memory:
    """Allocator figures of the process; None and False where CUDA is not in use."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._seen = (0, 0)

    def attach(self, torch: Any) -> None:
        """Once torch is there; CUDA itself is never started by us."""
        self._torch = torch

    @property
    def on_cuda(self) -> bool:
        """The script has started CUDA."""
        torch = self._torch
        return torch is not None and bool(torch.cuda.is_initialized())

    def synchronise(self) -> None:
        """Wait for the device; called only where no window runs."""
        if self.on_cuda:
            self._torch.cuda.synchronize()

    def clock(self) -> DeviceClock | None:
        """A clock on the device where there is one."""
        return DeviceClock(self._torch) if self.on_cuda else None

    def peak_bytes(self) -> int | None:
        """Highest number of bytes the allocator held, over all devices; None on CPU."""
        if not self.on_cuda:
            return None
        cuda = self._torch.cuda
        return max(int(cuda.max_memory_reserved(i)) for i in range(cuda.device_count()))

    def grew(self) -> bool:
        """Whether the allocator grew or had to retry since the last call."""
        if not self.on_cuda:
            return False
        stats = self._torch.cuda.memory_stats()
        now = (int(stats.get("segment.all.allocated", 0)), int(stats.get("num_alloc_retries", 0)))
        changed, self._seen = now != self._seen, now
        return changed
