"""Allocator figures of the devices, and device time without synchronization. Inert without CUDA."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.model.facts import DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.trial.runtime.channel import Row


_MOST_PAIRS = 1024
"""Largest number of fetches or evaluations per step timed on the device; beyond it the host's time is used.
"""


@dataclass(slots=True)
class _Marked:
    """Row of a step, and the device events recorded up to its end."""

    row: Row
    end: Any
    asides: list[tuple[Any, Any]]
    fetches: list[tuple[Any, Any]]


class DeviceClock:
    """Periods between step ends as the device came by them.

    The host runs ahead of the device, so its time stamps of steps, waits and evaluations do not hold for the
    device. Here an event is recorded with each time stamp. Events are queried and reused; only `passed_ns`
    waits for one.

    Args:
        torch: The module.
        device: Index of the device that trains; events go to the stream current there.
    """

    def __init__(self, torch: Any, device: int) -> None:
        self._torch = torch
        self.device = device
        self._free: list[Any] = []
        self._pending: deque[_Marked] = deque()
        self._previous: Any = None
        self._asides: list[tuple[Any, Any]] = []
        self._fetches: list[tuple[Any, Any]] = []
        self._aside: Any = None
        self._fetch: Any = None
        self._broken = False

    def begin(self) -> None:
        """Start the next period now; called while the device is idle and all rows were returned."""
        if self._previous is not None:
            self._free.append(self._previous)
        self._asides, self._fetches = [], []
        self._previous = self._record()

    def mark(self, row: Row) -> None:
        """Record an event at a step's end, without waiting."""
        self._pending.append(_Marked(row, self._record(), self._asides, self._fetches))
        self._asides, self._fetches = [], []

    def aside_begins(self) -> None:
        """Record the start of an evaluation; work launched before it belongs to training."""
        self._aside = self._mark_safely()

    def aside_ends(self) -> None:
        """Record the end of an evaluation."""
        self._aside = self._pair(self._aside, self._asides)

    def aside_withdrawn(self) -> None:
        """Discard the start of an evaluation that was none."""
        if self._aside is not None:
            self._free.append(self._aside)
            self._aside = None

    def fetch_begins(self) -> None:
        """Record the start of a fetch."""
        self._fetch = self._mark_safely()

    def fetch_ends(self) -> None:
        """Record the end of a fetch; the device's idle time in between was a wait for data."""
        self._fetch = self._pair(self._fetch, self._fetches)

    def finished(self) -> Iterator[Row]:
        """Yield rows whose event has completed, with their period in milliseconds.

        Evaluation and wait in a row are device times.
        """
        while self._pending and self._pending[0].end.query():
            yield self._timed(self._pending.popleft())

    def passed_ns(self) -> int:
        """Wait for the last returned row; return its completion time on the host's clock."""
        event = self._record()
        event.synchronize()
        now = time.perf_counter_ns()
        since_ms = 0.0 if self._previous is None else float(self._previous.elapsed_time(event))
        self._free.append(event)
        return now - int(since_ms * 1e6)

    def _timed(self, marked: _Marked) -> Row:
        row = marked.row
        device_ms = -1.0
        if self._previous is not None:
            device_ms = float(self._previous.elapsed_time(marked.end))
            self._free.append(self._previous)
        self._previous = marked.end
        aside_ns, wait_ns = row[6], row[1]
        if aside_ns > 0 and 0 < len(marked.asides) < _MOST_PAIRS:
            aside_ns = self._elapsed_ns(marked.asides)
        if 0 < len(marked.fetches) < _MOST_PAIRS:
            wait_ns = min(wait_ns, self._elapsed_ns(marked.fetches))
        for pair in (*marked.asides, *marked.fetches):
            self._free.extend(pair)
        return (row[0], wait_ns, row[2], device_ms, row[4], row[5], aside_ns)

    @staticmethod
    def _elapsed_ns(pairs: list[tuple[Any, Any]]) -> int:
        return int(sum(float(begin.elapsed_time(end)) for begin, end in pairs) * 1e6)

    def _pair(self, begin: Any, pairs: list[tuple[Any, Any]]) -> None:
        if begin is not None and len(pairs) < _MOST_PAIRS:
            end = self._mark_safely()
            if end is not None:
                pairs.append((begin, end))

    def _mark_safely(self) -> Any:
        """Return a recorded event; None after a failure, so that the script's own call raises the error."""
        if self._broken:
            return None
        try:
            return self._record()
        except Exception:
            self._broken = True
            return None

    def _record(self) -> Any:
        cuda = self._torch.cuda
        event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self.device))
        return event


class DeviceMemory:
    """Allocator figures of the process; None and False where CUDA is not in use."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._initialised = False
        self._seen = (0.0, 0.0)
        self._retries_before = 0.0

    def attach(self, torch: Any) -> None:
        """Bind the imported torch module, without initializing CUDA."""
        self._torch = torch

    @property
    def on_cuda(self) -> bool:
        """Whether the script has initialized CUDA."""
        if not self._initialised:
            torch = self._torch
            self._initialised = torch is not None and bool(torch.cuda.is_initialized())
        return self._initialised

    @property
    def capturing(self) -> bool:
        """Return whether a CUDA graph is being captured; querying progress would break the capture."""
        return self.on_cuda and bool(self._torch.cuda.is_current_stream_capturing())

    def devices(self) -> list[int]:
        """Return the devices on which this process has had memory; else the current one."""
        if not self.on_cuda:
            return []
        cuda = self._torch.cuda
        used = [n for n in range(cuda.device_count()) if self._reserved(n, "peak") > 0]
        return used or [int(cuda.current_device())]

    def synchronise(self) -> None:
        """Wait for every used device; called only outside of windows."""
        for device in self.devices():
            self._torch.cuda.synchronize(device)

    def clock(self) -> DeviceClock | None:
        """Return a clock on the current device, or on the fullest if the current one holds no memory."""
        if not self.on_cuda:
            return None
        used, current = self.devices(), int(self._torch.cuda.current_device())
        device = current if current in used else max(used, key=lambda n: self._reserved(n, "current"))
        return DeviceClock(self._torch, device)

    def peak_bytes(self) -> int | None:
        """Return the largest number of bytes the allocator held on any device, warm-up included; None on CPU.

        It is never reset: a script may read torch's counters, and the peak at the start of a run is part of
        its need.
        """
        return max((int(self._reserved(n, "peak")) for n in self.devices()), default=None)

    def grew(self) -> bool:
        """Return whether an allocator requested driver memory or had to retry since the last call."""
        if not self.on_cuda:
            return False
        # Expandable segments grow without new segments; older versions count segments only.
        now = (self._total("num_device_alloc", "segment"), self._total("num_alloc_retries"))
        changed, self._seen = now != self._seen, now
        return changed

    def window_opens(self) -> None:
        """Count retries from now on; one in warm-up may come from autotuning of kernels."""
        self._retries_before = self._total("num_alloc_retries")

    def counters(self) -> Mapping[str, float]:
        """Return figures for the record; empty without CUDA.

        ``allocated_peak_bytes`` is the peak of tensors, ``reserved_bytes`` the memory that the allocator
        holds now, ``alloc_retries`` the number of retries after releasing memory inside the window.
        """
        used = self.devices()
        if not used:
            return {}
        return {
            "allocated_peak_bytes": max(self._bytes(n, "allocated_bytes", "peak") for n in used),
            "reserved_bytes": max(self._reserved(n, "current") for n in used),
            "alloc_retries": self._total("num_alloc_retries") - self._retries_before,
        }

    def facts(self) -> tuple[DeviceFacts, ...]:
        """Return the devices that this process uses, as visible to torch."""
        return tuple(self._facts(n) for n in self.devices())

    def _facts(self, device: int) -> DeviceFacts:
        held = self._torch.cuda.get_device_properties(device)
        uuid = str(getattr(held, "uuid", "") or "")
        return DeviceFacts(
            name=str(held.name),
            uuid=uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
            memory_bytes=int(held.total_memory),
            capability=(int(held.major), int(held.minor)),
        )

    def _stats(self, device: int) -> Mapping[str, Any]:
        return self._torch.cuda.memory_stats_as_nested_dict(device)

    def _bytes(self, device: int, what: str, which: str) -> float:
        return float(self._stats(device).get(what, {}).get("all", {}).get(which, 0))

    def _reserved(self, device: int, which: str) -> float:
        return self._bytes(device, "reserved_bytes", which)

    def _total(self, counter: str, older: str = "") -> float:
        """Return the sum of a counter over the devices in use."""
        total = 0.0
        for device in self.devices():
            stats = self._stats(device)
            if counter in stats:
                total += float(stats[counter])
            elif older:
                total += float(stats.get(older, {}).get("all", {}).get("allocated", 0))
        return total
