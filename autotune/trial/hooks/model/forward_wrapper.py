"""Wrapper of a trained module's call: autocast, changed inputs, and observations of its training calls."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from autotune.trial.hooks.model.model_outputs import to_float32, unshared
from autotune.trial.hooks.model.module_state import Carried, Moves
from autotune.trial.hooks.model.number_formats import SHORT, in_graph, in_own_layout, is_product, of_output
from autotune.trial.hooks.model.rng_usage import RngUsage
from autotune.trial.records.steady_steps import BACKWARD, CALL, CALLING, OFF
from autotune.trial.runtime.state import NEW_SHAPE, caller

if TYPE_CHECKING:
    from autotune.trial.runtime.state import RuntimeState

_ident = threading.get_ident
PROBES = 2
"""Training calls of a module that are examined."""
_LOOKED_AT_EACH = 16


class ForwardWrapper:
    """Value of the root's ``_compiled_call_impl``: all calls of the root go through it.

    Args:
        root: The `TrainedModules` that found the module; untyped, as it imports this class.
        state: Shared counters.
        module: The trained module.
        inner: Compiled code to call; None for the module itself.
    """

    def __init__(self, root: Any, state: RuntimeState, module: Any, inner: Any) -> None:
        self._root = root
        self._state = state
        self.module: weakref.ref[Any] = weakref.ref(module)
        self.previous = module.__dict__.get("_compiled_call_impl")
        self._compiled = inner
        self.probes = PROBES
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
