"""The roofline of one training step: its operations, what the machine can do at best, the least time. Pure.

An operation takes no less than its arithmetic at the machine's peak, its bytes at the memory's rate, or what
starting any operation takes (S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual
performance model for multicore architectures", CACM 52 (4), 2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

HEADROOM: Final = 1.5
"""No operation is taken to run at more than this many times the best rate measured. Larger products than the
timed ones come closer to the peak, and what only reads needs less bandwidth than a copy."""
_FAST_CONVOLUTION: Final = 4.0
"""Times fewer multiplications than are counted: of F(4x4, 3x3) in A. Lavin, S. Gray, "Fast algorithms for
convolutional neural networks", CVPR 2016."""
_HALVES: Final = {"float32": 0.5, "float64": 0.25}
"""Bytes of a number in 16 bits over those in its own format."""
_CONVERSIONS: Final = ("_to_copy", "_amp_")
"""Operations that another format may make superfluous: conversions, and what a gradient scaler does."""
_PREFIX: Final = "ceiling_"
"""Prefix of a counted step's figures in `Measurement.extra`."""
_ALIKE: Final = 0.02
"""Largest relative difference in the work of counted steps that may represent others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a step, as it was dispatched.

    Args:
        flops: Counted from its shapes.
        bytes: Of the tensors that it reads or writes, each once; 0 for a view.
        dtype: Of its result.
        transfers: It copies between devices.
        communicates: It exchanges with other processes; what that takes is not in its size.
        name: As PyTorch names it, without the overload.
        device: Type of the device that does it.
        seconds: From its call to its return; on an accelerator not what it takes there.
        tensors: That it was given and returned.
    """

    flops: float
    bytes: float
    dtype: str = "float32"
    transfers: bool = False
    communicates: bool = False
    name: str = ""
    device: str = "cpu"
    seconds: float = 0.0
    tensors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Peak performance of this machine, measured on the training device.

    Args:
        flops_per_s: Matrix product rate by dtype.
        bytes_per_s: Working set in bytes -> rate of a copy, reads and writes counted.
        start_s: Time of one operation on almost no data, started from Python with its gradient.
        transfer_bytes_per_s: Rate between host and device; 0 if not measured.
        dispatch_s: Lower bound of `Op.seconds` for an operation on almost no data.
    """

    flops_per_s: Mapping[str, float]
    bytes_per_s: Mapping[int, float]
    start_s: float
    transfer_bytes_per_s: float = 0.0
    dispatch_s: float = 0.0

    def compute_s(self, op: Op) -> float:
        """Return the least time its arithmetic takes."""
        if op.flops <= 0 or not self.flops_per_s:
            return 0.0
        peak = self.flops_per_s.get(op.dtype) or max(self.flops_per_s.values())
        return op.flops / peak

    def memory_s(self, op: Op) -> float:
        """Return the least time its bytes take, by the rate of a working set of that size."""
        if op.bytes <= 0 or not self.bytes_per_s:
            return 0.0
        sizes = sorted(self.bytes_per_s)
        size = next((s for s in sizes if s >= op.bytes), sizes[-1])
        return op.bytes / self.bytes_per_s[size]

    def reduced_s(self, op: Op) -> float:
        """Return the least time it takes in any number format, never more than in its own."""
        if op.communicates or op.transfers or op.name.startswith(_CONVERSIONS):
            return 0.0
        if op.flops > 0:
            fewer = _FAST_CONVOLUTION if "convolution" in op.name else 1.0
            peak = max(self.flops_per_s.values(), default=math.inf)
            return op.flops / fewer / peak / HEADROOM
        moved = op.bytes * _HALVES.get(op.dtype, 1.0)
        # What is smaller than the largest working set may lie in a cache.
        largest = max(self.bytes_per_s, default=0)
        fastest = max(self.bytes_per_s.values(), default=math.inf)
        rate = self.bytes_per_s[largest] if 0 < largest <= moved else fastest
        return moved / rate / HEADROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Least seconds of one step's operations, each booked under what bounds it."""

    compute_s: float = 0.0
    memory_s: float = 0.0
    overhead_s: float = 0.0
    transfer_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Return the time of all operations."""
        return self.compute_s + self.memory_s + self.overhead_s + self.transfer_s


def work_of(ops: Iterable[Op], machine: Machine) -> Work:
    """Book every operation under the longest of what its arithmetic, its bytes and its start take."""
    sums: dict[str, float] = dict.fromkeys(("compute", "memory", "overhead", "transfer"), 0.0)
    for op in ops:
        if op.communicates:
            continue
        if op.transfers:
            rate = machine.transfer_bytes_per_s
            sums["transfer"] += max(machine.start_s, op.bytes / rate if rate else 0.0)
            continue
        times = {
            "overhead": machine.start_s,
            "compute": machine.compute_s(op),
            "memory": machine.memory_s(op),
        }
        kind = max(times, key=lambda k: times[k])
        sums[kind] += times[kind]
    return Work(
        compute_s=sums["compute"],
        memory_s=sums["memory"],
        overhead_s=sums["overhead"],
        transfer_s=sums["transfer"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """One step of a script, counted operation by operation.

    Args:
        ops: In their order.
        outside_s: Time of the step outside of operations, without fetching batches: Python, autograd, and
            what counting itself adds.
        queued_s: For so long the thread waited for a CPU, in operations or outside of them.
    """

    ops: Sequence[Op]
    outside_s: float
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """Bounds on the gain of other formats and of faster starts, in seconds of a step; see `remainder`.

    Args:
        reduced_s: Time of operations in the fastest number format; a lower bound.
        ops_s: Present time of operations, if each was timed: on a CPU.
        outside_s: Time outside of the operations' work, their starts included; an upper bound. As above.
        kernels_s: Time of operations without their starts; a lower bound. As above.
        gaps_s: Time between the operations of an accelerator; an upper bound. None on a CPU.
    """

    reduced_s: float
    ops_s: float | None = None
    outside_s: float | None = None
    kernels_s: float | None = None
    gaps_s: float | None = None

    def figures(self) -> dict[str, float]:
        """Return the figures, by names as in `Measurement.extra`."""
        known = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {_PREFIX + name: value for name, value in known if value is not None}

    @classmethod
    def of(cls, extra: Mapping[str, float]) -> Remainder | None:
        """Return the bounds from `figures`; None if they are missing."""
        known = {f.name: extra.get(_PREFIX + f.name) for f in fields(cls)}
        reduced_s = known.pop("reduced_s")
        return None if reduced_s is None else cls(reduced_s=reduced_s, **known)


def remainder(steps: Sequence[CountedStep], machine: Machine, *, device: str) -> Remainder | None:
    """Bound what other number formats, and faster starts of operations, can save of a step.

    *Formats.* Another format does not change the order of operations. So a step gets shorter by at most their
    present time less the minimum for arithmetic, memory and dispatch (`Machine.reduced_s`). On a CPU the
    present time is measured one by one. The counting code runs in between and leaves colder caches, which
    makes that time longer and the bound wider.

    *Starts.* They take at most the time outside of operations in a counted step, to which counting adds, and
    a fixed part of each operation. That part is at most the shortest operation's, once per tensor argument.
    Counters of an accelerator may include the gap before an operation; it is at most the time of starting one
    from Python.

    Args:
        steps: Consecutive counted steps.
        machine: Includes the peaks of reduced formats.
        device: Training device: ``cpu``, or ``cuda``.

    Returns:
        For formats the figures of the step with the largest saving; None if the steps differ in their work,
        so that a few of them cannot represent others.
    """
    if not steps or not _are_alike(steps):
        return None
    if device != "cpu":
        there = [[op for op in step.ops if op.device == device] for step in steps]
        return Remainder(
            reduced_s=min(math.fsum(map(machine.reduced_s, ops)) for ops in there),
            gaps_s=max(map(len, there)) * machine.start_s,
        )
    timed = [_timed(step, machine) for step in steps]
    most = max(timed, key=lambda t: t[0] - t[1])
    return Remainder(
        ops_s=most[0],
        reduced_s=most[1],
        outside_s=min(t[2] for t in timed),
        kernels_s=min(t[3] for t in timed),
    )


def _timed(step: CountedStep, machine: Machine) -> tuple[float, float, float, float]:
    """Return seconds in operations: now, in the fastest format, overhead alone, and without launches."""
    ops_s = reduced_s = started_s = 0.0
    for op in step.ops:
        ops_s += op.seconds
        least_s = min(machine.reduced_s(op), op.seconds / HEADROOM)
        reduced_s += max(least_s, min(machine.dispatch_s, op.seconds))
        started_s += min(op.seconds, machine.dispatch_s * max(1, op.tensors))
    kernels_s = max(0.0, ops_s - started_s - step.queued_s) / HEADROOM
    return ops_s, reduced_s, step.outside_s + started_s, kernels_s


def _are_alike(steps: Sequence[CountedStep]) -> bool:
    """Return whether all steps do the same arithmetic and move as many bytes, to 2 %."""
    for sums in (
        [math.fsum(op.flops for op in s.ops) for s in steps],
        [math.fsum(op.bytes for op in s.ops) for s in steps],
    ):
        if max(sums) - min(sums) > _ALIKE * max(sums):
            return False
    return True
