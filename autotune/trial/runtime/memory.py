"""What the devices' allocators hold, and time on a device without waiting for it. Inert without CUDA."""

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
"""Fetches or evaluations of one step that are timed on the device; with more, the host's figure stands."""


@dataclass(slots=True)
class _Marked:
    """A step's row and what was recorded on the device until its end."""

    row: Row
    end: Any
    asides: list[tuple[Any, Any]]
    fetches: list[tuple[Any, Any]]


class DeviceClock:
    """Periods between step ends as the device came by them.

    The host runs ahead of the device, so its stamps are wrong step by step, and so is what it saw of
    waiting and of evaluation. Here an event is recorded where a stamp is taken; events are asked whether
    the device has passed them and reused, and nothing ever waits for one but `passed_ns`.

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
        """Let the next period begin now; called where the device is idle and every row was given out."""
        if self._previous is not None:
            self._free.append(self._previous)
        self._asides, self._fetches = [], []
        self._previous = self._record()

    def mark(self, row: Row) -> None:
        """Record an event at a step's end; nothing waits."""
        self._pending.append(_Marked(row, self._record(), self._asides, self._fetches))
        self._asides, self._fetches = [], []

    def aside_begins(self) -> None:
        """An evaluation begins; what was launched before it still belongs to training."""
        self._aside = self._mark_safely()

    def aside_ends(self) -> None:
        """Training goes on."""
        self._aside = self._pair(self._aside, self._asides)

    def aside_withdrawn(self) -> None:
        """What began was no evaluation."""
        if self._aside is not None:
            self._free.append(self._aside)
            self._aside = None

    def fetch_begins(self) -> None:
        """The loop asks for the next batch."""
        self._fetch = self._mark_safely()

    def fetch_ends(self) -> None:
        """It has the batch: the device waited for it as long as it was idle in between."""
        self._fetch = self._pair(self._fetch, self._fetches)

    def finished(self) -> Iterator[Row]:
        """Rows whose event the device has passed, with their period in milliseconds.

        Evaluation in a row is what it took of the device's time, and waiting what it made the device wait.
        """
        while self._pending and self._pending[0].end.query():
            yield self._timed(self._pending.popleft())

    def passed_ns(self) -> int:
        """When the device came by the last row that was given out, on the host's clock; waits."""
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
        """An event; None once that failed: an error of the device shall reach the script by its own call."""
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
        """Once torch is there; CUDA itself is never started by us."""
        self._torch = torch

    @property
    def on_cuda(self) -> bool:
        """The script has started CUDA."""
        if not self._initialised:
            torch = self._torch
            self._initialised = torch is not None and bool(torch.cuda.is_initialized())
        return self._initialised

    @property
    def capturing(self) -> bool:
        """Work goes into a CUDA graph instead of being done; to ask how far it is would break the graph."""
        return self.on_cuda and bool(self._torch.cuda.is_current_stream_capturing())

    def devices(self) -> list[int]:
        """Devices on which this process has had memory; the current one where there is none."""
        if not self.on_cuda:
            return []
        cuda = self._torch.cuda
        used = [n for n in range(cuda.device_count()) if self._reserved(n, "peak") > 0]
        return used or [int(cuda.current_device())]

    def synchronise(self) -> None:
        """Wait for every device that is used; called only where no window runs."""
        for device in self.devices():
            self._torch.cuda.synchronize(device)

    def clock(self) -> DeviceClock | None:
        """A clock on the current device, or on the fullest where nothing lies on the current one."""
        if not self.on_cuda:
            return None
        used, current = self.devices(), int(self._torch.cuda.current_device())
        device = current if current in used else max(used, key=lambda n: self._reserved(n, "current"))
        return DeviceClock(self._torch, device)

    def peak_bytes(self) -> int | None:
        """Highest number of bytes the allocator held on any device, warm-up included; None on CPU.

        It is never reset: a script may read torch's own counters, and what a run needs at its start it
        needs as well.
        """
        return max((int(self._reserved(n, "peak")) for n in self.devices()), default=None)

    def grew(self) -> bool:
        """Whether an allocator asked its driver for memory or had to retry since the last call."""
        if not self.on_cuda:
            return False
        # Growing in place (expandable segments) allocates no new segment; older versions count these alone.
        now = (self._total("num_device_alloc", "segment"), self._total("num_alloc_retries"))
        changed, self._seen = now != self._seen, now
        return changed

    def window_opens(self) -> None:
        """From now on a retry counts: one in warm-up may be a trial of kernels that need more."""
        self._retries_before = self._total("num_alloc_retries")

    def counters(self) -> Mapping[str, float]:
        """Figures for the record; empty without CUDA.

        ``allocated_peak_bytes`` is what tensors took at most, ``reserved_bytes`` what the allocator
        holds now, ``alloc_retries`` how often it had to give back and ask again inside the window.
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
        """The devices this process uses, as torch sees them."""
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
        """Sum of a counter over the devices in use."""
        total = 0.0
        for device in self.devices():
            stats = self._stats(device)
            if counter in stats:
                total += float(stats[counter])
            elif older:
                total += float(stats.get(older, {}).get("all", {}).get("allocated", 0))
        return total
