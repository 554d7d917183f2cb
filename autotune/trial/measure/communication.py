"""Time and bytes of a rank's communication, measured without additional collectives.

There are two sources, which do not overlap. Calls from Python (`torch.distributed`'s functions and
`Work.wait`) are timed
on the host: FSDP2, DeepSpeed, manual reductions. Work that DDP's reducer starts in C++ is in DDP's own log:
`backward_comm_time` less its overlap with the backward pass is the rank's wait at its end. Both work with
gloo and NCCL. On CUDA a call returns before its work is done, so only DDP's log, which uses CUDA events, is a
time there.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from autotune.protocol.rank_log import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_REDUCTIONS: Final = {
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced", "reduce"), 0),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base"), 1),
}
"""Function -> index of the argument with a rank's input to the reduction."""
_OTHERS: Final = (
    *("broadcast", "all_gather", "all_gather_into_tensor", "_all_gather_base", "all_gather_coalesced"),
    *("gather", "scatter", "all_to_all", "all_to_all_single", "send", "recv", "barrier"),
    *("all_gather_object", "broadcast_object_list", "gather_object"),
)
_READ_NS: Final = 5_000_000
"""Least time between readings of DDP's log; one takes about 0.04 ms (2 cores, torch 2.13)."""
_HALF: Final = frozenset({"FP16_COMPRESS", "BF16_COMPRESS"})
"""Hooks in C++ that send two bytes of every four."""


class Communication:
    """Counts since the last step; `take` returns and resets them.

    Args:
        state: Shared counters of this process.
        undo: Restores the wrapped functions.
        on_cuda: Whether the script trains on CUDA.
    """

    def __init__(self, state: RuntimeState, undo: Undo, on_cuda: Callable[[], bool]) -> None:
        self._state = state
        self._undo = undo
        self._on_cuda = on_cuda
        self._depth = 0
        self._blocked_ns = 0
        self._bytes = 0
        self._called = False
        self._models: list[_Reducer] = []
        self._read_ns = 0

    def install(self, torch: Any) -> None:
        """Wrap communication functions; do nothing if this PyTorch has no `torch.distributed`."""
        distributed = torch.distributed
        if not distributed.is_available():
            return
        modules = (distributed, distributed.distributed_c10d)
        for name in (*_REDUCTIONS, *_OTHERS):
            original = getattr(distributed.distributed_c10d, name, None)
            if original is None:
                continue
            wrapped = self._timed(torch, original, _REDUCTIONS.get(name))
            for module in modules:
                if getattr(module, name, None) is original:
                    self._undo.assign(module, name, wrapped)
        work = distributed.distributed_c10d.Work
        self._undo.assign(work, "wait", self._timed(torch, work.wait, None))
        self._watch_ddp(torch)

    def take(self, now_ns: int) -> tuple[int, int | None]:
        """Return nanoseconds blocked (or `UNKNOWN`) and bytes reduced (or None) since the last step.

        Bytes are None if no gradient reduction was observed so far.
        """
        blocked_ns, size = self._blocked_ns, self._bytes
        self._blocked_ns = self._bytes = 0
        models = self._models
        if not models:
            if not self._called:
                return UNKNOWN, None
            return (UNKNOWN if self._on_cuda() else blocked_ns), size
        if now_ns - self._read_ns < _READ_NS:
            # Counts are held back until DDP's log covers the same steps.
            self._blocked_ns, self._bytes = blocked_ns, size
            return UNKNOWN, None
        self._read_ns = now_ns
        is_timed = True
        for model in tuple(models):
            exposed_ns, reduced = model.read()
            size += reduced
            is_timed = is_timed and exposed_ns is not None
            blocked_ns += exposed_ns or 0
        return (blocked_ns if is_timed else UNKNOWN), size

    def _timed(self, torch: Any, original: Any, given: int | None) -> Any:
        state, is_compiling = self._state, torch.compiler.is_compiling

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            # Dynamo replaces the original function by one that it can trace.
            if is_compiling() or not state.active or self._depth:
                return original(*args, **kwargs)
            self._depth = 1
            self._called = True
            begun_ns = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._blocked_ns += time.perf_counter_ns() - begun_ns
                self._depth = 0
                if given is not None:
                    self._bytes += _size(args, kwargs, given)

        return call

    def _watch_ddp(self, torch: Any) -> None:
        ddp = torch.nn.parallel.DistributedDataParallel
        original, sync = ddp.__init__, ddp._sync_buffers

        @functools.wraps(original)
        def build(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            try:
                self._models.append(_Reducer(this, self._models, is_sampled=self._on_cuda()))
            except Exception as error:
                self._state.faults.note("communication", error)

        self._undo.assign(ddp, "__init__", build)
        self._undo.assign(ddp, "_sync_buffers", self._timed(torch, sync, None))


class _Reducer:
    """One DDP model and the previous values of its log.

    Args:
        model: The wrapper.
        models: Collection that it is removed from after its deletion.
        is_sampled: Keep DDP's own sampling (the first 10 steps, then one of 100): on CUDA its log waits for
            events.
    """

    def __init__(self, model: Any, models: list[_Reducer], *, is_sampled: bool) -> None:
        self._model = weakref.ref(model, lambda _: models.remove(self))
        self._passes = 0
        self._exposed_ns: int | None = None
        if not is_sampled:
            model._set_ddp_runtime_logging_sample_rate(1)

    def read(self) -> tuple[int | None, int]:
        """Return nanoseconds that the rank was blocked (None if unknown) and bytes, since the last call."""
        model = self._model()
        if model is None:
            return None, 0
        log = model.logger._get_ddp_logging_data()
        counts = log.ints_map
        passes = int(counts.get("iteration", 0)) - self._passes
        self._passes += passes
        if "backward_comm_time" in counts:
            overlap_ns = counts.get("backward_compute_comm_overlap_time", 0)
            self._exposed_ns = max(0, int(counts["backward_comm_time"]) - int(overlap_ns))
        exposed_ns = None if self._exposed_ns is None else self._exposed_ns * passes
        # A hook in Python uses functions that are counted themselves.
        by_hook = bool(getattr(model, "_comm_hooks", ()))
        return exposed_ns, 0 if by_hook else passes * _bucket_bytes(log.strs_map)


def _bucket_bytes(texts: Any) -> int:
    sizes = texts.get("rebuilt_bucket_sizes") or texts.get("bucket_sizes") or ""
    whole = sum(int(word) for word in sizes.split(",") if word.strip().isdecimal())
    return whole // 2 if texts.get("comm_hook") in _HALF else whole


def _size(args: Any, kwargs: Any, place: int) -> int:
    """Return the bytes of the reduced tensors; 0-dimensional ones are figures for a log."""
    given: Any = args[place] if len(args) > place else next((kwargs[n] for n in _NAMES if n in kwargs), None)
    tensors = given if isinstance(given, (list, tuple)) else (given,)
    return sum(t.numel() * t.element_size() for t in tensors if hasattr(t, "element_size") and t.dim())


_NAMES: Final = ("input", "input_list", "tensor", "tensors")
