"""Every operation of one step with its arithmetic and its bytes, and what the machine can do at best.

Arithmetic is counted by the formulas of `torch.utils.flop_counter`; for attention on the CPU, which they
count as nothing in 2.13, by the same formula as for other devices.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import importlib
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.model.roofline import CountedStep, Machine, Op, work_of
from autotune.trial.runtime.queue_delay import QueueDelay

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

_CPU_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": 4.0,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 10.0,
}
"""Two products forward, five backward, each of 2 x batch x heads x queries x keys x width."""
_READS = ("_local_scalar_dense", "item")
_NO_WORK = ("detach", "is_same_size", "_local_scalar_dense", "lift_fresh", "alias")
_UNTOUCHED = ("empty", "new_empty")
"""Prefixes of operations that only reserve memory."""
_UNREAD = {
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), 0),
    **dict.fromkeys(("index_put_", "_index_put_impl_", "index_add_", "index_copy_"), 0),
    **dict.fromkeys(("scatter_", "scatter_add_", "nll_loss_forward", "nll_loss2d_forward"), 0),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), 1),
}
"""Operation -> place of an argument of which a few rows are touched at the most."""
_EXCHANGES = ("c10d", "_c10d_functional", "c10d_functional")
"""Namespaces of the operations of `torch.distributed`."""
_PEAK_SIZES = (256, 1024)
_PEAK_SIZE_CUDA = 4096
_WORKING_SETS = (256 * 1024, 4 * 1024 * 1024, 96 * 1024 * 1024)
_WORKING_SETS_CUDA = (32 * 1024 * 1024, 512 * 1024 * 1024)
_COPIES_CUDA = 16
"""Timed together: to start one and to wait for it takes as long as a copy within the cache."""
_REDUCED = {"cpu": ("bfloat16",), "cuda": ("bfloat16", "float16")}
_FLOAT8_FROM, _FLOAT8_RATE = (8, 9), 2.0
"""CUDA capability that multiplies in float8, and its rate over that of float16 (NVIDIA's data sheets)."""
TRY_S = 0.12
"""Seconds for which each peak is tried."""
_TRIES = 3
_CHAIN = 100


class Counted:
    """Counts of one step."""

    def __init__(self, torch: Any) -> None:
        self.ops: list[Op] = []
        self.reads = 0
        self.faults = 0
        self._own_s = 0.0
        self._fetch_s = 0.0
        self._begun_s = self._spent_s = 0.0
        self._delay: QueueDelay | None = None
        self._queued_ns = 0
        self._torch = torch
        self._formulas = importlib.import_module("torch.utils.flop_counter").flop_registry
        self._mode: Any = None

    @property
    def flops(self) -> float:
        """Return the arithmetic of the whole step."""
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
        note, clock = self._note, time.perf_counter

        class Counting(base):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                entered = clock()
                given = kwargs or {}
                begun = clock()
                out = func(*args, **given)
                note(func, args, given, out, entered=entered, begun=begun, ended=clock())
                return out

        self._mode = Counting()
        self._delay = QueueDelay()
        self._queued_ns -= self._delay.ns()
        self._begun_s = clock()
        self._mode.__enter__()

    def end(self) -> None:
        """Count no more."""
        mode, self._mode = self._mode, None
        if mode is not None and self._delay is not None:
            mode.__exit__(None, None, None)
            self._spent_s += time.perf_counter() - self._begun_s
            self._queued_ns += self._delay.ns()
            self._delay.close()

    @contextlib.contextmanager
    def fetching(self) -> Generator[None]:
        """Leave out what happens meanwhile: it prepares data and is no part of the step."""
        mode, begun_s = self._mode, time.perf_counter()
        if mode is None:
            yield
            return
        mode.__exit__(None, None, None)
        try:
            yield
        finally:
            mode.__enter__()
            self._fetch_s += time.perf_counter() - begun_s

    def step(self) -> CountedStep:
        """Return what was counted, as one step."""
        inside_s = sum(op.seconds for op in self.ops)
        outside_s = self._spent_s - self._fetch_s - self._own_s - inside_s
        return CountedStep(ops=tuple(self.ops), outside_s=max(0.0, outside_s), queued_s=self._queued_ns / 1e9)

    def _note(
        self, func: Any, args: Any, kwargs: Any, out: Any, *, entered: float, begun: float, ended: float
    ) -> None:
        try:
            packet = func._overloadpacket
            name = str(packet.__name__)
            if name in _READS:
                self.reads += 1
            self.ops.append(self._op(func, packet, name, args, kwargs, out, ended - begun))
        except Exception:
            self.faults += 1
            # Its time counts all the same: what is not known of it rules nothing out.
            self.ops.append(Op(flops=0.0, bytes=0.0, seconds=ended - begun))
        self._own_s += time.perf_counter() - ended + begun - entered

    def _op(self, func: Any, packet: Any, name: str, args: Any, kwargs: Any, out: Any, seconds: float) -> Op:
        tensors = [*self._tensors((args, tuple(kwargs.values()))), *self._tensors((out,))]
        dtype = str(next((t.dtype for t in reversed(tensors)), "torch.float32")).removeprefix("torch.")
        devices = {t.device.type for t in tensors}
        is_free = getattr(func, "is_view", False) or name in _NO_WORK or name.startswith(_UNTOUCHED)
        exchanges = getattr(func, "namespace", "") in _EXCHANGES
        formula = self._formulas.get(packet)
        if is_free or exchanges:
            flops = 0.0
        elif formula is not None:
            flops = float(formula(*args, **kwargs, out_val=out))
        elif name in _CPU_ATTENTION:
            flops = _attention(args, _CPU_ATTENTION[name])
        else:
            flops = 0.0
        return Op(
            flops=flops,
            bytes=0.0 if is_free or exchanges else self._moved(name, args, tensors),
            dtype=dtype,
            transfers=not is_free and len(devices) > 1 and name in ("copy_", "_to_copy"),
            communicates=exchanges,
            name=name,
            device=max(devices, key=lambda d: d != "cpu", default="cpu"),
            seconds=seconds,
            tensors=len(tensors),
        )

    def _moved(self, name: str, args: Any, tensors: Sequence[Any]) -> float:
        """Return bytes of what is read or written, each tensor once: no operation moves less."""
        at = 0 if name.endswith("_like") or name.startswith("new_") else _UNREAD.get(name)
        unread = args[at] if at is not None and at < len(args) else None
        return float(sum(_bytes(t) for t in {id(t): t for t in tensors}.values() if t is not unread))

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
    """Return the arithmetic from the query and the key, which follow the gradient in a backward pass."""
    first = 1 if factor > 4.0 else 0
    query, key = args[first].shape, args[first + 1].shape
    return factor * float(query[0] * query[1] * query[2] * key[2] * query[3])


def figures_of(counted: Counted, best: Machine, *, has_others: bool) -> Mapping[str, float]:
    """Return what `autotune.answer.bottleneck.Evidence` holds of a counted step, by field name."""
    work = work_of(counted.ops, best)
    peak = best.flops_per_s.get(counted.dtype) or max(best.flops_per_s.values(), default=0.0)
    return {
        "work_compute_s": work.compute_s,
        "work_memory_s": work.memory_s,
        "work_overhead_s": work.overhead_s,
        "work_transfer_s": work.transfer_s,
        "flops": counted.flops,
        "ops": float(len(counted.ops)),
        "reads": float(counted.reads),
        "collectives": float(sum(op.communicates for op in counted.ops) if has_others else 0),
        **({"peak_flops_per_s": peak} if peak else {}),
        "bytes_per_s": best.bytes_per_s[max(best.bytes_per_s)],
        "start_s": best.start_s,
    }


def has_others(torch: Any) -> bool:
    """Return whether other ranks take part; a group of one never waits."""
    group = getattr(torch, "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        return False
    return int(group.get_world_size()) > 1


def machine(torch: Any, device: str, dtypes: Sequence[str], *, try_s: float = TRY_S) -> Machine:
    """Measure what the machine does at best, on the device that trains; takes about ten times `try_s`.

    The best of several tries: what else runs on the machine makes a try slower, never faster.

    Args:
        torch: The module.
        device: ``cpu`` or ``cuda``.
        dtypes: In which arithmetic was seen.
        try_s: Seconds for which each peak is tried.
    """
    on_cuda = device == "cuda"
    wait = torch.cuda.synchronize if on_cuda else _nothing
    with torch.no_grad():
        flops = {name: rate for name in dtypes if (rate := _product(torch, device, name, wait, try_s))}
        sets = _WORKING_SETS_CUDA if on_cuda else _WORKING_SETS
        rates = {size: _copy(torch, device, device, size, wait, try_s) for size in sets}
        transfer = _copy(torch, "cpu", device, 64 * 1024 * 1024, wait, try_s) / 2.0 if on_cuda else 0.0
        start_s, dispatch_s = _start(torch, device, wait, try_s)
        return Machine(
            flops_per_s=flops,
            bytes_per_s=rates,
            start_s=start_s,
            transfer_bytes_per_s=transfer,
            dispatch_s=dispatch_s,
        )


def with_reduced(torch: Any, device: str, best: Machine, *, try_s: float = TRY_S) -> Machine:
    """Return the machine with the peaks of number formats of fewer bits, as far as it has them."""
    wait = torch.cuda.synchronize if device == "cuda" else _nothing
    flops = dict(best.flops_per_s)
    with torch.no_grad():
        for name in _REDUCED[device]:
            if name not in flops and (rate := _product(torch, device, name, wait, try_s)):
                flops[name] = rate
    if device == "cuda" and torch.cuda.get_device_capability() >= _FLOAT8_FROM:
        flops["float8"] = _FLOAT8_RATE * max(flops.values(), default=0.0)
    return replace(best, flops_per_s=flops)


def _product(torch: Any, device: str, name: str, wait: Callable[[], None], try_s: float) -> float:
    """Floating-point operations per second of a matrix product; 0 where there is none in that dtype."""
    dtype = getattr(torch, name, None)
    if dtype is None or not dtype.is_floating_point:
        return 0.0
    best, per_flop = 0.0, 0.0
    for size in (_PEAK_SIZE_CUDA,) if device == "cuda" else _PEAK_SIZES:
        flops = 2.0 * size**3
        if per_flop * flops > try_s * 2:
            break
        try:
            a = torch.randn(size, size, device=device).to(dtype)
            b = torch.randn(size, size, device=device).to(dtype)
            spent = _best(lambda a=a, b=b: torch.mm(a, b), wait, try_s)
        except RuntimeError:
            return best
        per_flop = spent / flops
        best = max(best, 1.0 / per_flop)
    return best


def _copy(torch: Any, source: str, target: str, size: int, wait: Callable[[], None], try_s: float) -> float:
    """Bytes per second read and written by a copy whose two tensors take `size` bytes together."""
    a = torch.ones(size // 8, device=source)
    b = torch.empty(size // 8, device=target)
    times = _COPIES_CUDA if source == target == "cuda" else 1

    def copies() -> None:
        for _ in range(times):
            b.copy_(a)

    return times * 2.0 * (size // 8) * 4 / _best(copies, wait, try_s)


def _start(torch: Any, device: str, wait: Callable[[], None], try_s: float) -> tuple[float, float]:
    """Measure the seconds of one operation on next to nothing.

    Returns:
        As training has it, from Python with its gradient; and the least from a call to its return.
    """
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
        least_s = min((op.seconds for op in counted.ops if op.bytes > 0), default=0.0)
        return _best(chain, wait, try_s) / max(1, len(counted.ops)), least_s


def _best(action: Callable[[], Any], wait: Callable[[], None], try_s: float) -> float:
    """Return the least seconds of one call, over at least three calls, for `try_s` seconds.

    Time in which the thread waited for a CPU is subtracted, as for the phases of a step.
    """
    action()
    wait()
    best, begun, tries = float("inf"), time.perf_counter(), 0
    with contextlib.closing(QueueDelay()) as delay:
        while tries < _TRIES or time.perf_counter() - begun < try_s:
            # Both readings of the delay are inside the stamps, so that not too much is subtracted.
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
