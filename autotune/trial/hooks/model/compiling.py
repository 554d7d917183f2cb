"""Compile events, the script's own torch.compile, and in-place compilation of the root."""

from __future__ import annotations

import functools
import sys
import time
from types import FunctionType
from typing import TYPE_CHECKING, Any

from autotune.knobs.compile.compile_mode import CUDA_GRAPHS
from autotune.protocol.events import Compiling
from autotune.trial.hooks.model.compile_regions import Regions
from autotune.trial.hooks.model.cuda_graphs import CudaGraphs
from autotune.trial.hooks.model.dynamic_shapes import DynamicShapes
from autotune.trial.hooks.model.dynamo_graphs import Graphs
from autotune.trial.hooks.model.repeated_blocks import RepeatedBlocks
from autotune.trial.runtime.state import COMPILE, caller, is_ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.runtime.channel import Channel
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


_HOOKS_UNSEEN = "skip_nnmodule_hook_guards"
_NO_FALLBACK = ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit")
"""Newest name first; PyTorch 2.6 has only the second."""


class Compile:
    """Implements `CompileHook`."""

    def __init__(self, state: RuntimeState, undo: Undo, hooks: AfterImport, channel: Channel | None) -> None:
        self.recordings = CudaGraphs()
        self.graphs = Graphs(state, undo, hooks)
        self.shapes = DynamicShapes(state, self.graphs)
        self.blocks = RepeatedBlocks(state)
        self.regions = Regions(state, undo, self.blocks)
        self.regions.compiled = self._is_compiled
        self._state = state
        self._undo = undo
        self._hooks = hooks
        self._channel = channel
        self._mode: str | None = None
        self._real: Any = None
        self._inside = False
        self.own = False
        self._own_mode = "default"
        self.roots = 0
        self.called = False
        self.on_ended: list[Callable[[], None]] = []
        """Called when a knob's compilation ends during a run."""
        self.on_own_function: list[Callable[[], None]] = []
        """Called when the script compiles code other than a call of a trained module.

        Around such a call the replaced functions of torch are restored
        (`autotune.trial.hooks.model.trained_modules`). Otherwise code would be traced with them, and again
        after their removal.
        """

    def set(self, mode: str) -> None:
        """Compile the root in place in this mode, or override the script's own mode; ``off``: eager."""
        self._mode = mode

    def end(self) -> bool:
        """Run trained modules eagerly from the next call on; return False if the script compiles them."""
        if self.own:
            return False
        self._mode = None
        self.roots = 0
        for call in self.regions.calls:
            call.release()
        for callback in self.on_ended:
            callback()
        return True

    def observed(self) -> str | None:
        """Return the mode in effect; None before the first training call and after a fallback."""
        if not self.called or "compile" in self._state.faults.off:
            return None
        if self.own:
            mode = self._mode or self._own_mode
        else:
            mode = self._mode if self._mode not in (None, "off") and self.roots else "off"
        if mode in (None, "off"):
            return "off"
        if self._compiled_frames():
            missing = self.recordings.missing() if mode in CUDA_GRAPHS else None
            if missing is not None:
                self._state.refusals["compile_mode"] = missing
            return mode if missing is None else None
        self._state.refusals.setdefault(
            "compile_mode", "Nothing of the model was compiled: it still runs eagerly."
        )
        return None

    def _compiled_frames(self) -> bool:
        if not self._state.compile_events:
            return False
        utils: Any = sys.modules.get("torch._dynamo.utils")
        frames = getattr(utils, "counters", {}).get("frames", {})
        return not frames or frames.get("ok", 0) > 0

    @property
    def wanted(self) -> bool:
        """Whether autotune compiles the roots."""
        return not self.own and self._mode not in (None, "off")

    @property
    def replays(self) -> bool:
        """Whether the mode set by autotune returns tensors in the memory of CUDA graphs."""
        return self._mode in CUDA_GRAPHS and (self.own or self.roots > 0)

    @property
    def active(self) -> bool:
        """Return whether code is or will be compiled in this process."""
        return self.own or self._mode not in (None, "off")

    def graph_breaks(self) -> int:
        """Return the graph breaks counted by dynamo."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        return sum(getattr(utils, "counters", {}).get("graph_break", {}).values())

    def inner_of(self, root: Any) -> Callable[..., Any] | None:
        """Return the compiled call of a new root; None for eager."""
        if self.own or self._mode in (None, "off"):
            return None
        self.roots += 1
        return None if self.regions.take(root, self._compiled) else self._compiled(root)

    def _compiled(self, module: Any) -> Callable[..., Any]:
        self._inside = True
        try:
            call = module._call_impl
            if type(module).__module__.startswith("torch.nn"):
                # Dynamo runs the frames of torch's own modules eagerly, but traces a function of autotune.
                call = _through(module)
            return self._real(call, mode=self._mode, **self.shapes.keywords())
        finally:
            self._inside = False

    def _is_compiled(self) -> bool:
        return self.called and (self.own or self.roots > 0) and self._compiled_frames()

    def install(self, torch: Any) -> None:
        """Wrap `torch.compile`, and register a callback for dynamo."""
        self._real = original = torch.compile
        self.recordings.install(torch)
        self.blocks.install(torch)
        self.graphs.install(torch)
        state = self._state

        @functools.wraps(original)
        def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not state.active or self._inside or kwargs.get("disable") or _is_a_librarys(model):
                return original(model, *args, **kwargs)
            self._state.calm.leave()
            self.own = True
            if not self._is_trained(model):
                for callback in self.on_own_function:
                    callback()
            self._own_mode = str(kwargs.get("mode") or "default")
            if self._mode == "off":
                return self._eager_wrapper if model is None else self._eager_wrapper(model)
            if self._mode is not None:
                kwargs["mode"] = self._mode
                kwargs.pop("options", None)
            kwargs.update(self.shapes.keywords())
            self._inside = model is not None
            try:
                return original(model, *args, **kwargs)
            finally:
                self._inside = False

        self._undo.assign(torch, "compile", compile_)
        self._hooks.on("torch._dynamo", self._dynamo)

    @staticmethod
    def _eager_wrapper(model: Any) -> Any:
        """Return the module in the wrapper that compilers return, so that checkpoint keys are the same."""
        torch: Any = sys.modules["torch"]
        return torch._dynamo.disable(model) if isinstance(model, torch.nn.Module) else model

    def _is_trained(self, model: Any) -> bool:
        """Return whether this is a module with trainable weights, or the call of one (`Module.compile`)."""
        module: Any = getattr(model, "__self__", None) if _name(model) == "_call_impl" else model
        if not isinstance(module, sys.modules["torch"].nn.Module):
            return False
        return any(p.requires_grad for p in module.parameters())

    def _dynamo(self, dynamo: Any) -> None:
        try:
            config: Any = sys.modules["torch._dynamo.config"]
            self._forbid_fallback(config)
            self._guard_hooks(config)
            handler = sys.modules["torch._dynamo.callback"].callback_handler
            handler.register_start_callback(self._began)
            handler.register_end_callback(self._ended)
        except Exception as error:
            self._state.faults.note("compile_events", error)

    def arm(self) -> None:
        """Forbid silent eager fallbacks in compiled trials, also if dynamo was loaded before."""
        config = sys.modules.get("torch._dynamo.config")
        self._forbid_fallback(config)
        self._guard_hooks(config)

    def _guard_hooks(self, config: Any) -> None:
        """Guard on hooks that the script registers later, as it did not request compiled code."""
        if self.wanted and getattr(config, _HOOKS_UNSEEN, False):
            self._undo.assign(config, _HOOKS_UNSEEN, False)

    def _forbid_fallback(self, config: Any) -> None:
        """Forbid fallbacks only in measured trials with a mode by autotune; a real training may fall back."""
        if self._channel is None or self._mode in (None, "off"):
            return
        for name in _NO_FALLBACK:
            if hasattr(config, name):
                setattr(config, name, True)
                return

    def _began(self, *args: object) -> None:
        state = self._state
        if not state.active:
            return
        self.recordings.note(args)
        now = time.perf_counter_ns()
        state.compile_begun_ns = now
        state.note(COMPILE)
        if self._channel is not None:
            self._channel.send(Compiling(t_ns=now, began=True))

    def _ended(self, *_args: object) -> None:
        state = self._state
        if not state.active or not state.compile_begun_ns:
            return
        now = time.perf_counter_ns()
        state.compile_ns += now - state.compile_begun_ns
        state.compile_begun_ns = 0
        state.compile_events += 1
        state.note(COMPILE)
        if self._channel is not None:
            self._channel.send(Compiling(t_ns=now, began=False))


def _name(called: Any) -> str:
    return str(getattr(called, "__name__", ""))


def _through(module: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


def _is_a_librarys(model: Any) -> bool:
    """Return whether DeepSpeed compiled this function itself on import; ZeRO has three of them."""
    if not (model is None or isinstance(model, FunctionType)):
        return False
    frame = caller(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("torch") and not is_ours(frame.f_code.co_filename):
            return module.partition(".")[0] == "deepspeed"
        frame = frame.f_back
    return False
