"""Optimizer steps: which optimizers step, and which steps are taken, deferred or skipped."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from autotune.trial.hooks.libraries.frameworks import runs_once
from autotune.trial.hooks.step.accumulation import MicroBatches
from autotune.trial.hooks.step.param_groups import gradient_hooks, is_users_hook, plain_numbers, rate_of
from autotune.trial.records.steady_steps import OFF, STEP, STEPPING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_TELLS_OF_THREADS = 16
_RATE_MOVES = 3
"""Number of consecutive steps with changed learning rates that indicates a schedule per step."""
_RATE_STEPS = 256


class StepListener(Protocol):
    """Receiver of every step that took effect, implemented by `StepCounter`."""

    def passed(self, optimizer: Any) -> None:
        """Record a step that took effect (None: counted by backward passes)."""

    def may_have_passed(self) -> None:
        """Record a backward pass that may stand for a step."""

    def anchor_optimizer(self) -> Any:
        """Return the optimizer whose step is the boundary; None for another source."""


class Stepping:
    """State of the optimizers that step, and the hook in their `step`."""

    def __init__(self, state: RuntimeState, undo: Undo, boundary: StepListener, loader: Loader) -> None:
        self._state = state
        self._undo = undo
        self._boundary = boundary
        self._loader = loader
        self._torch: Any = None
        self._nested = False
        self._steps_gone = False
        """Steps are not observed any more."""
        self._backs: list[Callable[[], None]] = []
        self._step_back: Callable[[], None] | None = None
        """Restores `step` and removes the hooks on every step."""
        self.accumulation = MicroBatches(state)
        self.constructed = 0
        self.stepped: dict[int, weakref.ref[Any]] = {}
        self._last: weakref.ref[Any] | None = None
        self._switched_at = 0
        self.alternating = False
        self.on_constructed: Callable[[Any], None] | None = None
        self.on_first_step: Callable[[Any], None] | None = None
        """Called before the first step of every optimizer."""
        self.closure = False
        self.own_scaler = False
        self.steps_in_backward = False
        """An optimizer stepped inside a backward pass, in another thread, which cannot be observed."""
        self.steps_in_threads = 0
        """Number of steps in other threads than the main one, which are not observed."""
        self.on_threads: Callable[[], None] | None = None
        """Called occasionally while this number grows."""
        self.skipped_steps = 0
        self.scheduler_per_step = False
        self._rates: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], int]] = weakref.WeakKeyDictionary()
        """Learning rates at the last step, and the number of consecutive changes before it."""
        self._first: weakref.WeakKeyDictionary[Any, tuple[tuple[float, ...], ...]] = (
            weakref.WeakKeyDictionary()
        )
        """Learning rates and weight decays at its first step."""
        self._scaler: Any = None
        self._unscaled: set[int] = set()
        """Optimizers whose gradients were unscaled since the last step."""
        self._found_inf: dict[Any, Any] = {}
        """Device -> steps that a fused kernel skipped, as a tensor there."""
        self._skipped_before = 0
        self._alive: list[weakref.ref[Any]] = []
        self.hooked: list[tuple[Any, Any, Any]] = []
        """Optimizer classes with a wrapped `step`: (class, wrapper, original method)."""

    def _replace(self, owner: Any, attribute: str, value: object) -> None:
        self._backs.append(self._undo.replace(owner, attribute, value))

    def release(self) -> None:
        """Restore torch's own wrapper in hooked optimizer classes."""
        for cls, wrapper, plain in self.hooked:
            if cls.__dict__.get("step") is wrapper:
                plain.hooked = True
                cls.step = plain
        self.hooked.clear()

    def _wrap_step(self, base: Any) -> None:
        original = base.__dict__["profile_hook_step"]
        wrap = original.__func__ if isinstance(original, staticmethod) else original
        original_init = base.__init__
        state, calm = self._state, self._state.calm
        is_compiling = self._torch.compiler.is_compiling
        clock, ident = time.perf_counter_ns, threading.get_ident

        def profile_hook_step(function: Any) -> Any:
            inner = wrap(function)

            @functools.wraps(inner)
            def step(this: Any, *args: Any, **kwargs: Any) -> Any:
                if (
                    calm.optimizer is this
                    and not (args or kwargs)
                    and ident() == calm.main
                    and calm.stage == STEP
                ):
                    # The most frequent case; only the end of the step is recorded.
                    calm.stage = STEPPING
                    state.micro_steps += 1
                    self._nested = True
                    try:
                        result = inner(this)
                    finally:
                        self._nested = False
                    now = clock()
                    if calm.stage != STEPPING or state.mark:
                        calm.leave()
                        self._boundary.passed(this)
                    elif now >= calm.soon_ns or calm.left <= 1:
                        if not calm.looked_at(now):
                            self._boundary.passed(this)
                    else:
                        calm.left -= 1
                        calm.stage = calm.first
                        calm.rows.append((now, calm.wait_ns, calm.loss, 0))
                    return result
                if calm.stage != OFF and not self._nested and state.here():
                    calm.leave()
                if is_compiling() or self._steps_gone:
                    return inner(this, *args, **kwargs)
                if self._nested or not state.here() or "optimizer" in state.faults.off:
                    if state.active and not self._nested:
                        self._note_unobserved()
                    return inner(this, *args, **kwargs)
                if args or kwargs or not self._is_usual(this):
                    return self._step(inner, this, args, kwargs)
                # The most frequent case: no observation or change is due, and every microsecond counts.
                self._nested = True
                state.micro_steps += 1
                try:
                    result = self._take(inner, this, args, kwargs, None)
                finally:
                    self._nested = False
                self._boundary.passed(this)
                return result

            # `functools.wraps` copies the mark as well, so it holds its owner.
            step.__dict__["_autotune_plain"] = (step, inner)
            return step

        @functools.wraps(original_init)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if state.here():
                calm.leave()
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
            wrapper, plain = getattr(step, "_autotune_plain", (None, None))
            if wrapper is step is not None and not any(cls is type(this) for cls, _, _ in self.hooked):
                self.hooked.append((type(this), step, plain))

        self._step_back = self._undo.replace(base, "profile_hook_step", staticmethod(profile_hook_step))
        self._undo.assign(base, "__init__", init)

    def _note_unobserved(self) -> None:
        """Record an optimizer step outside of observation."""
        state = self._state
        if state.in_backward:
            # By a hook on a gradient: on a device these are called in its own thread.
            self.steps_in_backward = True
        elif not state.here():
            self.steps_in_threads += 1
            if self.steps_in_threads % _TELLS_OF_THREADS == 0 and self.on_threads is not None:
                self.on_threads()

    def _is_usual(self, optimizer: Any) -> bool:
        """Return whether steps of this optimizer need no change, and all facts of them are known."""
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
                self._handle_closure()
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

    def _handle_closure(self) -> None:
        """Handle a step by a closure, which runs the model any number of times."""

    def end_scaling(self) -> None:
        """Stop scaling gradients."""
        self._scaler = None
        self._unscaled.clear()

    def _forget_parts(self) -> None:
        """Drop the gradients of a dropped rest, which are no part of the next step."""
        state = self._state
        self._loader.take_samples()
        state.losses.clear()
        state.backwards = state.batches = state.input_samples = 0

    @property
    def count(self) -> int:
        """Number of optimizers that step alternately; successive ones, as in folds, count as one."""
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
        """Record values that scripts derive from their batch options, at the first step."""
        try:
            groups = list(getattr(optimizer, "param_groups", ()))
            self._first[optimizer] = (
                plain_numbers(rate_of(group, optimizer) for group in groups),
                plain_numbers(group.get("weight_decay") for group in groups),
            )
        except Exception as error:
            self._state.faults.note("rates", error)

    def _note_rate(self, optimizer: Any) -> None:
        """Record changes of the learning rate before every step, as libraries have their own schedules."""
        if self.scheduler_per_step or self._state.micro_steps > _RATE_STEPS:
            return
        try:
            rates = tuple(group.get("lr") for group in getattr(optimizer, "param_groups", ()))
            if all(isinstance(rate, (int, float)) for rate in rates):  # reading from a device would wait
                before, moves = self._rates.get(optimizer, (rates, 0))
                moves = moves + 1 if rates != before else 0
                self._rates[optimizer] = (rates, moves)
                self.scheduler_per_step = moves >= _RATE_MOVES
        except Exception as error:
            self._state.faults.note("rates", error)

    def hooks_gradients(self) -> bool:
        """Return whether code of the script is called with the gradient of a weight, and may change it."""
        alive = [held for held in (reference() for reference in self.stepped.values()) if held is not None]
        parameters = (p for held in alive for group in held.param_groups for p in group["params"])
        return any(is_users_hook(hook) for parameter in parameters for hook in gradient_hooks(parameter))

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
        marker = StepMarker(optimizer)
        with marker:
            result = scaler.step(optimizer, *args, **kwargs)
        self._note_skip(scaler, optimizer, marker.stepped)
        scaler.update()
        self._unscaled.clear()
        return result

    def _note_skip(self, scaler: Any, optimizer: Any, stepped: bool) -> None:
        """Count a skipped step; fused kernels skip on the device, where steps are counted without waiting."""
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
        """Do not count earlier skipped steps, while the scale settled."""
        self._skipped_before = self._skipped_so_far()

    def skipped(self) -> int:
        """Return the steps of the window that a scaler skipped."""
        return max(0, self._skipped_so_far() - self._skipped_before)

    def _skipped_so_far(self) -> int:
        """Return the steps skipped so far; waits for the device, at the window's start and end only."""
        found = max((float(value) for value in self._found_inf.values()), default=0.0)
        return self.skipped_steps + round(found)


class StepMarker:
    """Records whether an optimizer's step was called, by torch's own post hook."""

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
