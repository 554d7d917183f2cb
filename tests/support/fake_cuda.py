"""A stand-in for `torch.cuda`: kernels that run behind the host's back, on a machine without a device.

The device is a queue. Launching costs the host little; the kernel begins when those before it are done. An
event completes when the device comes by it, asking is free, and waiting moves the host's clock. What waits
is counted with its time, so that a test can say that nothing waited inside a window. Names and signatures
are those of torch 2.13 (`test_fake_cuda.py` compares them).

Two clocks: `Virtual` jumps, for tests that drive our code by itself; `Real` sleeps, for real scripts in real
processes, which call `install(torch)` where they would start CUDA.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

GIB = 1024**3
_now, _sleep = time.perf_counter_ns, time.sleep


class Virtual:
    """Time that passes only when somebody says so."""

    def __init__(self, begin_ns: int = 10**12) -> None:
        self.ns = begin_ns

    def now(self) -> int:
        return self.ns

    def until(self, ns: float) -> None:
        self.ns = max(self.ns, int(ns))


class Real:
    """The machine's."""

    def now(self) -> int:
        return _now()

    def until(self, ns: float) -> None:
        while (left := ns - _now()) > 0:
            _sleep(left / 1e9)


class Stream:
    """A queue of a device, which runs beside the device's other queues."""

    def __init__(self, world: World, device: int, number: int = 0) -> None:
        self.world = world
        self.device_index = device
        self.stream_id = number
        self.free_ns = 0.0
        self.ends: list[float] = []

    def synchronize(self) -> None:
        self.world.wait("stream", self.free_ns)


class World:
    """The devices of a machine, as one process uses them.

    Args:
        devices: How many.
        clock: Of the host.
        total_bytes: Memory of each.
        launch_s: What a launch costs the host.
        queue: Launches that fit into a device's queue before the host has to wait.
    """

    def __init__(
        self,
        devices: int = 1,
        clock: Any = None,
        *,
        total_bytes: int = 24 * GIB,
        launch_s: float = 5e-6,
        queue: int = 50,
        capability: tuple[int, int] = (9, 0),
    ) -> None:
        self.clock = clock or Virtual()
        self.total_bytes = total_bytes
        self.launch_ns = launch_s * 1e9
        self.queue = queue
        self.capability = capability
        self.initialized = True
        self.current = 0
        self.capturing = False
        self.error: Exception | None = None
        """What every later call raises: an error of a kernel poisons the context."""
        self.streams = {n: Stream(self, n) for n in range(devices)}
        self.others: list[Stream] = []
        self.created = 0
        self.waits: list[tuple[str, int]] = []
        self.recorded = 0
        self.stats = [
            dict.fromkeys(("allocated", "allocated_peak", "reserved", "reserved_peak"), 0)
            for _ in self.streams
        ]
        self.counts = [{"num_alloc_retries": 0, "num_ooms": 0, "num_device_alloc": 0} for _ in self.streams]

    # The device

    def launch(self, seconds: float, device: int | None = None, stream: Stream | None = None) -> None:
        """Launch a kernel that takes so long."""
        self.check()
        queue = stream or self.streams[self.current if device is None else device]
        begin = self.clock.now() + self.launch_ns
        self.clock.until(begin)
        queue.ends = [end for end in queue.ends if end > begin]
        if len(queue.ends) >= self.queue:
            self.clock.until(queue.ends[-self.queue])
        queue.free_ns = max(queue.free_ns, float(self.clock.now())) + seconds * 1e9
        queue.ends.append(queue.free_ns)

    def side_stream(self, device: int = 0) -> Stream:
        """A further queue of a device."""
        self.others.append(Stream(self, device, len(self.others) + 1))
        return self.others[-1]

    def done_ns(self, device: int) -> float:
        """When the device will have done everything."""
        return max(s.free_ns for s in (self.streams[device], *self.others) if s.device_index == device)

    def host(self, seconds: float) -> None:
        """The host computes, or waits for something else than the device."""
        self.clock.until(self.clock.now() + seconds * 1e9)

    def read(self, device: int | None = None) -> None:
        """The script reads a value off the device, as `Tensor.item` does."""
        self.wait("item", self.streams[self.current if device is None else device].free_ns)

    def wait(self, what: str, until_ns: float) -> None:
        """The host waits for the device."""
        self.check()
        self.waits.append((what, self.clock.now()))
        self.clock.until(until_ns)

    def check(self) -> None:
        """Raise what the context is poisoned with."""
        if self.error is not None:
            raise self.error

    # Memory

    def allocate(self, size: int, device: int = 0, *, retry: bool = False) -> None:
        """Take memory; raises like torch where there is not enough."""
        held, counts = self.stats[device], self.counts[device]
        needed = held["allocated"] + size
        if needed > self.total_bytes:
            counts["num_ooms"] += 1
            counts["num_alloc_retries"] += 1
            import torch

            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU {device} has a total"
                f" capacity of {self.total_bytes / GIB:.2f} GiB of which 0.00 MiB is free."
            )
        held["allocated"] = needed
        if needed > held["reserved"]:
            held["reserved"] = needed
            counts["num_device_alloc"] += 1
        if retry:
            counts["num_alloc_retries"] += 1
        for what in ("allocated", "reserved"):
            held[f"{what}_peak"] = max(held[f"{what}_peak"], held[what])

    def free(self, size: int, device: int = 0) -> None:
        """Give memory back to the allocator, which keeps it."""
        self.stats[device]["allocated"] -= size

    def module(self) -> SimpleNamespace:
        """What stands in for `torch.cuda`."""
        world = self

        class Event:
            """As `torch.cuda.Event`: unusable before it was recorded."""

            def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
                self = super().__new__(cls)
                world.created += 1
                self.timing = enable_timing
                self.at_ns = None
                self.stream = None
                return self

            def record(self, stream=None):
                world.check()
                self.stream = stream or world.streams[world.current]
                self.at_ns = max(float(world.clock.now()), self.stream.free_ns)
                world.recorded += 1

            def query(self):
                if world.capturing:
                    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
                world.check()
                return self.at_ns is None or world.clock.now() >= self.at_ns

            def elapsed_time(self, end_event):
                world.check()
                if not (self.timing and end_event.timing):
                    raise ValueError("Both events must be created with argument 'enable_timing=True'.")
                if self.at_ns is None or end_event.at_ns is None:
                    raise ValueError("Both events must be recorded before calculating elapsed time.")
                if self.stream.device_index != end_event.stream.device_index:
                    raise RuntimeError("CUDA error: invalid resource handle")
                if not (self.query() and end_event.query()):
                    raise RuntimeError("CUDA error: device not ready")
                return (end_event.at_ns - self.at_ns) / 1e6

            def synchronize(self) -> None:
                world.wait("event", self.at_ns or 0)

            def wait(self, stream=None) -> None:
                target = stream or world.streams[world.current]
                target.free_ns = max(target.free_ns, self.at_ns or 0)

        def synchronize(device=None) -> None:
            if world.capturing:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            world.wait("device", world.done_ns(world.current if device is None else int(device)))

        def memory_stats_as_nested_dict(device=None):
            index = world.current if device is None else int(device)
            held = world.stats[index]

            def figure(what):
                now, peak = held[what], held[f"{what}_peak"]
                return {"all": {"current": now, "peak": peak, "allocated": peak, "freed": peak - now}}

            grown = world.counts[index]["num_device_alloc"]
            return {
                "allocated_bytes": figure("allocated"),
                "reserved_bytes": figure("reserved"),
                "segment": {"all": {"current": grown, "peak": grown, "allocated": grown, "freed": 0}},
                **world.counts[index],
            }

        def current_stream(device=None):
            return world.streams[world.current if device is None else int(device)]

        def get_device_properties(device=None):
            index = world.current if device is None else int(device)
            return SimpleNamespace(
                name="NVIDIA Fake",
                uuid=f"{index}abc",
                total_memory=world.total_bytes,
                major=world.capability[0],
                minor=world.capability[1],
            )

        def max_memory_reserved(device=None) -> int:
            return memory_stats_as_nested_dict(device)["reserved_bytes"]["all"]["peak"]

        def max_memory_allocated(device=None) -> int:
            return memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]

        def is_initialized():
            return world.initialized

        def is_current_stream_capturing() -> bool:
            return world.capturing

        def device_count() -> int:
            return len(world.streams)

        def current_device() -> int:
            return world.current

        def get_allocator_backend() -> str:
            return "native"

        return SimpleNamespace(
            Event=Event,
            synchronize=synchronize,
            memory_stats_as_nested_dict=memory_stats_as_nested_dict,
            current_stream=current_stream,
            get_device_properties=get_device_properties,
            max_memory_reserved=max_memory_reserved,
            max_memory_allocated=max_memory_allocated,
            is_initialized=is_initialized,
            is_current_stream_capturing=is_current_stream_capturing,
            device_count=device_count,
            current_device=current_device,
            get_allocator_backend=get_allocator_backend,
        )


def install(torch: Any, **more: Any) -> World:
    """Let a real torch without CUDA believe that it has been started; for scripts."""
    world = World(clock=Real(), **more)
    for name, value in vars(world.module()).items():
        setattr(torch.cuda, name, value)
    settings = {"expandable_segments": False, "garbage_collection_threshold": 0.0}
    torch.cuda.memory._snapshot = lambda device=None: {"allocator_settings": settings}
    return world
