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
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from autotune.model.facts import ModelFacts
from autotune.trial.hooks.model.model_inputs import Inputs
from autotune.trial.hooks.model.model_outputs import to_float32, unshared
from autotune.trial.hooks.model.module_state import Carried, Moves
from autotune.trial.hooks.model.number_formats import (
    SHORT,
    in_graph,
    in_own_layout,
    is_product,
    main_format,
    of_output,
)
from autotune.trial.hooks.model.phase_classifier import PhaseClassifier
from autotune.trial.hooks.model.rng_usage import RngUsage
from autotune.trial.records.steady_steps import BACKWARD, CALL, CALLING, OFF
from autotune.trial.runtime.state import NEW_SHAPE, caller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from autotune.trial.hooks.model.compiling import Compile
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_ident = threading.get_ident
_MAX_ROOTS = 16
_MOST_AWAITED = 16
_PROBES = 2
_LOOKED_AT_EACH = 16


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
            call.formats, call.probes = Counter(), _PROBES
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


class ForwardWrapper:
    """Value of the root's ``_compiled_call_impl``: all calls of the root go through it."""

    def __init__(self, root: TrainedModules, state: RuntimeState, module: Any, inner: Any) -> None:
        self._root = root
        self._state = state
        self.module: weakref.ref[Any] = weakref.ref(module)
        self.previous = module.__dict__.get("_compiled_call_impl")
        self._compiled = inner
        self.probes = _PROBES
        """Training calls still to be examined."""
        self.formats: Counter[str] = Counter()
        """Elements produced by products in the last such call, by format."""
        self._looks = False
        self._usual: tuple[Any, ...] | None = None
        """Argument shapes of the last training call, if equal calls need no examination; else None."""
        self._left = 0
        """Calls until the next examination."""
        self._samples = 0
        self._on = "cpu"
        """Samples in such a call, and its device."""
        self.looked = False
        """A training call was examined."""
        self.mkldnn = False
        """A layer was observed to multiply in MKL-DNN's own layout."""
        self.draws = RngUsage(root._torch)
        self.moves, self.carried = Moves(root._torch), Carried(root._torch)
        self._calm = state.calm
        self._grad_enabled = root._torch.is_grad_enabled
        self._size = root._torch.Size

    def __reduce__(self) -> tuple[Any, ...]:
        """Return an empty reduction, so that a module that pickles its own attributes leaves this out."""
        return type(None), ()

    def __deepcopy__(self, memo: Any) -> None:
        """Return None, as for a pickle."""
        return

    def leave(self, module: Any) -> None:
        """Restore the module's previous call."""
        del module.__dict__["_compiled_call_impl"]
        if self.previous is not None:
            module.__dict__["_compiled_call_impl"] = self.previous

    def _inner(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module if there is one; a stored bound method would keep the module alive."""
        if self._compiled is not None:
            return self._compiled(*args, **kwargs)
        module = self.module()
        assert module is not None
        return module._call_impl(*args, **kwargs)

    def forget(self, *, eager: bool = False) -> None:
        """Drop what is known of usual calls; `eager`: also autotune's compiled code."""
        self._usual = None
        if eager:
            self._compiled = self.previous

    def look_closely(self) -> None:
        """Examine the next call."""
        self._left = 1

    def only_shape(self) -> Any:
        """Return the shape of its one argument in the last training call; None if there were more."""
        return self._usual[0] if self._usual is not None and len(self._usual) == 1 else None

    def called_calmly(self) -> None:
        """Record a training call equal to the last one, with unknown continuation."""
        self._state.called_to_train = True
        self._state.input_samples += self._samples

    def calm_samples(self) -> int | None:
        """Return the samples per call if future calls need no observation; else None."""
        return None if self._usual is None else self._samples

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calm, state = self._calm, self._state
        module = self.module() if calm.stage == CALL and calm.call is self and not kwargs else None
        if (
            module is not None
            and module.training
            and self._grad_enabled()
            and _ident() == calm.main
            and not self._root.is_compiling()
        ):
            try:
                if calm.shape is not None and len(args) == 1:
                    is_calm = args[0].shape == calm.shape
                else:
                    is_calm = tuple([value.shape for value in args]) == self._usual
            except Exception:  # of another kind than before; the full path handles it
                is_calm = False
            if is_calm and calm.stage == CALL:
                calm.stage = CALLING
                state.depth = 1
                try:
                    if self._root._dtype is not None:
                        out = self._in_half(args)
                    else:
                        out = module._call_impl(*args) if self._compiled is None else self._compiled(*args)
                finally:
                    state.depth = 0
                if calm.stage == CALLING:
                    calm.stage = BACKWARD
                return out
        root = self._root
        if calm.stage != OFF and not state.depth and state.here():
            calm.leave()
        compiling = root.is_compiling()
        if compiling and not root.changes:
            return self._inner(*args, **kwargs)
        if state.depth or "root" in state.faults.off:
            return self._inner(*args, **kwargs)
        if self._usual is not None and not kwargs and not compiling and self._is_usual(args):
            state.called_to_train = True
            state.input_samples += self._samples
            state.depth = 1
            try:
                return self._inner(*args) if root._dtype is None else self._in_half(args)
            finally:
                state.depth = 0
        # Recomputation in a backward pass may run in the device's own thread.
        if not state.here() and not (state.active and state.in_backward):
            return self._inner(*args, **kwargs)
        training = self._grad_enabled()
        try:
            args, kwargs, context, hooks = self._before(training, args, kwargs)
        except Exception as error:
            state.faults.note("root", error)
            return self._inner(*args, **kwargs)
        state.depth = 1
        unswap = root.detecting
        if unswap:
            root.step_aside()
        try:
            if context is None:
                out = self._inner(*args, **kwargs)
            else:
                root.in_ours = True
                try:
                    with context:
                        out = self._inner(*args, **kwargs)
                finally:
                    root.in_ours = False
        finally:
            state.depth = 0
            if unswap:
                root.step_back()
            for hook in hooks:
                hook.remove()
        try:
            return self._after(training, out, context is not None, _rows(args, kwargs))
        except Exception as error:
            state.faults.note("root", error)
            return out

    def _is_usual(self, args: Any) -> bool:
        """Return whether a training call equals the last one; some are examined all the same."""
        state, shapes, root, module = self._state, self._usual, self._root, self.module()
        self._left = (self._left or _LOOKED_AT_EACH) - 1
        if (
            not self._left
            or module is None
            or not module.training
            or shapes is None
            or len(args) != len(shapes)
            or (self.probes and not root._compile.active)
            or root.detecting
            or state.evaluating
            or state.in_backward
            or not state.here()
            or not self._grad_enabled()
        ):
            return False
        try:
            for value, shape in zip(args, shapes, strict=True):
                if value.shape != shape:
                    return False
            return root._dtype is None or args[0].device.type == self._on
        except Exception:
            return False  # of another kind than before; the full path handles it

    def _in_half(self, args: Any) -> Any:
        """Run the call under autocast, and return its output in float32."""
        root = self._root
        root.in_ours = True
        try:
            with root._torch.autocast(self._on, dtype=root._dtype):
                out = self._inner(*args)
        finally:
            root.in_ours = False
        try:
            return to_float32(out, root._torch)
        except Exception as error:
            self._state.faults.note("root", error)
            return out

    def _usual_shapes(self, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
        """Return the shapes for future calls; None if more work or observation is needed per call."""
        root, state = self._root, self._state
        if (
            kwargs
            or root._turning
            or root.casts_back
            or root._compile.replays
            or root.detecting
            or root.inputs.batch_size  # whose calls are counted
            or (self.probes and not root._compile.active)
            or self._looks
            or not state.began_ns
            or not root._compile.called
            or (root._dtype is not None and root._compile.active and root.autocast_seen is None)
        ):
            return None
        shapes: tuple[Any, ...] = tuple(getattr(value, "shape", None) for value in args)
        if not all(type(shape) is self._size for shape in shapes) or shapes not in root.shapes:
            return None
        self._samples = root.inputs.called(shapes) if root.is_first(self) else 0
        self._on = self._device()
        return shapes or None

    def _before(self, training: bool, args: Any, kwargs: Any) -> tuple[Any, Any, Any, list[Any]]:
        state, root = self._state, self._root
        hooks: list[Any] = []
        if state.in_backward:
            pass
        elif not training:
            self._without_gradients()
        else:
            if not self._only_evaluates():
                self._see_inputs(args, kwargs)
                self._usual = self._usual_shapes(args, kwargs)
            root._compile.called = True
            if root.detecting:
                self._drop_graphs()
                self.draws.begins(self.module())
                if not state.capturing():
                    # Reading values would break the capture of a graph by the script.
                    self.moves.begins(self.module())
                self.carried.called(args, kwargs)
            self._looks = self.probes > 0 and not root._compile.active
            if self._looks:
                self.probes -= 1
                self.formats = Counter()
                hooks = self._layer_hooks()
        for part in root._turning:
            args, kwargs = part.inputs(args, kwargs)
        context = None
        dtype = root._dtype
        if dtype is not None and self._is_float32():
            torch = root._torch
            context = torch.autocast(self._device(), dtype=dtype)
        return args, kwargs, context, hooks

    def _without_gradients(self) -> None:
        """Record a call without gradients: an evaluation, or a policy that collects training data."""
        module, state = self.module(), self._state
        # Batches of a loader used without gradients are evaluated, whatever the caller's name.
        of_loader = state.evaluates_loader or state.fetched_elsewhere
        if not of_loader and self._root.purposes.gathering(caller(0)):
            state.collects(time.perf_counter_ns())
        elif state.evaluating or (module is not None and not module.training):
            state.evaluates(time.perf_counter_ns())
        else:
            state.alive()

    def _only_evaluates(self) -> bool:
        """Return whether a call with gradients on belongs to an evaluation, as many only switch the mode.

        In evaluation mode, on a batch of a loader not used for training; some train in that mode as well.
        """
        state, module, now = self._state, self.module(), time.perf_counter_ns()
        learns = module is None or module.training
        state.called_to_evaluate = state.called_to_evaluate or not learns
        state.called_to_train = state.called_to_train or learns
        if not learns and state.fetched_elsewhere:
            state.evaluates(now)
            return True
        state.trains(now)
        if not state.began_ns:
            state.began_ns = now
        return False

    def _device(self) -> str:
        module = self.module()
        if module is None:
            return "cpu"
        for parameter in module.parameters():
            return str(parameter.device.type)
        return "cpu"

    def _is_float32(self) -> bool:
        """Return whether the module is in float32; the script may convert it, as for an evaluation."""
        module = self.module()
        first = next(iter(module.parameters()), None) if module is not None else None
        return first is None or first.dtype == self._root._torch.float32

    def _see_inputs(self, args: Any, kwargs: Any) -> None:
        state, root = self._state, self._root
        found: list[tuple[int, ...]] = []
        for value in (*args, *kwargs.values()):
            shape = getattr(value, "shape", None)
            if isinstance(shape, tuple):
                found.append(shape)
            elif isinstance(value, (list, tuple, dict)):
                inner: Any = value.values() if isinstance(value, dict) else value
                shapes = (getattr(v, "shape", None) for v in inner)
                found += [s for s in shapes if isinstance(s, tuple)]
        if not found:
            return
        key = tuple(found)
        if root.is_first(self):
            state.input_samples += root.inputs.called(found)
        if key not in root.shapes and len(root.shapes) < 256:
            root.shapes.add(key)
            state.mark |= NEW_SHAPE

    def _layer_hooks(self) -> list[Any]:
        module = self.module()
        if module is None:
            return []

        def fired(_module: Any, _inputs: Any, output: Any) -> None:
            self.formats += of_output(output)
            self.mkldnn = self.mkldnn or in_own_layout(output)

        layers = [m for m in module.modules() if is_product(m)]
        return [*(m.register_forward_hook(fired) for m in layers), *self._root.blocks.hooks(module)]

    def _look(self, out: Any) -> None:
        self._looks = False
        try:
            self.formats += in_graph(out)
            self.looked = True
        except Exception as error:
            self._state.faults.note("formats", error)

    def _after(self, training: bool, out: Any, cast: bool, rows: int) -> Any:
        root = self._root
        if training and not self._state.in_backward:
            self.draws.ended()
            self.moves.ended(self.module())
            if self.probes > 0 or self._looks:
                root.raw_dtype = _dtype_of(out) or root.raw_dtype
            if self._looks:
                self._look(out)
            if cast and root.autocast_seen is None and root._compile.active:
                root.autocast_seen = root.dtype_name
        out = to_float32(out, root._torch) if cast or root.casts_back else out
        if root._compile.replays and not self._state.in_backward:
            out = unshared(out, root._torch, whole=not training)
        if training and root.detecting and not self._state.in_backward:
            self.carried.returned(out)
            self._report_output(out, rows)
        return out

    def _report_output(self, out: Any, rows: int) -> None:
        if self._root.on_output is not None:
            self._root.on_output(out, rows)

    def _drop_graphs(self) -> None:
        """Drop graphs left by an evaluation with gradients on, for which no backward pass will come.

        Some train in evaluation mode, and a step may call an unfrozen helper network. So only graphs from
        before the call are dropped, and only if no training call was made.
        """
        root, module = self._root, self.module()
        if module is None or module.training:
            root.awaits_backward = True
        elif not root.awaits_backward and root.on_evaluated is not None:
            root.on_evaluated()


class Layout:
    """Implements `LayoutHook`."""

    def __init__(self, root: TrainedModules) -> None:
        self._root = root
        self.wanted = False
        self._input_ok: bool | None = None
        self._observed: bool | None = None

    def channels_last(self) -> None:
        """Convert the trained module and its 4-D inputs from the first call on."""
        self.wanted = True

    def observed(self) -> bool | None:
        """Return whether 4-D parameters and the last 4-D input are channels-last; None before a call."""
        root = self._root
        if "root" in root._state.faults.off:
            return None
        form = root._torch.channels_last
        modules = [m for m in (call.module() for call in root.calls) if m is not None]
        if not modules:
            return self._observed
        self._observed = self._observe(modules, form)
        return self._observed

    def _observe(self, modules: list[Any], form: Any) -> bool | None:
        weights = [p for m in modules for p in m.parameters() if p.dim() == 4]
        # A 1x1 kernel or a single channel is contiguous in both layouts and shows nothing.
        telling = [p for p in weights if p.shape[1] > 1 and p.shape[2] * p.shape[3] > 1]
        if not telling:
            return False if not (self.wanted and weights) else self._input_ok
        return all(p.is_contiguous(memory_format=form) for p in telling) and (
            self._input_ok is not False if self.wanted else True
        )

    def convert(self, module: Any) -> None:
        """Convert parameters and buffers of the root in place; they stay the same objects."""
        module.to(memory_format=self._root._torch.channels_last)

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments with 4-D tensors in channels-last."""
        torch = self._root._torch
        form = torch.channels_last

        def turn(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() == 4:
                value = value.contiguous(memory_format=form)
                self._input_ok = bool(value.is_contiguous(memory_format=form))
            return value

        return tuple(turn(a) for a in args), {k: turn(v) for k, v in kwargs.items()}


def _compiled_by_script(module: Any) -> bool:
    """Return whether the script compiled a module, by ``torch.compile`` or its ``compile``."""
    held = module.__dict__
    if "_orig_mod" in held.get("_modules", ()):
        return not isinstance(held.get("_compiled_call_impl"), ForwardWrapper)
    inner = held.get("_compiled_call_impl")
    return inner is not None and not isinstance(inner, ForwardWrapper)


def _dtype_of(out: Any) -> str | None:
    if isinstance(out, (list, tuple)):
        return next((n for n in map(_dtype_of, out) if n is not None), None)
    if isinstance(out, dict):
        return next((n for n in map(_dtype_of, out.values()) if n is not None), None)
    dtype = getattr(out, "dtype", None)
    return SHORT.get(str(dtype)) if dtype is not None else None


def _rows(args: Any, kwargs: Any) -> int:
    """Return the first dimension of the first tensor argument; 0 without one."""
    for value in (*args, *kwargs.values()):
        inner: Any = value.values() if isinstance(value, dict) else value
        for item in inner if isinstance(inner, (list, tuple)) or isinstance(value, dict) else (value,):
            shape = getattr(item, "shape", None)
            if isinstance(shape, tuple) and shape:
                return shape[0] if isinstance(shape[0], int) else 0
    return 0


def _is_recurrent(module: Any) -> bool:
    return type(module).__name__ in ("LSTM", "GRU", "RNN", "MultiheadAttention")
