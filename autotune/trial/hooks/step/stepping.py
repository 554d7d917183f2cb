"""Steps of optimizers: which of them step, and which of their steps are taken, deferred or skipped."""

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
"""So many steps in a row, before each of which the learning rate had moved, are a schedule by steps."""
_RATE_STEPS = 256


class StepListener(Protocol):
    """What is told of every step that took effect; `steps.Boundary` is the one there is."""

    def passed(self, optimizer: Any) -> None:
        """A step took effect (None: counted by backward passes)."""

    def may_have_passed(self) -> None:
        """A backward pass ended that perhaps stands for a step."""

    def anchor_optimizer(self) -> Any:
        """The optimizer whose step is the boundary; None where it is another source."""


class Stepping:
    """What is known of the optimizers that step, and the hook in their `step`."""

    def __init__(self, state: RuntimeState, undo: Undo, boundary: StepListener, loader: Loader) -> None:
        self._state = state
        self._undo = undo
        self._boundary = boundary
        self._loader = loader
        self._torch: Any = None
        self._nested = False
        self._steps_gone = False
        """Steps are not watched any more."""
        self._backs: list[Callable[[], None]] = []
        self._step_back: Callable[[], None] | None = None
        """Take back what stands in the way of every step, and of `step` itself."""
        self.accumulation = MicroBatches(state)
        self.constructed = 0
        self.stepped: dict[int, weakref.ref[Any]] = {}
        self._last: weakref.ref[Any] | None = None
        self._switched_at = 0
        self.alternating = False
        self.on_constructed: Callable[[Any], None] | None = None
        self.on_first_step: Callable[[Any], None] | None = None
        """Told of every optimizer when it is about to step for the first time."""
        self.closure = False
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
        self._scaler: Any = None
        self._unscaled: set[int] = set()
        """Optimizers whose gradients have their true size since the last step."""
        self._found_inf: dict[Any, Any] = {}
        """Device -> steps that a fused kernel skipped, as a tensor there."""
        self._skipped_before = 0
        self._alive: list[weakref.ref[Any]] = []
        self._hooked: list[tuple[Any, Any, Any]] = []

    def _replace(self, owner: Any, attribute: str, value: object) -> None:
        self._backs.append(self._undo.replace(owner, attribute, value))

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
                    # Most steps by far. When it ended is all that is noted of one.
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
                self._meets_closure()
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

    def _meets_closure(self) -> None:
        """An optimizer is about to step by a closure, which runs the model as often as it likes."""

    def end_scaling(self) -> None:
        """Gradients are not scaled by us any more."""
        self._scaler = None
        self._unscaled.clear()

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
                plain_numbers(rate_of(group, optimizer) for group in groups),
                plain_numbers(group.get("weight_decay") for group in groups),
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


class StepMarker:
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
