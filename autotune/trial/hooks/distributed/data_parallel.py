"""`DistributedDataParallel`: its arguments, its communication hook, and what a run shows of both.

Arguments are replaced at construction, both by the script and by a framework. A hook of autotune is
registered right after that. It calls any hook that the script registers later.
"""

# Modules and buckets are of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import importlib
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Final

from autotune.model.facts import ParallelFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.model.config import Value
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

ARGUMENTS: Final = {
    "ddp_bucket_cap_mb": "bucket_cap_mb",
    "ddp_find_unused_parameters": "find_unused_parameters",
    "ddp_gradient_as_bucket_view": "gradient_as_bucket_view",
    "ddp_static_graph": "static_graph",
}
"""Knob -> argument of the constructor."""
COMPRESSION: Final = "ddp_comm_hook"
POWERSGD: Final = "ddp_powersgd_rank"
_POWERSGD_START: Final = 10
"""Steps with whole gradients before PowerSGD begins; PyTorch's default of 1000 outlasts a trial."""
_MB: Final = 2**20
_HOOKS: Final = "torch.distributed.algorithms.ddp_comm_hooks"
_DEFAULT_HOOKS: Final = f"{_HOOKS}.default_hooks"
_COMPRESSES: Final = {"fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16", "allreduce_hook": "none"}


class DataParallel:
    """Arguments and communication hooks of `DistributedDataParallel`.

    Args:
        state: Shared counters; `RuntimeState.refusals` receives what could not be set.
        undo: Restores the class.
        watches: Observe whether every parameter gets a gradient in every backward pass.
    """

    def __init__(self, state: RuntimeState, undo: Undo, *, watches: bool) -> None:
        self._state = state
        self._undo = undo
        self._watches = watches
        self._torch: Any = None
        self._settings: dict[str, Value] = {}
        self._wrappers: list[weakref.ref[Any]] = []
        self._last: dict[str, Value] = {}
        self._own_hooks: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._constructing = False
        self._facts: ParallelFacts | None = None
        self._sent = 0
        """Buckets that autotune's hook has sent."""
        self._used: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """Wrapper -> for each parameter, the least number of processes on which it got a gradient."""
        self.is_silent = False
        """Gradients are not exchanged, and processes diverge: a run for the ceiling."""
        self.no_sync_seen = False
        self.on_constructed: list[Callable[[Any], None]] = []
        """Called with every wrapper right after its construction."""
        self.on_construction: list[Callable[[Any], None]] = []
        """Called with every module right before it is wrapped."""

    def install(self, torch: Any) -> None:
        """Wrap the class."""
        cls: Any = getattr(torch.nn.parallel, "DistributedDataParallel", None)
        if cls is None:
            return
        self._torch = torch
        self._undo.assign(cls, "__init__", self._constructor(cls.__init__))
        self._undo.assign(cls, "register_comm_hook", self._registration(cls.register_comm_hook))
        self._undo.assign(cls, "no_sync", self._no_sync(cls.no_sync))

    def set(self, setting: str, value: Value) -> None:
        """Construct wrappers with this setting from now on."""
        self._settings[setting] = value

    def wrappers(self) -> list[Any]:
        """Return the wrappers that are alive."""
        return [wrapper for reference in self._wrappers if (wrapper := reference()) is not None]

    def observed(self, setting: str) -> Value | None:
        """Return the setting that all wrappers have, or had while they lived; None where they differ."""
        found = {self._of(wrapper, setting) for wrapper in self.wrappers()}
        if not found:
            return self._last.get(setting)
        value = found.pop() if len(found) == 1 else None
        if value is not None:
            self._last[setting] = value
        return value

    def facts(self) -> ParallelFacts | None:
        """Return what the run has shown; None without a wrapper."""
        wrappers = self.wrappers()
        if not wrappers:
            return self._facts
        distributed = importlib.import_module("torch.distributed")
        self._facts = ParallelFacts(
            wrapper="ddp",
            count=len(wrappers),
            backend=str(distributed.get_backend(wrappers[0].process_group)),
            gradient_bytes=sum(
                p.numel() * p.element_size() for w in wrappers for p in w.parameters() if p.requires_grad
            ),
            all_used=self._all_used(wrappers),
            no_sync=self.no_sync_seen,
            mixed_precision=any(w.mixed_precision is not None for w in wrappers),
        )
        return self._facts

    # Construction

    def _constructor(self, original: Any) -> Any:
        signature, state = inspect.signature(original), self._state

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if not state.active:
                original(this, *args, **kwargs)
                return
            bound = signature.bind(this, *args, **kwargs)
            wanted = {ARGUMENTS[k]: v for k, v in self._settings.items() if k in ARGUMENTS}
            bound.arguments.update(wanted)
            self._wraps(bound.arguments.get("module"))
            self._constructing = True
            try:
                original(*bound.args, **bound.kwargs)
            finally:
                self._constructing = False
            self._constructed(this)

        return init

    def _wraps(self, module: Any) -> None:
        try:
            for call in self.on_construction:
                call(module)
        except Exception as error:
            self._state.faults.note("data_parallel", error)

    def _constructed(self, wrapper: Any) -> None:
        self._wrappers = [reference for reference in self._wrappers if reference() is not None]
        self._wrappers.append(weakref.ref(wrapper))
        try:
            if self._sends and wrapper not in self._names:
                wrapper.register_comm_hook(self, self._hook(weakref.ref(wrapper)))
            if self._watches and wrapper.find_unused_parameters:
                self._watch(wrapper)
            for call in self.on_constructed:
                call(wrapper)
        except Exception as error:
            self._state.faults.note("data_parallel", error)

    def _no_sync(self, original: Any) -> Any:
        @functools.wraps(original)
        def no_sync(this: Any) -> Any:
            self.no_sync_seen = True
            return original(this)

        return no_sync

    # Communication hooks

    @property
    def _sends(self) -> bool:
        """True if autotune's hook sends the gradients."""
        form, rank = self._settings.get(COMPRESSION, "none"), self._settings.get(POWERSGD, 0)
        return self.is_silent or form in ("fp16", "bf16") or bool(rank)

    def _registration(self, original: Any) -> Any:
        """Record a hook of the script; where a wrapper has autotune's hook, that hook calls it."""
        state = self._state

        @functools.wraps(original)
        def register_comm_hook(this: Any, hook_state: Any, hook: Any) -> None:
            if not state.active or hook_state is self:
                original(this, hook_state, hook)
                return
            name = _COMPRESSES.get(getattr(hook, "__name__", ""), "own")
            self._names[this] = name if hook.__module__ == _DEFAULT_HOOKS else "own"
            if not self._sends or self._constructing:
                # A hook that the constructor itself registers belongs to its mixed precision.
                original(this, hook_state, hook)
                return
            self._own_hooks[this] = (hook_state, hook)

        return register_comm_hook

    def _hook(self, reference: weakref.ref[Any]) -> Any:
        """Return the hook for one wrapper."""
        hooks = importlib.import_module(_DEFAULT_HOOKS)
        debugging = importlib.import_module(f"{_HOOKS}.debugging_hooks")
        form, rank = self._settings.get(COMPRESSION), self._settings.get(POWERSGD, 0)
        lossy: Any = None
        kept: Any = None
        if rank:
            lossy = importlib.import_module(f"{_HOOKS}.powerSGD_hook")
            kept = lossy.PowerSGDState(
                None, matrix_approximation_rank=int(rank), start_powerSGD_iter=_POWERSGD_START
            )

        def send(_state: Any, bucket: Any) -> Any:
            self._sent += 1
            if self.is_silent:
                return debugging.noop_hook(None, bucket)
            wrapper = reference()
            group = None if wrapper is None else wrapper.process_group
            if lossy is not None:
                return lossy.powerSGD_hook(kept, bucket)
            own = None if wrapper is None else self._own_hooks.get(wrapper)
            if own is None:
                return getattr(hooks, f"{form}_compress_hook")(group, bucket)
            return getattr(hooks, f"{form}_compress_wrapper")(own[1])(own[0], bucket)

        # DDP compares annotations with its classes; those of this module are text.
        send.__annotations__.clear()
        return send

    # Reading

    def _of(self, wrapper: Any, setting: str) -> Value | None:
        if setting == "ddp_bucket_cap_mb":
            if getattr(wrapper, "bucket_bytes_cap_list", None):
                return None  # a size for each bucket
            size = wrapper.bucket_bytes_cap / _MB
            return int(size) if size == int(size) else size
        if setting in ARGUMENTS:
            return bool(getattr(wrapper, ARGUMENTS[setting]))
        own = self._names.get(wrapper, "none")
        if setting == POWERSGD:
            rank = self._settings.get(POWERSGD, 0)
            return (rank if self._sent else None) if rank else 0
        form = self._settings.get(COMPRESSION, "none")
        if form == "none":
            return own
        if own not in ("none", "own"):
            self._state.refusals[COMPRESSION] = "The script compresses its gradients itself."
            return own
        return form if self._sent else None

    def _watch(self, wrapper: Any) -> None:
        """Record the least number of processes on which each parameter got a gradient, pass by pass.

        DDP counts them in every backward pass and retains the counts until the next one. They are not set
        before the first pass.
        """
        torch = self._torch
        passed: list[None] = []

        def count(_: Any) -> None:
            passed.append(None)

        handles = [
            parameter.register_post_accumulate_grad_hook(count)
            for parameter in wrapper.parameters()
            if parameter.requires_grad
        ]

        def look(this: Any, _inputs: Any) -> None:
            if not passed or torch.compiler.is_compiling() or this.static_graph:
                return
            while handles:
                handles.pop().remove()
            now, before = this.reducer._get_local_used_map(), self._used.get(this)
            # No synchronization with the device.
            self._used[this] = now.clone() if before is None else torch.minimum(before, now)

        wrapper.register_forward_pre_hook(look)

    def _all_used(self, wrappers: list[Any]) -> bool | None:
        """Return whether every parameter got a gradient on every process in every pass seen.

        Without a search for unused parameters DDP itself ends a run in which a parameter got none.
        """
        found: list[bool] = []
        for wrapper in wrappers:
            if not wrapper.find_unused_parameters:
                found.append(True)
                continue
            counts = self._used.get(wrapper)
            if counts is None:
                return None
            found.append(int(counts.min()) >= int(wrapper.process_group.size()))
        return all(found)
