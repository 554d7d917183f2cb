"""Trained modules: found at their first training call, then called through a wrapper.

`nn.Module.__call__` is replaced only during detection, and restored during a root's call, so that nothing
inside the model runs, or is compiled, through the wrapper. A detected root is called through the instance
slot that torch uses for in-place compilation. Torch itself excludes the slot from pickles and copies.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from autotune.model.facts import ModelFacts
from autotune.trial.hooks.model.forward_wrapper import PROBES, ForwardWrapper
from autotune.trial.hooks.model.layout import Layout
from autotune.trial.hooks.model.model_inputs import Inputs
from autotune.trial.hooks.model.number_formats import main_format
from autotune.trial.hooks.model.phase_classifier import PhaseClassifier
from autotune.trial.runtime.state import caller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from autotune.trial.hooks.model.compiling import Compile
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_MAX_ROOTS = 16
_MOST_AWAITED = 16


class RootPart(Protocol):
    """Interface of changes to every trained module."""

    @property
    def wanted(self) -> bool:
        """Whether a change was requested."""
        ...

    def convert(self, module: Any) -> None:
        """Convert a module once, before its first training call."""

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the changed arguments of a call."""
        ...


class TrainedModules:
    """Autocast, layout and compilation around the roots, and observations of them."""

    def __init__(self, state: RuntimeState, undo: Undo, compiling: Compile) -> None:
        self._state = state
        self._undo = undo
        self._compile = compiling
        self._torch: Any = None
        self.dtype_name: str | None = None
        self._dtype: Any = None
        self.layout = Layout(self)
        self.blocks = compiling.blocks
        self.inputs = Inputs(state)
        self.purposes = PhaseClassifier(state)
        self.parts: list[RootPart] = [self.layout]
        self._turning: list[RootPart] = []
        self.casts_back = False
        """Outputs are converted to float32 whether or not autocast made them half."""
        self.on_output: Callable[[Any, int], None] | None = None
        """Called with outputs of training calls and the number of input rows, during detection."""
        self.on_evaluated: Callable[[], None] | None = None
        """Called in detection before an evaluation-mode call with gradients, if no backward pass is due."""
        self.awaits_backward = False
        """A root in training mode was called since the last backward pass."""
        self.on_precision_ended: Callable[[], None] | None = None
        """Called when a knob's autocast and loss scaling end during a run."""
        compiling.on_ended.append(self._eager)
        self.on_scripting: Callable[[], None] | None = None
        """Called before TorchScript reads a module with active knobs."""
        self.on_dropped: list[Callable[[], None]] = []
        """Called when no wrapper may remain around calls."""
        self._roots: list[weakref.ref[ForwardWrapper]] = []
        self._facts: ModelFacts | None = None
        self.shapes: set[tuple[Any, ...]] = set()
        self.in_ours = False
        self.own_autocast = False
        self._format: str | None = None
        self.raw_dtype: str | None = None
        self.detecting = False
        self._plain_call: Any = None
        self._watching_call: Any = None
        self._swapped: list[tuple[Any, str, Any, Any]] = []
        self.autocast_seen: str | None = None
        self._carries = False
        self._is_plain = False
        """Trained modules are temporarily the script's own."""

    @property
    def calls(self) -> list[ForwardWrapper]:
        """Return the live roots, held only by their modules, so that no model is kept alive."""
        return [call for call in (reference() for reference in self._roots) if call is not None]

    def only(self) -> ForwardWrapper | None:
        """Single live root; None if there are more, or none."""
        calls = self.calls
        return calls[0] if len(calls) == 1 else None

    def is_first(self, call: ForwardWrapper) -> bool:
        """Return whether this is the first live root."""
        first = self._roots[0]() if self._roots else None
        return first is call if first is not None else self.calls[:1] == [call]

    @property
    def own_compile(self) -> bool:
        """Whether the script compiles code itself."""
        return self._compile.own

    @property
    def changes(self) -> bool:
        """Whether a change of every trained module was requested."""
        parts = any(part.wanted for part in self.parts)
        return self._dtype is not None or parts or self._compile.wanted

    @property
    def stays(self) -> bool:
        """Whether calls of the roots must go through the wrapper for the whole training."""
        return self.changes or self.casts_back or self._compile.replays or self.inputs.weighed

    @property
    def compiles(self) -> bool:
        """Whether code is or will be compiled, by autotune or by the script."""
        return self._compile.active

    @property
    def carries(self) -> bool:
        """Whether an output of a root for one batch was an input of its call for another."""
        self._carries = self._carries or any(call.carried.seen for call in self.calls)
        return self._carries

    @property
    def compiles_blocks(self) -> bool:
        """Whether repeated blocks are compiled one by one."""
        return self._compile.regions.by_block

    # Precision

    def set(self, dtype: str) -> None:
        """Set ``bf16``, ``fp16``, or ``fp32`` (no change)."""
        self.dtype_name = dtype
        self._dtype = {"bf16": self._torch.bfloat16, "fp16": self._torch.float16}.get(dtype)

    def observed(self) -> str | None:
        """Return the format of most products in the examined training calls, else of the raw output."""
        off = self._state.faults.off
        if "precision" in self._state.refusals:
            return None
        if "root" in off or (self.dtype_name == "fp16" and off & {"backward", "optimizer"}):
            return None
        return self._products() or self.autocast_seen or self.raw_dtype

    def has_products(self) -> bool:
        """Return whether any product was computed in the examined training calls; True without one."""
        calls = self.calls
        if self._format is not None or not calls or not all(call.looked for call in calls):
            return True
        return bool(self._products())

    def _products(self) -> str | None:
        found = sum((call.formats for call in self.calls), Counter(self._compile.graphs.formats))
        self._format = main_format(found) or self._format
        return self._format

    def end_precision(self) -> None:
        """Restore the script's own number format from the next call on."""
        self.dtype_name = self._dtype = None
        for call in self.calls:
            call.forget()
        if self.on_precision_ended is not None:
            self.on_precision_ended()

    def end_turning(self) -> None:
        """Stop changing inputs for parts without a requested change."""
        self._turning = [part for part in self._turning if part.wanted]
        for call in self.calls:
            call.forget()

    def _eager(self) -> None:
        """Run without compiled code of autotune."""
        for call in self.calls:
            call.forget(eager=True)

    def look_again(self) -> None:
        """Examine the next training call of every root again."""
        for call in self.calls:
            call.probes = 1

    def give_up(self, knob: str, reason: str) -> None:
        """Report that a requested change is not in effect; ends the run if it was accepted."""
        if knob not in self._state.refusals:
            self._state.refusals[knob] = reason
            self._state.lost(knob, reason)

    # Detection

    def install(self, torch: Any) -> None:
        """Start detecting."""
        self._torch = torch
        module_class = torch.nn.Module
        self._plain_call = original = module_class.__call__
        state = self._state
        is_compiling = self.is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() and not self.changes:
                return original(module, *args, **kwargs)
            if (
                state.depth
                or self._is_plain
                or state.in_backward
                or not state.here()
                or "root" in state.faults.off
            ):
                return original(module, *args, **kwargs)
            try:
                if self._is_new_root(module):
                    self._adopt(module, args, kwargs)
            except Exception as error:
                state.faults.note("root", error)
            if not self._compile.own or not _compiled_by_script(module):
                return original(module, *args, **kwargs)
            self.step_aside()
            try:
                return original(module, *args, **kwargs)
            finally:
                self.step_back()

        self._watching_call = call
        self._undo.assign(module_class, "__call__", call)
        self.detecting = True
        self._wrap_autocast(torch)
        self._wrap_scripting()

    def settle(self) -> None:
        """End detection: no further root is expected, and modules are called without the hook."""
        if self.detecting:
            self.detecting = False
            self._torch.nn.Module.__call__ = self._plain_call
            self.drop_swapped()

    def reopen(self, parameters: Iterable[Any]) -> bool:
        """Detect again if parameters belong to no root yet; return whether any do."""
        if self.detecting or not self.changes or self._watching_call is None:
            return False
        self._roots = [reference for reference in self._roots if reference() is not None]
        if not self._unknown(parameters):
            return False
        # Only training from now on counts.
        for call in self.calls:
            call.formats, call.probes = Counter(), PROBES
        self.detecting = True
        self._torch.nn.Module.__call__ = self._watching_call
        return True

    def await_gradient(self, parameters: Iterable[Any], notify: Callable[[Iterable[Any]], None]) -> bool:
        """Wait for the first gradient of parameters that belong to no root, and report it once.

        Returns:
            Whether there are such parameters.
        """
        if not self.changes:
            return False
        waiting = [p for p in self._unknown(parameters) if p.requires_grad and p.grad is None]
        handles: list[Any] = []

        def fired(parameter: Any) -> None:
            for handle in handles:
                handle.remove()
            if handles and self._state.active:
                handles.clear()
                notify([parameter])

        # A training model uses most of its parameters.
        some = waiting[:: max(1, len(waiting) // _MOST_AWAITED)]
        handles.extend(parameter.register_post_accumulate_grad_hook(fired) for parameter in some)
        return bool(handles)

    def _unknown(self, parameters: Iterable[Any]) -> list[Any]:
        """Return the parameters that belong to no root."""
        modules = [m for m in (call.module() for call in self.calls) if m is not None]
        known = {id(p) for m in modules for p in m.parameters()}
        return [p for p in parameters if id(p) not in known]

    def batch_ended(self) -> None:
        """Record the end of a backward pass during detection: the next calls use another batch."""
        self.purposes.trained(caller(0))
        for call in self.calls:
            call.carried.backward()

    def swap_while_detecting(self, owner: Any, name: str, original: Any, watching: Any) -> None:
        """Replace an attribute, restored inside compiled roots and after detection."""
        self._swapped.append((owner, name, original, watching))

    def step_aside(self) -> None:
        """Restore the original functions before a module's call, so that no hook runs or is traced in it."""
        self._torch.nn.Module.__call__ = self._plain_call
        if self._compile.active:
            for owner, name, original, _ in self._swapped:
                setattr(owner, name, original)

    def step_back(self) -> None:
        """Replace the functions again after the call, unless detection has ended."""
        if not self.detecting:
            return
        self._torch.nn.Module.__call__ = self._watching_call
        if self._compile.active:
            for owner, name, _, watching in self._swapped:
                setattr(owner, name, watching)

    def drop_swapped(self) -> None:
        """Restore the original functions for good, as the script compiles functions itself."""
        for owner, name, original, _ in self._swapped:
            setattr(owner, name, original)
        self._swapped.clear()
        for callback in self.on_dropped:
            callback()

    def _is_new_root(self, module: Any) -> bool:
        if not self._torch.is_grad_enabled() or len(self.calls) >= _MAX_ROOTS:
            return False
        if isinstance(module.__dict__.get("_compiled_call_impl"), ForwardWrapper):
            return False
        return any(p.requires_grad for p in module.parameters())

    def _adopt(self, module: Any, args: Any, kwargs: Any) -> None:
        if isinstance(module, self._torch.jit.ScriptModule):
            return
        self._turning = [part for part in self.parts if part.wanted]
        for part in self._turning:
            part.convert(module)
        self._compile.arm()
        inner = self._compile.inner_of(module) or module.__dict__.get("_compiled_call_impl")
        call = ForwardWrapper(self, self._state, module, inner)
        module.__dict__["_compiled_call_impl"] = call
        self._roots.append(weakref.ref(call))

    def release(self) -> None:
        """Restore the plain call of every root."""
        for call in self.calls:
            module = call.module()
            if module is not None and module.__dict__.get("_compiled_call_impl") is call:
                call.leave(module)
        self._roots.clear()

    def _wrap_scripting(self) -> None:
        """Wrap TorchScript, which reads a module's attributes and has no type for the wrapper."""
        recursive: Any = sys.modules.get("torch.jit._recursive")
        original = getattr(recursive, "create_script_module", None)
        if original is None:
            return

        @functools.wraps(original)
        def create_script_module(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.changes and not self._is_plain and self.on_scripting is not None and self._state.here():
                try:
                    held = list(module.parameters())
                    if len(self._unknown(held)) < len(held):
                        self.on_scripting()
                except Exception as error:
                    self._state.faults.note("exports", error)
            with self.plain():
                return original(module, *args, **kwargs)

        self._undo.assign(recursive, "create_script_module", create_script_module)

    @contextlib.contextmanager
    def plain(self) -> Generator[None]:
        """Restore roots and separately compiled blocks temporarily."""
        taken: list[tuple[Any, Any]] = []
        for block in self._compile.regions.calls:
            held = block.module()
            if held is not None:
                taken.append((held, block))
                block.release()
        for call in self.calls:
            held = call.module()
            if held is not None and held.__dict__.get("_compiled_call_impl") is call:
                taken.append((held, call))
                call.leave(held)
        was_plain, self._is_plain = self._is_plain, True
        try:
            yield
        finally:
            self._is_plain = was_plain
            for held, call in taken:
                held.__dict__["_compiled_call_impl"] = call

    def _wrap_autocast(self, torch: Any) -> None:
        cls = torch.amp.autocast_mode.autocast
        original = cls.__enter__

        @functools.wraps(original)
        def enter(this: Any) -> Any:
            if self.is_compiling():
                return original(this)
            if not self.in_ours and not self.own_autocast and self._state.here():
                try:
                    if getattr(this, "_enabled", False) and self._by_user():
                        self.own_autocast = True
                except Exception as error:
                    self._state.faults.note("autocast", error)
            return original(this)

        self._undo.assign(cls, "__enter__", enter)
        self.swap_while_detecting(cls, "__enter__", original, enter)

    def _by_user(self) -> bool:
        frame = caller(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if self._state.is_users(name):
                return True
            module = str(frame.f_globals.get("__name__", ""))
            if not module.startswith(("torch", "contextlib", "autotune")):
                return False
            frame = frame.f_back
        return False

    # Facts

    def facts(self) -> ModelFacts | None:
        """Return the facts about the first root, also after its deletion; None without one."""
        modules = [m for m in (call.module() for call in self.calls) if m is not None]
        if not modules:
            return self._facts
        torch = self._torch
        first = modules[0]
        named = getattr(first, "_orig_mod", first)
        parameters = [p for m in modules for p in m.parameters()]
        kinds = {type(m) for module in modules for m in module.modules()}
        norm = torch.nn.modules.batchnorm._BatchNorm
        drop, conv = torch.nn.modules.dropout._DropoutNd, torch.nn.modules.conv._ConvNd
        self._facts = ModelFacts(
            name=type(named).__name__,
            roots=len(modules),
            parameters=sum(p.numel() for p in parameters),
            parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
            dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
            has_4d=any(p.dim() == 4 for p in parameters),
            has_5d=any(p.dim() == 5 for p in parameters),
            convolves=any(issubclass(kind, conv) for kind in kinds),
            batch_norm=any(issubclass(kind, norm) for kind in kinds),
            dropout=any(issubclass(kind, drop) for kind in kinds)
            or any(getattr(m, "dropout", 0.0) for m in first.modules() if _is_recurrent(m))
            or any(call.draws.seen for call in self.calls),
            moves=any(call.moves.seen for call in self.calls),
            device=str(parameters[0].device.type) if parameters else "cpu",
            blocks=self.blocks.facts(first),
            products=self.has_products(),
            mkldnn=any(call.mkldnn for call in self.calls),
        )
        return self._facts

    def shapes_vary(self) -> bool:
        """Return whether inputs differ in more than the batch dimension."""
        return len({tuple(s[1:] for s in key) for key in self.shapes}) > 1


def _compiled_by_script(module: Any) -> bool:
    """Return whether the script compiled a module, by ``torch.compile`` or its ``compile``."""
    held = module.__dict__
    if "_orig_mod" in held.get("_modules", ()):
        return not isinstance(held.get("_compiled_call_impl"), ForwardWrapper)
    inner = held.get("_compiled_call_impl")
    return inner is not None and not isinstance(inner, ForwardWrapper)


def _is_recurrent(module: Any) -> bool:
    return type(module).__name__ in ("LSTM", "GRU", "RNN", "MultiheadAttention")
