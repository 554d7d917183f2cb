"""Optimizer steps, backward passes and everything that has to keep quiet while a step is deferred.

Accumulation and our fp16 scaling are a factor in the seed gradient of `backward`: neither the graph
nor the loss that the script prints is touched.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter, deque
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from autotune.core.facts import OptimizerFacts
from autotune.core.loops import UNREAD
from autotune.trial.frameworks import runs_once
from autotune.trial.loops import Loops
from autotune.trial.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from autotune.trial.loader import Loader
    from autotune.trial.loader_record import Part
    from autotune.trial.losses import Losses
    from autotune.trial.root import Root
    from autotune.trial.state import State
    from autotune.trial.undo import Undo

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_NO_OPTIMIZER_BACKWARDS = 3
_NO_STEP_BACKWARDS = 64
_MAX_LOSSES = 1024
_RECENT_STEPS = 8
_TELLS_OF_THREADS = 16
_RATE_MOVES = 3
"""So many steps in a row, before each of which the learning rate had moved, are a schedule by steps."""
_RATE_STEPS = 256
_UNKNOWN_REDUCTION = (
    "With these settings it cannot be seen whether the loss is a mean or a sum over the batch, so the "
    "gradients of the parts cannot be weighed."
)


class Boundary(Protocol):
    """What is told of every step that took effect; `steps.Boundary` is the one there is."""

    def passed(self, optimizer: Any) -> None:
        """A step took effect (None: counted by backward passes)."""

    def may_have_passed(self) -> None:
        """A backward pass ended that perhaps stands for a step."""

    def anchor_optimizer(self) -> Any:
        """The optimizer whose step is the boundary; None where it is another source."""


class Optimizer:
    """Implements `OptimizerSeam` and `AccumulationSeam` (as `accumulation`)."""

    def __init__(
        self, state: State, undo: Undo, boundary: Boundary, loader: Loader, root: Root, losses: Losses
    ) -> None:
        self._state = state
        self._undo = undo
        self._boundary = boundary
        self._loader = loader
        self._root = root
        self._losses = losses
        self._torch: Any = None
        self._nested = False
        self._in_backward = False
        self._gone = self._steps_gone = False
        """Nothing is watched any more; steps are not."""
        self._backs: list[Callable[[], None]] = []
        self._step_back: Callable[[], None] | None = None
        """Take back what stands in the way of every step, and of `step` itself."""
        self._fuse = False
        self._fused: bool | None = None
        self._facts: OptimizerFacts | None = None
        self.accumulation = Accumulation(state)
        self.loops = Loops()
        self.constructed = 0
        self.stepped: dict[int, weakref.ref[Any]] = {}
        self._last: weakref.ref[Any] | None = None
        self._switched_at = 0
        self.alternating = False
        self.on_constructed: Callable[[Any], None] | None = None
        self.on_first_step: Callable[[Any], None] | None = None
        """Told of every optimizer when it is about to step for the first time."""
        self.on_backward: Callable[[], None] | None = None
        """Told that a backward pass begins."""
        self._watched = False
        """What backward passes have to tell is known, but for their losses and how many they are."""
        self.closure = False
        self.kernel_given = False
        self.zero_grad_seen = False
        self.zeroes_first = False
        """Gradients were zeroed between the begin of a part and its backward pass."""
        self.zeroes_module = False
        """A module was asked to zero its gradients after a backward pass."""
        self._part_begun = False
        self.explicit_gradient = False
        self.own_scaler = False
        self.steps_in_backward = False
        """An optimizer stepped inside of a backward pass, out of sight: in another thread."""
        self.steps_in_threads = 0
        """Steps in other threads than the script's own, which are not watched."""
        self.on_threads: Callable[[], None] | None = None
        """Told now and then that there are more of these."""
        self.skipped_steps = 0
        self.scheduler_per_step = False
        self._rates: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], int]] = weakref.WeakKeyDictionary()
        """Learning rates at the last step, and how many steps in a row they had moved before it."""
        self._first: weakref.WeakKeyDictionary[Any, tuple[tuple[float, ...], ...]] = (
            weakref.WeakKeyDictionary()
        )
        """Learning rates and weight decays when it stepped first."""
        self.backwards_seen = 0
        self._scheduler_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._in_scheduler = False
        self._averaged_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.averages_apart = False
        self._scaled: tuple[Any, Any] | None = None
        self._scaler: Any = None
        self._unscaled: set[int] = set()
        """Optimizers whose gradients have their true size since the last step."""
        self._found_inf: dict[Any, Any] = {}
        """Device -> steps that a fused kernel skipped, as a tensor there."""
        self._skipped_before = 0
        self._alive: list[weakref.ref[Any]] = []
        self._hooked: list[tuple[Any, Any, Any]] = []
        self._seed: dict[tuple[Any, Any, float], Any] = {}

    # Kernel

    def fuse(self) -> None:
        """Build optimizers of the exact classes with a fused kernel with ``fused=True``."""
        self._fuse = True

    def observed(self) -> bool | None:
        """Whether the anchor's groups are fused, or were while it lived; None before it stepped."""
        anchor = self._boundary.anchor_optimizer()
        if "optimizer" in self._state.faults.off:
            return None
        if anchor is not None:
            groups = getattr(self._kernel(anchor) or anchor, "param_groups", [])
            self._fused = bool(groups) and all(bool(group.get("fused")) for group in groups)
        return self._fused

    def _kernel(self, anchor: Any) -> Any:
        """Whose kernel turns the anchor's weights: its own, or that of the optimizer which it wraps."""
        exact = tuple(getattr(self._torch.optim, name, None) for name in _FUSED)
        if type(anchor) in exact:
            return anchor
        weights = _weights(anchor)
        # The same weights do not do: scripts may build several optimizers and use one.
        return next(
            (held for held in _held(anchor) if type(held) in exact and _weights(held) == weights), None
        )

    # Installation

    def install(self, torch: Any) -> None:
        """Put the seams in."""
        self._torch = torch
        self._wrap_step(torch.optim.Optimizer)
        self._wrap_backward(torch)
        self._wrap_zero_grad(torch.optim.Optimizer)
        self._wrap_zero_grad(torch.nn.Module)
        self._wrap_clip(torch)
        self._wrap_schedulers(torch.optim.lr_scheduler)
        self._wrap_averages()
        self._wrap_scaler(torch.amp.GradScaler)
        for name in _FUSED:
            cls = getattr(torch.optim, name, None)
            if cls is not None:
                self._wrap_kernel(cls)

    def _replace(self, owner: Any, attribute: str, value: object) -> None:
        self._backs.append(self._undo.replace(owner, attribute, value))

    def let_go(self, *, steps: bool) -> None:
        """Backward passes and what goes with them are as if we were not there, and steps if wanted.

        Optimizers that are built from now on get their kernel as before. What kept a method of ours, as
        schedulers keep an optimizer's `step`, comes by here and is passed on.
        """
        self._gone, self._steps_gone = True, steps
        self._scaled = None
        while self._backs:
            self._backs.pop()()
        if steps and self._step_back is not None:
            self.release()
            self._step_back()

    def release(self) -> None:
        """Give optimizer classes that were hooked through us torch's own wrapper."""
        for cls, ours, plain in self._hooked:
            if cls.__dict__.get("step") is ours:
                plain.hooked = True
                cls.step = plain
        self._hooked.clear()

    def _wrap_step(self, base: Any) -> None:
        original = base.__dict__["profile_hook_step"]
        wrap = original.__func__ if isinstance(original, staticmethod) else original
        original_init = base.__init__
        state = self._state
        is_compiling = self._torch.compiler.is_compiling

        def profile_hook_step(function: Any) -> Any:
            inner = wrap(function)

            @functools.wraps(inner)
            def step(this: Any, *args: Any, **kwargs: Any) -> Any:
                if is_compiling() or self._steps_gone:
                    return inner(this, *args, **kwargs)
                if self._nested or not state.here() or "optimizer" in state.faults.off:
                    if state.active and not self._nested:
                        self._elsewhere()
                    return inner(this, *args, **kwargs)
                if args or kwargs or not self._is_usual(this):
                    return self._step(inner, this, args, kwargs)
                # Most steps by far: nothing is to be found out or carried out, and every microsecond counts.
                self._nested = True
                state.micro_steps += 1
                try:
                    result = self._take(inner, this, args, kwargs, None)
                finally:
                    self._nested = False
                self._boundary.passed(this)
                return result

            # Whoever wraps it by `functools.wraps` copies the mark as well, so it says whose it is.
            step.__dict__["_autotune_plain"] = (step, inner)
            return step

        @functools.wraps(original_init)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            original_init(this, *args, **kwargs)
            if not state.active:
                return
            self.constructed += 1
            self._alive.append(weakref.ref(this))
            if self.on_constructed is not None:
                try:
                    self.on_constructed(this)
                except Exception as error:
                    state.faults.note("root", error)
            step = type(this).__dict__.get("step")
            ours, plain = getattr(step, "_autotune_plain", (None, None))
            if ours is step is not None and not any(cls is type(this) for cls, _, _ in self._hooked):
                self._hooked.append((type(this), step, plain))

        self._step_back = self._undo.replace(base, "profile_hook_step", staticmethod(profile_hook_step))
        self._undo.assign(base, "__init__", init)

    def _elsewhere(self) -> None:
        """An optimizer stepped where no step is watched."""
        state = self._state
        if state.in_backward:
            # By a hook on a gradient: where a device trains, its own thread calls those.
            self.steps_in_backward = True
        elif not state.here():
            self.steps_in_threads += 1
            if self.steps_in_threads % _TELLS_OF_THREADS == 0 and self.on_threads is not None:
                self.on_threads()

    def _is_usual(self, optimizer: Any) -> bool:
        """Steps of this optimizer follow each other as they are, and all is known that they tell."""
        known = self.scheduler_per_step or self._state.micro_steps > _RATE_STEPS
        last = self._last
        return (
            known
            and self.accumulation.factor == 1
            and self._scaler is None
            and last is not None
            and last() is optimizer
        )

    def _step(self, inner: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        state, accumulation = self._state, self.accumulation
        closure = kwargs.get("closure", args[0] if args else None)
        self._nested = True
        try:
            if closure is not None and not runs_once(closure, optimizer):
                self.closure = True
            state.micro_steps += 1
            self._note_stepping(optimizer)
            self._note_rate(optimizer)
            if accumulation.factor > 1 and self._may_defer(closure) and not accumulation.take_part():
                if accumulation.dropped:
                    self._forget_parts()
                return None
            result = self._take(inner, optimizer, args, kwargs, closure)
        finally:
            self._nested = False
        self._boundary.passed(optimizer)
        return result

    def _forget_parts(self) -> None:
        """What a rest that is dropped left behind is no part of the step that comes."""
        state = self._state
        self._loader.take_samples()
        state.losses.clear()
        state.backwards = state.batches = state.input_samples = 0

    @property
    def count(self) -> int:
        """Optimizers that step in turns; those that follow each other, as in folds, count as one."""
        alive = sum(1 for reference in self.stepped.values() if reference() is not None)
        return max(1, alive) if self.alternating else 1

    def _note_stepping(self, optimizer: Any) -> None:
        if self._last is not None and self._last() is optimizer:
            return
        self.stepped = {key: ref for key, ref in self.stepped.items() if ref() is not None}
        now, accumulation = self._state.micro_steps, self.accumulation
        if id(optimizer) not in self.stepped:
            self._note_first(optimizer)
        if id(optimizer) not in self.stepped and self.on_first_step is not None:
            try:
                self.on_first_step(optimizer)
            except Exception as error:
                self._state.faults.note("root", error)
        if id(optimizer) in self.stepped:
            self.alternating = True
        elif accumulation.pending:
            if now - self._switched_at <= accumulation.factor:
                accumulation.give_up("The optimizers that step change every few steps.")
            accumulation.begin()
        self.stepped[id(optimizer)] = self._last = weakref.ref(optimizer)
        self._switched_at = now

    def _note_first(self, optimizer: Any) -> None:
        """What scripts derive from their batch options, as its first step sees it."""
        try:
            groups = list(getattr(optimizer, "param_groups", ()))
            self._first[optimizer] = (
                _plain_numbers(_rate(group, optimizer) for group in groups),
                _plain_numbers(group.get("weight_decay") for group in groups),
            )
        except Exception as error:
            self._state.faults.note("rates", error)

    def _note_rate(self, optimizer: Any) -> None:
        """Whoever moves the learning rate before every step: schedules of libraries are not torch's."""
        if self.scheduler_per_step or self._state.micro_steps > _RATE_STEPS:
            return
        try:
            rates = tuple(group.get("lr") for group in getattr(optimizer, "param_groups", ()))
            if all(isinstance(rate, (int, float)) for rate in rates):  # a device would have to be waited for
                before, moves = self._rates.get(optimizer, (rates, 0))
                moves = moves + 1 if rates != before else 0
                self._rates[optimizer] = (rates, moves)
                self.scheduler_per_step = moves >= _RATE_MOVES
        except Exception as error:
            self._state.faults.note("rates", error)

    def hooks_gradients(self) -> bool:
        """Code of the script's own is called with the gradient of a weight, perhaps to change it."""
        alive = [held for held in (reference() for reference in self.stepped.values()) if held is not None]
        parameters = (p for held in alive for group in held.param_groups for p in group["params"])
        return any(_is_users(hook) for parameter in parameters for hook in _hooks(parameter))

    def _may_defer(self, closure: Any) -> bool:
        accumulation = self.accumulation
        if closure is not None:
            accumulation.give_up("The optimizer steps with a closure.")
        elif self.alternating:
            accumulation.give_up(f"{self.count} optimizers step in turns.")
        elif self.own_scaler:
            accumulation.give_up("The script scales its gradients itself.")
        return accumulation.factor > 1

    def _take(self, inner: Any, optimizer: Any, args: Any, kwargs: Any, closure: Any) -> Any:
        scaler = self._scaler
        if scaler is None or closure is not None:
            return inner(optimizer, *args, **kwargs)
        marker = _StepMarker(optimizer)
        with marker:
            result = scaler.step(optimizer, *args, **kwargs)
        self._note_skip(scaler, optimizer, marker.stepped)
        scaler.update()
        self._unscaled.clear()
        return result

    def _note_skip(self, scaler: Any, optimizer: Any, stepped: bool) -> None:
        """Count a skipped step; a fused kernel skips on the device, where it is counted without waiting."""
        if not stepped:
            self.skipped_steps += 1
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            try:
                for device, found in scaler._found_inf_per_device(optimizer).items():
                    if device in self._found_inf:
                        self._found_inf[device].add_(found)
                    else:
                        self._found_inf[device] = found.detach().clone()
            except Exception as error:
                self._state.faults.note("skipped_steps", error)

    def window_opens(self) -> None:
        """Steps skipped before, while the scale settles, do not count."""
        self._skipped_before = self._skipped_so_far()

    def skipped(self) -> int:
        """Steps of the window that a scaler skipped."""
        return max(0, self._skipped_so_far() - self._skipped_before)

    def _skipped_so_far(self) -> int:
        """Waits for the device; called where a window begins and ends."""
        found = max((float(value) for value in self._found_inf.values()), default=0.0)
        return self.skipped_steps + round(found)

    # Backward

    def _wrap_backward(self, torch: Any) -> None:
        original = torch.Tensor.backward
        direct = torch.autograd.backward
        state = self._state
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def backward(this: Any, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._gone:
                return original(this, gradient, *args, **kwargs)
            if self._in_backward or not state.here() or "backward" in state.faults.off:
                return original(this, gradient, *args, **kwargs)
            if gradient is None and not args and not kwargs and self._is_plain(this):
                return self._plain_backward(original, this)
            self._in_backward = True
            try:
                try:
                    gradient = self._before_backward(this, gradient)
                except Exception as error:
                    state.faults.note("backward", error)
                state.in_backward = True
                result = original(this, gradient, *args, **kwargs)
            finally:
                self._in_backward = state.in_backward = False
            self._after_backward()
            return result

        @functools.wraps(direct)
        def autograd_backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._in_backward or self._gone:
                return direct(*args, **kwargs)
            if not state.here() or "backward" in state.faults.off:
                return direct(*args, **kwargs)
            self._in_backward = state.in_backward = True
            try:
                result = direct(*args, **kwargs)
            finally:
                self._in_backward = state.in_backward = False
            self.explicit_gradient = True
            self._part_begun = False
            state.backwards += 1
            self._after_backward()
            return result

        self._replace(torch.Tensor, "backward", backward)
        self._replace(torch.autograd, "backward", autograd_backward)

    def _is_plain(self, loss: Any) -> bool:
        """A backward pass of which nothing is to be found out, and which goes as the script has it."""
        return (
            self._watched
            and self.accumulation.factor == 1
            and self._scaled is None
            and not self._root.detecting
            and self._root.dtype_name != "fp16"
        )

    def _plain_backward(self, original: Callable[..., Any], loss: Any) -> Any:
        """`_before_backward`, the pass and `_after_backward`, of a plain one."""
        state = self._state
        try:
            if self.on_backward is not None:
                self.on_backward()
            self._part_begun = False
            state.backwards += 1
            self._keep_loss(loss, 1.0)
        except Exception as error:
            state.faults.note("backward", error)
        self._in_backward = state.in_backward = True
        try:
            result = original(loss)
        finally:
            self._in_backward = state.in_backward = False
        try:
            self._loader.backward_seen()
            if self._root.inputs.said:
                self._root.inputs.backward()
        except Exception as error:
            state.faults.note("backward", error)
        self.backwards_seen += 1
        return result

    def _keep_loss(self, value: Any, factor: float) -> None:
        """What `backward` is called on, as it is now: scripts divide or multiply it in place for their logs.

        On a device that would have to be waited for it is kept as it is.
        """
        state = self._state
        if not state.keeps_losses or len(state.losses) >= _MAX_LOSSES:
            return
        if value.is_cpu and not value.dim():
            try:
                state.losses.append((float(value.item()), factor))
            except Exception:  # an object of the script's that only looks like one number
                state.losses.append((value.detach(), factor))
        elif not state.capturing():
            value = value.detach()
            # What a CUDA graph returns is overwritten by its next replay.
            state.losses.append((value.clone() if value.is_cuda else value, factor))

    def _before_backward(self, loss: Any, gradient: Any) -> Any:
        state = self._state
        if self.on_backward is not None:
            self.on_backward()
        self._part_begun = False
        state.backwards += 1
        value = loss
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0] is loss:
            value = scaled[1]
        if self._root.detecting:
            self._losses.backward(value)
            self._note_loop()
        factor = self._factor(gradient)
        if gradient is None:
            self._keep_loss(value, factor)
            if factor != 1.0 or self._own_scaler_wanted():
                return self._seed_gradient(loss, factor)
            return None
        self.explicit_gradient = True
        if self.accumulation.factor > 1:
            self.accumulation.give_up("backward is called with a gradient of the script's own.")
        return gradient

    def _note_loop(self) -> None:
        try:
            self.loops.note(self._torch)
        except Exception as error:
            self._state.faults.note("loops", error)

    def part_begins(self) -> None:
        """A framework's context for one part of a step is made."""
        self._part_begun = True

    def loop_hazards(self) -> tuple[str, ...]:
        """What the source of the loop says; see `autotune.core.loops`."""
        try:
            return (UNREAD,) if "loops" in self._state.faults.off else self.loops.hazards()
        except Exception as error:
            self._state.faults.note("loops", error)
            return (UNREAD,)

    def _factor(self, gradient: Any) -> float:
        """What the gradient of this part weighs in that of the whole batch."""
        accumulation = self.accumulation
        if accumulation.factor <= 1 or gradient is not None:
            return 1.0
        reduction = self._losses.reduction
        if reduction not in ("mean", "sum") and not self._root.compiles:
            # The first run saw it on larger batches: a guess would train otherwise. In compiled code it
            # cannot be seen; sums are not accumulated there (`Accumulation.settle`), so it is a mean.
            accumulation.give_up(_UNKNOWN_REDUCTION)
            return 1.0
        weight, others = accumulation.weigh(self._loader.part())
        if reduction == "sum":
            return 1.0
        if others != 1.0:
            self._reweigh(others)
        return weight

    def _reweigh(self, factor: float) -> None:
        """The step turns out to have fewer samples: what its other parts left weighs more."""
        optimizer = self._last() if self._last is not None else None
        groups = getattr(optimizer, "param_groups", ())
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        if gradients:
            with self._torch.no_grad():
                self._torch._foreach_mul_(gradients, factor)
        self._state.losses = [(value, weight * factor) for value, weight in self._state.losses]

    def _own_scaler_wanted(self) -> bool:
        return self._root.dtype_name == "fp16" and not self.own_scaler

    def _seed_gradient(self, loss: Any, factor: float) -> Any:
        torch = self._torch
        if self._own_scaler_wanted():
            if self._scaler is None:
                self._scaler = torch.amp.GradScaler(loss.device.type)
            one = torch.full((), factor, dtype=torch.float32, device=loss.device)
            seed = self._scaler.scale(one)
            return seed.expand_as(loss).to(loss.dtype)
        if loss.dim():
            return torch.full_like(loss, factor)
        key = (loss.device, loss.dtype, factor)
        seed = self._seed.get(key)
        if seed is None:
            self._seed[key] = seed = torch.full((), factor, dtype=loss.dtype, device=loss.device)
        return seed

    def _after_backward(self) -> None:
        state = self._state
        try:
            self._loader.backward_seen()
            self._root.inputs.backward()
            if self._root.detecting:
                self._root.batch_ended()
            self.backwards_seen += 1
            if not self._loader.built_any and self._loader.input_batch is None and state.input_samples:
                self._loader.input_batch = state.input_samples
        except Exception as error:
            state.faults.note("backward", error)
        # None of this ever comes to be otherwise again.
        self._watched = bool(self.constructed and state.micro_steps) and (
            self._loader.built_any or self._loader.input_batch is not None
        )
        if self._nested:
            return
        if self.steps_in_backward and not state.micro_steps:
            self._boundary.passed(None)
            return
        # An optimizer whose step is part of code that the script compiles is never seen stepping.
        hidden = self._root.own_compile and not state.micro_steps
        wanted = _NO_STEP_BACKWARDS if self.constructed else _NO_OPTIMIZER_BACKWARDS
        if hidden or not self.constructed:
            if self.backwards_seen >= wanted:
                self._boundary.passed(None)
            elif not self.constructed:
                self._boundary.may_have_passed()

    # What has to keep quiet

    def _wrap_zero_grad(self, cls: Any) -> None:
        original = cls.zero_grad
        is_compiling = self._torch.compiler.is_compiling

        @functools.wraps(original)
        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self._state.active:
                return original(this, *args, **kwargs)
            self.zero_grad_seen = True
            self.zeroes_first = self.zeroes_first or self._part_begun
            if self.backwards_seen and isinstance(this, self._torch.nn.Module):
                self.zeroes_module = True
            if self._unscaled and self._scaler is not None:
                self._step_left_out(this)
            if self.accumulation.pending or self.accumulation.open:
                last = self._last() if self._last is not None else None
                if last is None or last is this or _share(last, this):
                    if not self.accumulation.open:
                        return None
                    self.accumulation.thrown_away()
            return original(this, *args, **kwargs)

        self._replace(cls, "zero_grad", zero_grad)

    def _wrap_clip(self, torch: Any) -> None:
        places = [torch.nn.utils, sys.modules["torch.nn.utils.clip_grad"]]
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = getattr(torch.nn.utils, name)
            wrapped = self._clip(original, torch)
            for place in places:
                if hasattr(place, name):
                    self._replace(place, name, wrapped)

    def _clip(self, original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(parameters, *args, **kwargs)
            accumulation = self.accumulation
            if not self._state.here():
                return original(parameters, *args, **kwargs)
            if accumulation.factor > 1 and not accumulation.is_last_part:
                return torch.zeros(())
            if self._scaler is not None:
                parameters = self._unscale(parameters)
            return original(parameters, *args, **kwargs)

        return clip

    def _unscale(self, parameters: Any) -> Any:
        """Bring the gradients of the optimizer that owns these parameters to their true size, once a step.

        Returns:
            The parameters again: what was handed over may be a generator.
        """
        tensors = [parameters] if isinstance(parameters, self._torch.Tensor) else list(parameters)
        wanted = {id(tensor) for tensor in tensors if tensor.grad is not None}
        owner = self._owner(wanted) if wanted else None
        if wanted and owner is None:
            reason = "The gradients that the script clips are not those of one optimizer, so which are scaled"
            self._root.give_up("precision", f"{reason} is not known.")
        elif owner is not None and id(owner) not in self._unscaled:
            self._scaler.unscale_(owner)
            self._unscaled.add(id(owner))
        return parameters if isinstance(parameters, self._torch.Tensor) else tensors

    def _step_left_out(self, zeroed: Any) -> None:
        """Gradients were brought to their true size and are thrown away: the next ones are scaled anew.

        Scripts leave a step out by themselves where the norm that they clip to is no number.
        """
        if id(zeroed) in self._unscaled or not isinstance(zeroed, self._torch.optim.Optimizer):
            self._scaler.update()
            self._unscaled.clear()

    def _owner(self, wanted: set[int]) -> Any:
        """The one optimizer with all of these parameters, of several the one that steps; None without."""
        self._alive = [reference for reference in self._alive if reference() is not None]
        owners: list[Any] = []
        for optimizer in (reference() for reference in self._alive):
            groups = getattr(optimizer, "param_groups", ())
            if optimizer is not None and wanted <= {id(p) for group in groups for p in group["params"]}:
                owners.append(optimizer)
        stepping = self._last() if self._last is not None else None
        if any(owner is stepping for owner in owners):
            return stepping
        return owners[0] if len(owners) == 1 else None

    def _wrap_schedulers(self, module: Any) -> None:
        for cls in vars(module).values():
            if (
                isinstance(cls, type)
                and "step" in cls.__dict__
                and issubclass(
                    cls, (module.LRScheduler, getattr(module, "ReduceLROnPlateau", module.LRScheduler))
                )
            ):
                self._replace(cls, "step", self._scheduler_step(cls.__dict__["step"]))

    def _scheduler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        state = self._state

        @functools.wraps(original)
        def step(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_scheduler or not state.here():
                return original(this, *args, **kwargs)
            since = state.micro_steps - self._scheduler_at.get(this, 0)
            self._scheduler_at[this] = state.micro_steps
            if since == 1:
                if state.micro_steps > 1:
                    self.scheduler_per_step = True
                if self.accumulation.waits:
                    return None
            self._in_scheduler = True
            try:
                return original(this, *args, **kwargs)
            finally:
                self._in_scheduler = False

        return step

    def _wrap_averages(self) -> None:
        """A moving average of the weights moves once a step, not once a part of one."""
        cls: Any = getattr(sys.modules.get("torch.optim.swa_utils"), "AveragedModel", None)
        if cls is None:
            return
        original, state = cls.update_parameters, self._state

        @functools.wraps(original)
        def update_parameters(this: Any, *args: Any, **kwargs: Any) -> Any:
            if state.here():
                since = state.micro_steps - self._averaged_at.get(this, 0)
                self._averaged_at[this] = state.micro_steps
                self.averages_apart = self.averages_apart or since != 1
                if since == 1 and self.accumulation.waits:
                    return None
            return original(this, *args, **kwargs)

        self._replace(cls, "update_parameters", update_parameters)

    # The script's own scaler

    def _wrap_scaler(self, cls: Any) -> None:
        original_scale, original_step = cls.scale, cls.step
        state = self._state

        @functools.wraps(original_scale)
        def scale(this: Any, outputs: Any) -> Any:
            scaled = original_scale(this, outputs)
            if this is not self._scaler and not self._in_backward and state.here():
                self._scaled = (scaled, outputs)
                if this.is_enabled():
                    self.own_scaler = True
            return scaled

        @functools.wraps(original_step)
        def step(this: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._nested or this is self._scaler or not state.here() or not this.is_enabled():
                return original_step(this, optimizer, *args, **kwargs)
            self.own_scaler = True
            if self.accumulation.factor > 1:
                self.accumulation.give_up("The script scales its gradients itself.")
            taken = state.micro_steps
            self._nested = True
            marker = _StepMarker(optimizer)
            try:
                with marker:
                    result = original_step(this, optimizer, *args, **kwargs)
            finally:
                self._nested = False
            state.micro_steps = taken + 1
            self._note_stepping(optimizer)
            self._note_rate(optimizer)
            self._note_skip(this, optimizer, marker.stepped)
            self._boundary.passed(optimizer)
            return result

        self._replace(cls, "scale", scale)
        self._replace(cls, "step", step)

    # Kernel construction

    def _wrap_kernel(self, cls: Any) -> None:
        original = cls.__init__
        state = self._state

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if type(this) is not cls or not state.active:
                original(this, *args, **kwargs)
                return
            given = kwargs.get("fused") is not None or kwargs.get("foreach") is not None
            self.kernel_given = self.kernel_given or given
            if not self._fuse or given:
                if self._fuse:
                    state.refusals["fused_optimizer"] = "The script chooses the optimizer's kernel itself."
                original(this, *args, **kwargs)
                return
            if args and not isinstance(args[0], (list, tuple, dict, self._torch.Tensor)):
                args = (list(args[0]), *args[1:])
            elif "params" in kwargs and not isinstance(kwargs["params"], (list, tuple, dict)):
                kwargs["params"] = list(kwargs["params"])
            try:
                original(this, *args, **{**kwargs, "fused": True})
            except (RuntimeError, TypeError, ValueError) as error:
                state.refusals["fused_optimizer"] = f"torch has no fused kernel here: {error}"
                original(this, *args, **kwargs)

        self._undo.assign(cls, "__init__", init)

    # Facts

    def facts(self) -> OptimizerFacts | None:
        """What is known of the anchor, or was while it lived; None for manual updates."""
        anchor = self._boundary.anchor_optimizer()
        if anchor is None:
            return self._facts
        torch = self._torch
        kernel = self._kernel(anchor)
        parameters = [p for group in anchor.param_groups for p in group["params"]]
        groups = anchor.param_groups if kernel is None else kernel.param_groups
        # torch has Adagrad's fused kernel for the CPU alone.
        devices = ("cpu",) if type(kernel) is torch.optim.Adagrad else ("cpu", "cuda")
        rates, decays = self._first.get(anchor, ((), ()))
        self._facts = OptimizerFacts(
            name=type(anchor).__name__,
            count=self.count,
            fused=all(bool(group.get("fused")) for group in groups),
            can_fuse=kernel is not None
            and all(p.is_floating_point() and p.device.type in devices for p in parameters)
            and not any(group.get("differentiable") for group in groups),
            kernel_given=self.kernel_given,
            closure=self.closure,
            rates=rates,
            decays=decays,
        )
        return self._facts


def _rate(group: Any, optimizer: Any) -> Any:
    """The learning rate of a group of weights, without what a schedule makes of it.

    A warm-up may be counted in batches, and begin at nothing.
    """
    rate = group.get("initial_lr", group.get("lr"))
    is_nothing = isinstance(rate, Real) and not rate
    return getattr(optimizer, "defaults", {}).get("lr", rate) if is_nothing else rate


def _plain_numbers(values: Iterable[Any]) -> tuple[float, ...]:
    """The numbers; none at all where one of them is on a device, or is no number."""
    found: list[float] = []
    for value in values:
        if not isinstance(value, Real) and getattr(value, "is_cpu", False) is not True:
            return ()
        found.append(float(value))
    return tuple(found)


def _share(optimizer: Any, other: Any) -> bool:
    """Another optimizer (one wraps the other), or a module, has the weights that this one turns."""
    return not _weights(optimizer).isdisjoint(_weights(other))


def _hooks(parameter: Any) -> Iterator[Any]:
    """What is called with the gradient of a weight."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        yield from (getattr(parameter, name, None) or {}).values()


def _is_users(hook: Any) -> bool:
    """Written by the user; what libraries hook in, to log gradients mostly, is left out."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    code = getattr(hook, "__code__", None) or getattr(vars(type(hook)).get("__call__"), "__code__", None)
    return code is not None and is_user_file(code.co_filename)


def _held(this: Any) -> Iterator[Any]:
    """What an object has as attributes, by themselves or in a list."""
    for value in tuple(getattr(this, "__dict__", {}).values()):
        yield value
        if isinstance(value, (list, tuple)):
            yield from value


def _weights(this: Any) -> set[int]:
    groups = getattr(this, "param_groups", None)
    weights = this.parameters() if groups is None else (p for g in groups for p in g["params"])
    return {id(p) for p in weights}


class Accumulation:
    """Implements `AccumulationSeam`: the optimizer step takes effect every `factor` micro-batches."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.factor = 1
        self.pending = 0
        self.waits = False
        """The script's last step was not taken, so what it does once a step waits too."""
        self.open = False
        """A backward pass was made that the script has not stepped on yet."""
        self._parts = 0.0
        self._ends = False
        self._drops = False
        self._short = False
        self._recent: deque[int] = deque(maxlen=_RECENT_STEPS)
        self._rests: deque[int] = deque(maxlen=_RECENT_STEPS)

    def set(self, factor: int) -> None:
        """Let the optimizer step take effect every `factor` micro-batches."""
        self.factor = int(factor)
        self.begin()

    def begin(self) -> None:
        """What was deferred is over and done with."""
        self.pending, self._parts = 0, 0.0
        self._ends = self._drops = self.waits = self.open = False

    def thrown_away(self) -> None:
        """The script throws away what its backward passes left, and begins the step anew."""
        self._state.backwards = max(0, self._state.backwards - self.pending - 1)
        self._state.losses.clear()
        self.begin()

    def weigh(self, part: Part | None) -> tuple[float, float]:
        """How much the gradients of this part, and those there already, count in a mean over the step.

        A step ends with the pass over the loader, as that of the full batch does, and a rest of
        samples counts by its number. A rest that the loader would have dropped as a whole batch
        makes no step.

        Args:
            part: The batch that the next backward pass is over; None where that is not known.

        Returns:
            What this part's gradient is to be multiplied by, and what those of the parts before it.
        """
        self.open = True
        share = 1.0
        if part is not None:
            # Sizes that differ all the time are no rest: parts count alike, as their number does.
            share = part.samples / part.full if part.left == 0 and part.samples < part.full else 1.0
            self._ends = part.left == 0
        self._parts += share
        self._drops = part is not None and self._ends and part.drop_last and self._parts < self.factor
        if self._drops or self._parts == self.factor or not (self._ends or self.is_last_part):
            return share / self.factor, 1.0
        return share / self._parts, self.factor / self._parts

    @property
    def is_last_part(self) -> bool:
        """The optimizer's next step is to be taken, as far as is known."""
        return self.pending >= self.factor - 1 or (self._ends and not self._drops)

    def take_part(self) -> bool:
        """The script steps: whether the step is to be taken now, as its batch is whole or at its end."""
        self.pending += 1
        self.open = False
        if self.pending < self.factor and not self._ends:
            self.waits = True
            return False
        drops, self._short = self._drops, self.pending < self.factor
        self.begin()
        self.waits = drops
        return not drops

    @property
    def dropped(self) -> bool:
        """The script's last step ended a rest that makes no step."""
        return self.waits and not self.pending

    def observed(self) -> int | None:
        """Backward passes of most of the last complete steps; None before there was one."""
        off = self._state.faults.off
        if "optimizer" in off or "backward" in off:
            return None
        # Of equally many, the later counts; the rests of epochs only where there is nothing else.
        common = Counter(reversed(self._recent or self._rests)).most_common(1)
        return common[0][0] if common else None

    def note(self, backwards: int) -> None:
        """A step took effect after so many backward passes."""
        (self._rests if self._short else self._recent).append(backwards)
        self._short = False

    def give_up(self, reason: str) -> None:
        """The step is taken every time again; the reading then says so, or the run ends."""
        if self.factor == 1:
            return
        self._state.refusals["accumulation"] = reason
        self.factor = 1
        self.begin()
        self._recent.clear()
        self._rests.clear()
        self._state.lost("accumulation", reason)


class _StepMarker:
    """Notes whether an optimizer's step was called, by torch's own post hook."""

    def __init__(self, optimizer: Any) -> None:
        self.stepped = False
        self._optimizer = optimizer
        self._handle: Any = None

    def __enter__(self) -> None:
        register = getattr(self._optimizer, "register_step_post_hook", None)
        if register is not None:
            self._handle = register(self._fired)
        else:
            self.stepped = True

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _fired(self, *_: object) -> None:
        self.stepped = True
