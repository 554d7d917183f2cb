"""The trained module: found at its first training call, then called through us.

`nn.Module.__call__` is replaced only while detecting, and put back for the time of a root's call,
so that nothing inside the model ever runs, or is compiled, through our wrapper. A root that was
found is called through the instance slot that torch has for in-place compilation; it is left out
of pickles and copies by torch itself.
"""

# What scripts hand over is of any type; narrowing it yields partly unknown types.
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
    """What is done to every trained module that is found."""

    @property
    def wanted(self) -> bool:
        """Something was asked for."""
        ...

    def convert(self, module: Any) -> None:
        """Once, before the first training call."""

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What the module is called with, at every call."""
        ...


class TrainedModules:
    """Autocast, layout and compilation around the root, and what was seen of it.

    Implements `PrecisionHook` (`set`, `observed`); `layout` implements `LayoutHook`.
    """

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
        """Outputs are turned to float32 whether or not autocast made them half."""
        self.on_output: Callable[[Any, int], None] | None = None
        """Told of what the roots return in training calls, and of the rows of the input, while detecting."""
        self.on_evaluated: Callable[[], None] | None = None
        """Told, while detecting, that a root in evaluation mode is about to be called with gradients on, and
        no backward pass is due for what was called before."""
        self.awaits_backward = False
        """A root in training mode was called since the last backward pass."""
        self.on_precision_ended: Callable[[], None] | None = None
        """Called where autocast and scaling of ours end in the middle of a run."""
        compiling.on_ended.append(self._eager)
        self.on_scripting: Callable[[], None] | None = None
        """Called where TorchScript is about to read a module, and knobs are in it."""
        self.on_dropped: list[Callable[[], None]] = []
        """Called once nothing of ours may stand in the way of calls any more."""
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
        """Trained modules are the script's own for a while."""

    @property
    def calls(self) -> list[ForwardWrapper]:
        """The roots that are alive; held by their modules alone, so that we keep no model alive."""
        return [call for call in (reference() for reference in self._roots) if call is not None]

    def only(self) -> ForwardWrapper | None:
        """The one root that is alive; None where there are more, or none."""
        calls = self.calls
        return calls[0] if len(calls) == 1 else None

    def is_first(self, call: ForwardWrapper) -> bool:
        """Whether this is the first of the roots that are alive."""
        first = self._roots[0]() if self._roots else None
        return first is call if first is not None else self.calls[:1] == [call]

    @property
    def own_compile(self) -> bool:
        """The script compiles code of its own."""
        return self._compile.own

    @property
    def changes(self) -> bool:
        """Something was asked for that every trained module has to get."""
        parts = any(part.wanted for part in self.parts)
        return self._dtype is not None or parts or self._compile.wanted

    @property
    def stays(self) -> bool:
        """Calls of the roots have to pass through us for as long as the script trains."""
        return self.changes or self.casts_back or self._compile.replays or self.inputs.weighed

    @property
    def compiles(self) -> bool:
        """Code is or will be compiled, by us or by the script."""
        return self._compile.active

    @property
    def carries(self) -> bool:
        """What a root returned for one batch went into its call for another."""
        self._carries = self._carries or any(call.carried.seen for call in self.calls)
        return self._carries

    @property
    def compiles_blocks(self) -> bool:
        """Repeated blocks are compiled one by one."""
        return self._compile.regions.by_block

    # Precision

    def set(self, dtype: str) -> None:
        """``bf16``, ``fp16``, or ``fp32`` (nothing)."""
        self.dtype_name = dtype
        self._dtype = {"bf16": self._torch.bfloat16, "fp16": self._torch.float16}.get(dtype)

    def observed(self) -> str | None:
        """Of most of the products in the training calls that were looked into, else of the raw output."""
        off = self._state.faults.off
        if "precision" in self._state.refusals:
            return None
        if "root" in off or (self.dtype_name == "fp16" and off & {"backward", "optimizer"}):
            return None
        return self._products() or self.autocast_seen or self.raw_dtype

    def has_products(self) -> bool:
        """Whether any product was made in the training calls that were looked into; True where none was."""
        calls = self.calls
        if self._format is not None or not calls or not all(call.looked for call in calls):
            return True
        return bool(self._products())

    def _products(self) -> str | None:
        found = sum((call.formats for call in self.calls), Counter(self._compile.graphs.formats))
        self._format = main_format(found) or self._format
        return self._format

    def end_precision(self) -> None:
        """Calls are the script's own again, in its number format, from the next one on."""
        self.dtype_name = self._dtype = None
        for call in self.calls:
            call.forget()
        if self.on_precision_ended is not None:
            self.on_precision_ended()

    def end_turning(self) -> None:
        """Parts that want nothing any more leave inputs as they are."""
        self._turning = [part for part in self._turning if part.wanted]
        for call in self.calls:
            call.forget()

    def _eager(self) -> None:
        """Nothing of ours is compiled any more."""
        for call in self.calls:
            call.forget(eager=True)

    def look_again(self) -> None:
        """Look into the next training call of every root: what holds from now on counts."""
        for call in self.calls:
            call.probes = 1

    def give_up(self, knob: str, reason: str) -> None:
        """What was asked for is not what happens: the reading says so from now on, or the run ends."""
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
        """No further root is expected: modules are called as if we were not there."""
        if self.detecting:
            self.detecting = False
            self._torch.nn.Module.__call__ = self._plain_call
            self.drop_swapped()

    def reopen(self, parameters: Iterable[Any]) -> bool:
        """Detect again where parameters belong to no root yet; whether that was so."""
        if self.detecting or not self.changes or self._watching_call is None:
            return False
        self._roots = [reference for reference in self._roots if reference() is not None]
        if not self._unknown(parameters):
            return False
        # What trains from now on counts.
        for call in self.calls:
            call.formats, call.probes = Counter(), _PROBES
        self.detecting = True
        self._torch.nn.Module.__call__ = self._watching_call
        return True

    def await_gradient(self, parameters: Iterable[Any], told: Callable[[Iterable[Any]], None]) -> bool:
        """Wait for a first gradient of parameters that belong to no root, and tell of it once.

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
                told([parameter])

        # A model that trains uses most of what it has.
        some = waiting[:: max(1, len(waiting) // _MOST_AWAITED)]
        handles.extend(parameter.register_post_accumulate_grad_hook(fired) for parameter in some)
        return bool(handles)

    def _unknown(self, parameters: Iterable[Any]) -> list[Any]:
        """Those of these parameters that belong to no root."""
        modules = [m for m in (call.module() for call in self.calls) if m is not None]
        known = {id(p) for m in modules for p in m.parameters()}
        return [p for p in parameters if id(p) not in known]

    def batch_ended(self) -> None:
        """A backward pass has ended while roots are looked for: the next calls are over another batch."""
        self.purposes.trained(caller(0))
        for call in self.calls:
            call.carried.backward()

    def swap_while_detecting(self, owner: Any, name: str, original: Any, watching: Any) -> None:
        """An attribute that is put back inside compiled roots and once detection has settled."""
        self._swapped.append((owner, name, original, watching))

    def step_aside(self) -> None:
        """A module is about to be called: nothing of ours runs, or is traced, inside of it."""
        self._torch.nn.Module.__call__ = self._plain_call
        if self._compile.active:
            for owner, name, original, _ in self._swapped:
                setattr(owner, name, original)

    def step_back(self) -> None:
        """The call is over; where nothing is looked for any more, all stays as torch has it."""
        if not self.detecting:
            return
        self._torch.nn.Module.__call__ = self._watching_call
        if self._compile.active:
            for owner, name, _, watching in self._swapped:
                setattr(owner, name, watching)

    def drop_swapped(self) -> None:
        """The script compiles functions of its own: nothing of ours may stand where they are traced."""
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
        """Give every root back its plain call."""
        for call in self.calls:
            module = call.module()
            if module is not None and module.__dict__.get("_compiled_call_impl") is call:
                call.leave(module)
        self._roots.clear()

    def _wrap_scripting(self) -> None:
        """TorchScript reads what a module holds, and has no type for a call of ours."""
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
        """All roots, and blocks that are compiled by themselves, are as the script made them meanwhile."""
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
        """What is known of the first root, or was while it lived; None without one."""
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
        """Inputs differ in more than the batch dimension."""
        return len({tuple(s[1:] for s in key) for key in self.shapes}) > 1


class ForwardWrapper:
    """Stands in the root's ``_compiled_call_impl``: every call of the root passes here."""

    def __init__(self, root: TrainedModules, state: RuntimeState, module: Any, inner: Any) -> None:
        self._root = root
        self._state = state
        self.module: weakref.ref[Any] = weakref.ref(module)
        self.previous = module.__dict__.get("_compiled_call_impl")
        self._compiled = inner
        self.probes = _PROBES
        """Training calls that are still to be looked into."""
        self.formats: Counter[str] = Counter()
        """Elements that products made in the last such call, by format."""
        self._looks = False
        self._usual: tuple[Any, ...] | None = None
        """Shapes of the arguments of the last training call, where such calls tell nothing new and go as they
        are; None where they do not."""
        self._left = 0
        """Calls until one is looked at closely again."""
        self._samples = 0
        self._on = "cpu"
        """Samples in such a call, and the device that it is on."""
        self.looked = False
        """A training call was looked into."""
        self.mkldnn = False
        """A layer was seen to multiply in MKL-DNN's own layout."""
        self.draws = RngUsage(root._torch)
        self.moves, self.carried = Moves(root._torch), Carried(root._torch)
        self._calm = state.calm
        self._grad_enabled = root._torch.is_grad_enabled
        self._size = root._torch.Size

    def __reduce__(self) -> tuple[Any, ...]:
        """Nothing: a module that writes or copies what it holds by itself takes none of this along."""
        return type(None), ()

    def __deepcopy__(self, memo: Any) -> None:
        """Nothing, as in a pickle."""
        return

    def leave(self, module: Any) -> None:
        """Give the module the call that it had before."""
        del module.__dict__["_compiled_call_impl"]
        if self.previous is not None:
            module.__dict__["_compiled_call_impl"] = self.previous

    def _inner(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call where there is one; a bound method kept here would keep the module alive."""
        if self._compiled is not None:
            return self._compiled(*args, **kwargs)
        module = self.module()
        assert module is not None
        return module._call_impl(*args, **kwargs)

    def forget(self, *, eager: bool = False) -> None:
        """What is known of usual calls does not hold any more; `eager`: nor does compiled code of ours."""
        self._usual = None
        if eager:
            self._compiled = self.previous

    def look_closely(self) -> None:
        """At the next call."""
        self._left = 1

    def only_shape(self) -> Any:
        """Of its one argument in the last training call; None where there were more."""
        return self._usual[0] if self._usual is not None and len(self._usual) == 1 else None

    def called_calmly(self) -> None:
        """A training call went as the last one, and what follows is not known."""
        self._state.called_to_train = True
        self._state.input_samples += self._samples

    def calm_samples(self) -> int | None:
        """Samples in each call, where those to come may go unseen; None where they may not."""
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
            except Exception:  # of another kind than before; what that means is found out the long way
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
        # What is computed again in a backward pass may run in the device's own thread.
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
        """A training call like the last one; one of so many is looked at closely all the same."""
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
            return False  # of another kind than before; what that means is found out the long way

    def _in_half(self, args: Any) -> Any:
        """The call under our autocast, and what it returns in float32."""
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
        """For calls to come; None where there is more to do or to be found out than for a call like this."""
        root, state = self._root, self._state
        if (
            kwargs
            or root._turning
            or root.casts_back
            or root._compile.replays
            or root.detecting
            or root.inputs.said  # whose calls are counted
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
                self._lets_go()
                self.draws.begins(self.module())
                if not state.capturing():
                    # Values are read, which a graph that the script records would not survive.
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
        """An evaluation, or a part of training: a policy that collects what it learns from next."""
        module, state = self.module(), self._state
        # What a loader hands over without gradients is evaluated, whatever the name of who asks for it.
        of_loader = state.asked_loader or state.asks_elsewhere
        if not of_loader and self._root.purposes.gathering(caller(0)):
            state.collects(time.perf_counter_ns())
        elif state.evaluating or (module is not None and not module.training):
            state.evaluates(time.perf_counter_ns())
        else:
            state.alive()

    def _only_evaluates(self) -> bool:
        """A call with gradients on that is an evaluation's all the same: many switch nothing but the mode.

        In evaluation mode, on a batch of a loader that has not trained: some train in that mode as well.
        """
        state, module, now = self._state, self.module(), time.perf_counter_ns()
        learns = module is None or module.training
        state.called_to_evaluate = state.called_to_evaluate or not learns
        state.called_to_train = state.called_to_train or learns
        if not learns and state.asks_elsewhere:
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
        """Not so once the script has converted the module itself, as for an evaluation in half precision."""
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

    def _after(self, training: bool, out: Any, ours: bool, rows: int) -> Any:
        root = self._root
        if training and not self._state.in_backward:
            self.draws.ended()
            self.moves.ended(self.module())
            if self.probes > 0 or self._looks:
                root.raw_dtype = _dtype_of(out) or root.raw_dtype
            if self._looks:
                self._look(out)
            if ours and root.autocast_seen is None and root._compile.active:
                root.autocast_seen = root.dtype_name
        out = to_float32(out, root._torch) if ours or root.casts_back else out
        if root._compile.replays and not self._state.in_backward:
            out = unshared(out, root._torch, whole=not training)
        if training and root.detecting and not self._state.in_backward:
            self.carried.returned(out)
            self._tell(out, rows)
        return out

    def _tell(self, out: Any, rows: int) -> None:
        if self._root.on_output is not None:
            self._root.on_output(out, rows)

    def _lets_go(self) -> None:
        """Of what an evaluation that keeps gradients on has left: it would be held for no backward pass.

        Many train a model in evaluation mode, and an unfrozen helper network may be asked in the middle of a
        step: only what was there before the call goes, and only where nothing that trains was called.
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
        """Whether 4-D parameters and the last 4-D input are channels-last; None before a call."""
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
        # A 1x1 kernel or a single channel is contiguous in both layouts and says nothing.
        telling = [p for p in weights if p.shape[1] > 1 and p.shape[2] * p.shape[3] > 1]
        if not telling:
            return False if not (self.wanted and weights) else self._input_ok
        return all(p.is_contiguous(memory_format=form) for p in telling) and (
            self._input_ok is not False if self.wanted else True
        )

    def convert(self, module: Any) -> None:
        """Parameters and buffers of the root, in place; they stay the same objects."""
        module.to(memory_format=self._root._torch.channels_last)

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """4-D tensor inputs in channels-last."""
        torch = self._root._torch
        form = torch.channels_last

        def turn(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() == 4:
                value = value.contiguous(memory_format=form)
                self._input_ok = bool(value.is_contiguous(memory_format=form))
            return value

        return tuple(turn(a) for a in args), {k: turn(v) for k, v in kwargs.items()}


def _compiled_by_script(module: Any) -> bool:
    """``torch.compile(module)``, or a module whose ``compile`` was called; not one that is ours by now."""
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
    """First dimension of the first tensor that a module is called with; 0 without one."""
    for value in (*args, *kwargs.values()):
        inner: Any = value.values() if isinstance(value, dict) else value
        for item in inner if isinstance(inner, (list, tuple)) or isinstance(value, dict) else (value,):
            shape = getattr(item, "shape", None)
            if isinstance(shape, tuple) and shape:
                return shape[0] if isinstance(shape[0], int) else 0
    return 0


def _is_recurrent(module: Any) -> bool:
    return type(module).__name__ in ("LSTM", "GRU", "RNN", "MultiheadAttention")
