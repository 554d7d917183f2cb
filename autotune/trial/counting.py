"""Every operation of one step with its arithmetic and its bytes, and what the machine can do at best.

Arithmetic is counted by the formulas of `torch.utils.flop_counter`; for attention on the CPU, which they
count as nothing in 2.13, by the same formula as for other devices.
"""

# What scripts hand over is of any type; narrowing it yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import importlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from autotune.core.bottleneck import Machine, Op
from autotune.trial.phases import QueueDelay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CPU_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": 4.0,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 10.0,
}
"""Two products forward, five backward, each of 2 x batch x heads x queries x keys x width."""
_READS = ("_local_scalar_dense", "item")
_NO_WORK = ("detach", "is_same_size", "_local_scalar_dense", "lift_fresh", "alias")
_EXCHANGES = ("c10d", "_c10d_functional", "c10d_functional")
"""Namespaces of the operations of `torch.distributed`."""
_PEAK_SIZES = (256, 1024)
_PEAK_SIZE_CUDA = 4096
_WORKING_SETS = (256 * 1024, 4 * 1024 * 1024, 96 * 1024 * 1024)
_WORKING_SETS_CUDA = (4 * 1024 * 1024, 512 * 1024 * 1024)
_TRY_S = 0.12
_TRIES = 3
_CHAIN = 100


class Counted:
    """What was seen of one step."""

    def __init__(self, torch: Any) -> None:
        self.ops: list[Op] = []
        self.reads = 0
        self.faults = 0
        self._torch = torch
        self._formulas = importlib.import_module("torch.utils.flop_counter").flop_registry
        self._mode: Any = None

    @property
    def flops(self) -> float:
        """Of the whole step."""
        return sum(op.flops for op in self.ops)

    @property
    def dtype(self) -> str:
        """The one that most of the arithmetic is done in."""
        sums: Counter[str] = Counter()
        for op in self.ops:
            sums[op.dtype] += int(op.flops)
        return max(sums, key=lambda name: sums[name], default="float32")

    def begin(self) -> None:
        """Count from now on."""
        base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
        note = self._note

        class Counting(base):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                given = kwargs or {}
                out = func(*args, **given)
                note(func, args, given, out)
                return out

        self._mode = Counting()
        self._mode.__enter__()

    def end(self) -> None:
        """Count no more."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        try:
            packet = func._overloadpacket
            name = str(packet.__name__)
            if name in _READS:
                self.reads += 1
            self.ops.append(self._op(func, packet, name, args, kwargs, out))
        except Exception:
            self.faults += 1

    def _op(self, func: Any, packet: Any, name: str, args: Any, kwargs: Any, out: Any) -> Op:
        tensors = [*self._tensors((args, tuple(kwargs.values()))), *self._tensors((out,))]
        dtype = str(next((t.dtype for t in reversed(tensors)), "torch.float32")).removeprefix("torch.")
        if getattr(func, "namespace", "") in _EXCHANGES:
            return Op(flops=0.0, bytes=0.0, dtype=dtype, communicates=True)
        if getattr(func, "is_view", False) or name in _NO_WORK:
            return Op(flops=0.0, bytes=0.0, dtype=dtype)
        formula = self._formulas.get(packet)
        if formula is not None:
            flops = float(formula(*args, **kwargs, out_val=out))
        elif name in _CPU_ATTENTION:
            flops = _attention(args, _CPU_ATTENTION[name])
        else:
            flops = 0.0
        devices = {t.device.type for t in tensors}
        return Op(
            flops=flops,
            bytes=float(sum(_bytes(t) for t in tensors)),
            dtype=dtype,
            transfers=len(devices) > 1 and name in ("copy_", "_to_copy"),
        )

    def _tensors(self, items: Any, depth: int = 4) -> Iterator[Any]:
        for item in items:
            if isinstance(item, self._torch.Tensor):
                yield item
            elif depth and isinstance(item, (list, tuple)):
                yield from self._tensors(item, depth - 1)


def _bytes(tensor: Any) -> int:
    size = int(tensor.numel()) * int(tensor.element_size())
    try:
        # What is expanded is read from a smaller place.
        return min(size, int(tensor.untyped_storage().nbytes()))
    except RuntimeError:
        return size


def _attention(args: Sequence[Any], factor: float) -> float:
    """Of the query and the key, which come after the gradient in a backward pass."""
    first = 1 if factor > 4.0 else 0
    query, key = args[first].shape, args[first + 1].shape
    return factor * float(query[0] * query[1] * query[2] * key[2] * query[3])


def machine(torch: Any, device: str, dtypes: Sequence[str]) -> Machine:
    """Measure what the machine does at best, on the device that trains; takes about a second.

    The best of several tries: what else runs on the machine makes a try slower, never faster.

    Args:
        torch: The module.
        device: ``cpu`` or ``cuda``.
        dtypes: In which arithmetic was seen.
    """
    on_cuda = device == "cuda"
    wait = torch.cuda.synchronize if on_cuda else _nothing
    with torch.no_grad():
        flops = {name: rate for name in dtypes if (rate := _product(torch, device, name, wait))}
        sets = _WORKING_SETS_CUDA if on_cuda else _WORKING_SETS
        rates = {size: _copy(torch, device, device, size, wait) for size in sets}
        transfer = _copy(torch, "cpu", device, 64 * 1024 * 1024, wait) / 2.0 if on_cuda else 0.0
        return Machine(
            flops_per_s=flops,
            bytes_per_s=rates,
            start_s=_start(torch, device, wait),
            transfer_bytes_per_s=transfer,
        )


def _product(torch: Any, device: str, name: str, wait: Callable[[], None]) -> float:
    """Floating-point operations per second of a matrix product; 0 where there is none in that dtype."""
    dtype = getattr(torch, name, None)
    if dtype is None or not dtype.is_floating_point:
        return 0.0
    best, per_flop = 0.0, 0.0
    for size in (_PEAK_SIZE_CUDA,) if device == "cuda" else _PEAK_SIZES:
        flops = 2.0 * size**3
        if per_flop * flops > _TRY_S * 2:
            break
        try:
            a = torch.randn(size, size, device=device).to(dtype)
            b = torch.randn(size, size, device=device).to(dtype)
            spent = _best(lambda a=a, b=b: torch.mm(a, b), wait)
        except RuntimeError:
            return best
        per_flop = spent / flops
        best = max(best, 1.0 / per_flop)
    return best


def _copy(torch: Any, source: str, target: str, size: int, wait: Callable[[], None]) -> float:
    """Bytes per second read and written by a copy whose two tensors take `size` bytes together."""
    a = torch.ones(size // 8, device=source)
    b = torch.empty(size // 8, device=target)
    return 2.0 * (size // 8) * 4 / _best(lambda: b.copy_(a), wait)


def _start(torch: Any, device: str, wait: Callable[[], None]) -> float:
    """Seconds of one operation on next to nothing, as training has it: from Python, with its gradient."""
    value = torch.ones(8, device=device, requires_grad=True)

    def chain() -> None:
        h = value
        for _ in range(_CHAIN):
            h = h * 1.0001 + 0.0001
        h.sum().backward()

    with torch.enable_grad():
        counted = Counted(torch)
        counted.begin()
        try:
            chain()
        finally:
            counted.end()
        return _best(chain, wait) / max(1, len(counted.ops))


def _best(action: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Least seconds of one call, among as many as fit into a short time, three at least.

    What the thread waited for a CPU is taken off, as it is off the phases of a step.
    """
    action()
    wait()
    best, begun, tries = float("inf"), time.perf_counter(), 0
    with contextlib.closing(QueueDelay()) as delay:
        while tries < _TRIES or time.perf_counter() - begun < _TRY_S:
            # Both looks at the delay lie inside the stamps, so that no more is taken off than is in between.
            since = time.perf_counter_ns()
            queued = delay.ns()
            action()
            wait()
            queued = delay.ns() - queued
            spent = time.perf_counter_ns() - since - queued
            best = min(best, spent / 1e9)
            tries += 1
    return max(best, 1e-9)


def _nothing() -> None:
    return
