"""Backward passes: number, losses, and the weight of each gradient in the step.

Accumulation and fp16 loss scaling multiply the seed gradient of `backward`. Neither the graph nor the loss
that the script prints is changed.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from autotune.source.loops import UNREAD
from autotune.trial.hooks.step.accumulation import RECENT_STEPS
from autotune.trial.hooks.step.stepping import Stepping
from autotune.trial.loop.own_pass import OwnPass
from autotune.trial.loop.training_loop import Loops, frames_here
from autotune.trial.records.steady_steps import BACKWARD, OFF, PASSING, STEP

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.model.forward_wrapper import ForwardWrapper
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.hooks.step.losses import Losses
    from autotune.trial.hooks.step.stepping import StepListener
    from autotune.trial.records.loader_stats import BatchPart
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_NO_OPTIMIZER_BACKWARDS = 3
_NO_STEP_BACKWARDS = 64
_MAX_LOSSES = 1024
_UNKNOWN_REDUCTION = (
    "With these settings it cannot be seen whether the loss is a mean or a sum over the batch, so the "
    "gradients of micro-batches cannot be weighted."
)


class Backward(Stepping):
    """State of the backward passes between steps, and the hooks in `backward`."""

    def __init__(
        self,
        state: RuntimeState,
        undo: Undo,
        boundary: StepListener,
        loader: Loader,
        root: TrainedModules,
        losses: Losses,
    ) -> None:
        super().__init__(state, undo, boundary, loader)
        self._root = root
        self._losses = losses
        self._in_backward = False
        self._gone = False
        """Backward passes are not observed any more."""
        self.loops = Loops()
        self.own_pass = OwnPass()
        """For batches without a loader."""
        self.on_loop: Callable[[list[FrameType]], None] | None = None
        """Receives the frames of a backward pass whose stack was not seen before."""
        self.on_backward: Callable[[], None] | None = None
        """Called at the start of a backward pass."""
        self.accumulation.on_given_up = self._given_up
        self._watched = False
        """All facts about backward passes are known, except their losses and their number."""
        self._part_begun = False
        self.explicit_gradient = False
        self.backwards_seen = 0
        self._scaled: tuple[Any, Any] | None = None
        self._seed: dict[tuple[Any, Any, float], Any] = {}

    def _wrap_backward(self, torch: Any) -> None:
        original = torch.Tensor.backward
        direct = torch.autograd.backward
        state, calm = self._state, self._state.calm
        is_compiling = torch.compiler.is_compiling

        ident = threading.get_ident

        @functools.wraps(original)
        def backward(this: Any, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
            if calm.stage == BACKWARD and gradient is None and not (args or kwargs) and ident() == calm.main:
                # The most frequent case; only the loss is recorded.
                try:
                    loss = this.item()
                except Exception:  # an object of the script that only resembles a number
                    loss = None
                if type(loss) is float and calm.stage == BACKWARD:
                    calm.loss = loss
                    calm.stage = PASSING
                    self._part_begun, self._scaled = False, None
                    self._in_backward = state.in_backward = True
                    try:
                        result = original(this)
                    finally:
                        self._in_backward = state.in_backward = False
                    if calm.stage == PASSING:
                        calm.stage = STEP
                    else:
                        self._is_over()
                    return result
            if calm.stage != OFF and not self._in_backward and state.here():
                calm.leave()
            if is_compiling() or self._gone:
                return original(this, gradient, *args, **kwargs)
            if self._in_backward or not state.here() or "backward" in state.faults.off:
                return original(this, gradient, *args, **kwargs)
            if gradient is None and not args and not kwargs and self._is_plain():
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
            if self._in_backward or is_compiling() or self._gone:
                return direct(*args, **kwargs)
            if calm.stage != OFF and state.here():
                calm.leave()
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

    def _is_plain(self) -> bool:
        """Return whether a backward pass needs neither observation nor change."""
        return (
            self._watched
            and self.accumulation.factor == 1
            and self._scaled is None
            and not self._root.detecting
            and self._root.dtype_name != "fp16"
        )

    def _plain_backward(self, original: Callable[..., Any], loss: Any) -> Any:
        """Run `_before_backward`, the pass and `_after_backward`, for a plain one."""
        state = self._state
        try:
            if self.on_backward is not None:
                self.on_backward()
            self._part_begun = False
            state.backwards += 1
            self._record_loss(loss, 1.0)
        except Exception as error:
            state.faults.note("backward", error)
        self._in_backward = state.in_backward = True
        try:
            result = original(loss)
        finally:
            self._in_backward = state.in_backward = False
        self._is_over()
        return result

    def _is_over(self) -> None:
        """Record the end of a plain pass."""
        try:
            self._loader.backward_seen()
            inputs = self._root.inputs
            if inputs.batch_size and self._loader.train is not None and not inputs.expects:
                # The batch size comes from the loader, so calls need not be inspected for it.
                inputs.batch_size = 0
            if inputs.batch_size:
                inputs.backward()
        except Exception as error:
            self._state.faults.note("backward", error)
        self.backwards_seen += 1

    def calm_call(self, optimizer: Any, inputs: int) -> ForwardWrapper | None:
        """Return the model whose calls and passes need no observation in steps like the last one.

        Args:
            optimizer: The optimizer that stepped.
            inputs: Samples in the models' calls in that step.
        """
        call = None if self.own_scaler or self._root.own_compile else self._root.only()
        if (
            call is None
            or not (self._is_plain() and self._is_usual(optimizer))
            or call.calm_samples() != inputs
        ):
            return None
        return call

    def count_steady(self, count: int) -> None:
        """Count steps of one pass each, equal to the last one."""
        for _ in range(min(count, RECENT_STEPS)):
            self.accumulation.note(1)
        self.backwards_seen += count

    def passes_calmly(self, loss: float, *, is_over: bool) -> None:
        """Count a backward pass equal to the last one, with unknown continuation."""
        state = self._state
        self._part_begun = False
        state.backwards += 1
        if len(state.losses) < _MAX_LOSSES:
            state.losses.append((loss, 1.0))
        if is_over:
            self._is_over()

    def _record_loss(self, value: Any, factor: float) -> None:
        """Record the value that `backward` is called on, as scripts scale it in place for their logs.

        On a device it is stored without waiting.
        """
        state = self._state
        if not state.keeps_losses or len(state.losses) >= _MAX_LOSSES:
            return
        if value.is_cpu and not value.dim():
            try:
                state.losses.append((float(value.item()), factor))
            except Exception:  # an object of the script that only resembles a number
                state.losses.append((value.detach(), factor))
        elif not state.capturing():
            value = value.detach()
            # The output of a CUDA graph is overwritten by its next replay.
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
        other = self._loader.other_size() if self.accumulation.factor > 1 else ""
        if other:
            self.accumulation.give_up(other)
        factor = self._factor(gradient)
        if gradient is None:
            self._record_loss(value, factor)
            if factor != 1.0 or self._own_scaler_wanted():
                return self._seed_gradient(loss, factor)
            return None
        self.explicit_gradient = True
        if self.accumulation.factor > 1:
            self.accumulation.give_up("backward is called with a gradient of the script's own.")
        return gradient

    def _note_loop(self) -> None:
        try:
            frames = self.loops.note(self._torch)
            if frames and self.on_loop is not None:
                self.on_loop(frames)
        except Exception as error:
            self._state.faults.note("loops", error)

    def part_begins(self) -> None:
        """Record that a framework creates its context for one part of a step."""
        self._part_begun = True

    def loop_hazards(self) -> tuple[str, ...]:
        """Return hazards from the source of the loop; see `autotune.source.loops`."""
        try:
            return (UNREAD,) if "loops" in self._state.faults.off else self.loops.hazards()
        except Exception as error:
            self._state.faults.note("loops", error)
            return (UNREAD,)

    def _factor(self, gradient: Any) -> float:
        """Return the weight of this part's gradient in that of the full batch."""
        accumulation = self.accumulation
        if accumulation.factor <= 1 or gradient is not None:
            return 1.0
        reduction = self._losses.reduction
        compiles = self._root.compiles and not self._root.own_compile
        if reduction not in ("mean", "sum") and not compiles:
            # The first run observed larger batches, so a guess could change the training. In code that only
            # autotune compiles the reduction cannot be observed. Sums are not accumulated there
            # (`Accumulation.settle`), so it is a mean.
            accumulation.give_up(_UNKNOWN_REDUCTION)
            return 1.0
        part = self._part()
        if isinstance(part, str):
            accumulation.give_up(part)
            return 1.0
        weight, others = accumulation.weigh(part)
        if reduction == "sum":
            return 1.0
        if others != 1.0:
            self._reweigh(others)
        return weight

    def _part(self) -> BatchPart | str | None:
        """Return the batch of the pass, from a loader or from the script's own pass."""
        if self._loader.feeds:
            return self._loader.part()
        inputs = self._root.inputs
        inputs.weighed = True
        if self.own_pass.begins:
            self.own_pass.begin(frames_here(self._torch), inputs.batch_size)
        return self.own_pass.part(inputs.last, inputs.batch_size)

    def own_pass_samples(self) -> int:
        """Return the samples of the script's own passes over its data; 0 if a loop may end otherwise."""
        try:
            samples = 0 if self._loader.feeds else self.own_pass.samples
            return samples if samples and self.loops.has_one_pass() else 0
        except Exception as error:
            self._state.faults.note("own_pass", error)
            return 0

    def _reweigh(self, factor: float) -> None:
        """Rescale the gradients of the other parts, as the step has fewer samples than expected."""
        optimizer = self._last() if self._last is not None else None
        groups = getattr(optimizer, "param_groups", ())
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        if gradients:
            with self._torch.no_grad():
                self._torch._foreach_mul_(gradients, factor)
        self._state.losses = [(value, weight * factor) for value, weight in self._state.losses]

    def _handle_closure(self) -> None:
        if self._own_scaler_wanted():
            self._root.give_up(
                "precision", "The optimizer steps with a closure, whose gradients cannot be scaled."
            )

    def _given_up(self, factor: float) -> None:
        """Scale the gradients of an incomplete step to the mean of its parts, or drop them before others."""
        optimizer = self._last() if self._last is not None else None
        if factor:
            # Parts of a sum have the weight of the full batch.
            if self._losses.reduction != "sum":
                self._reweigh(factor)
            return
        for group in getattr(optimizer, "param_groups", ()):
            for parameter in group["params"]:
                parameter.grad = None

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
        # These facts cannot change any more.
        self._watched = bool(self.constructed and state.micro_steps) and (
            self._loader.built_any or self._loader.input_batch is not None
        )
        if self._nested:
            return
        if self.steps_in_backward and not state.micro_steps:
            self._boundary.passed(None)
            return
        # Steps of an optimizer inside code compiled by the script cannot be observed.
        hidden = self._root.own_compile and not state.micro_steps
        wanted = _NO_STEP_BACKWARDS if self.constructed else _NO_OPTIMIZER_BACKWARDS
        if hidden or not self.constructed:
            if self.backwards_seen >= wanted:
                self._boundary.passed(None)
            elif not self.constructed:
                self._boundary.may_have_passed()
