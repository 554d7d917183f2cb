"""Backward passes whose gradients are not exchanged: only the last of a step exchanges their sum.

`DistributedDataParallel` reads `require_backward_grad_sync` in every forward call. A property in its place
decides by how many passes the step has had. A step that ends with a pass that was not exchanged, as the last
one of an epoch may, exchanges the sums before anything reads them.
"""

# Modules and tensors are of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import importlib
import sys
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.hooks.distributed.data_parallel import DataParallel
    from autotune.trial.hooks.step.accumulation import MicroBatches
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

NO_SYNC: Final = "ddp_no_sync"
_FLAG: Final = "require_backward_grad_sync"
_RECENT_STEPS: Final = 8


class DeferredExchange:
    """Choice of the backward passes of a step that exchange gradients.

    Args:
        state: Shared counters.
        undo: Restores classes and functions.
        parallel: The wrappers.
    """

    def __init__(self, state: RuntimeState, undo: Undo, parallel: DataParallel) -> None:
        self._state = state
        self._undo = undo
        self._parallel = parallel
        self._torch: Any = None
        self.accumulation: MicroBatches | None = None
        self.every = 1
        """Backward passes of a step, of which the last exchanges; 1 exchanges in each."""
        self._is_wrapped = False
        self._answers: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._pending: weakref.WeakSet[Any] = weakref.WeakSet()
        """Wrappers with gradients that were not exchanged."""
        self._passes = self._exchanges = 0
        self._recent: deque[int] = deque(maxlen=_RECENT_STEPS)

    def install(self, torch: Any) -> None:
        """Settle gradients before anything reads them; install before what defers an optimizer's step."""
        self._torch = torch
        self._parallel.on_constructed.append(self._watch)
        utils = torch.nn.utils
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            settling = self._settling(getattr(utils, name))
            for place in (utils, sys.modules["torch.nn.utils.clip_grad"]):
                if hasattr(place, name):
                    self._undo.assign(place, name, settling)
        for name in ("unscale_", "step"):
            self._undo.assign(torch.amp.GradScaler, name, self._settling(getattr(torch.amp.GradScaler, name)))

    def observed(self) -> int | None:
        """Return backward passes per exchange, of most of the last steps; None before there was one."""
        if self.every == 1:
            return 1 if self._parallel.wrappers() and not self._parallel.no_sync_seen else None
        common = Counter(self._recent).most_common(1)
        return common[0][0] if common else None

    @property
    def _defers(self) -> bool:
        return self.every > 1 or (self.accumulation is not None and self.accumulation.factor > 1)

    def _watch(self, wrapper: Any) -> None:
        """Count the passes of a wrapper, where exchanges are deferred at all."""
        if not self._defers:
            return
        if not self._is_wrapped:
            self._is_wrapped = True
            optimizer = importlib.import_module("torch.optim.optimizer")
            handle = optimizer.register_optimizer_step_pre_hook(self._before_step)
            self._undo.then(handle.remove)
            self._undo.assign(type(wrapper), _FLAG, property(self._exchanges_now, _keep))
        first = next((p for p in wrapper.parameters() if p.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(functools.partial(self._passed, weakref.ref(wrapper)))

    def _exchanges_now(self, wrapper: Any) -> bool:
        """Return whether the backward pass after this forward call exchanges gradients."""
        wanted = bool(vars(wrapper).get(_FLAG, True))
        if wanted and self._state.active:
            accumulation = self.accumulation
            if accumulation is not None and accumulation.factor > 1:
                wanted = accumulation.pending >= accumulation.factor - 1
            elif self.every > 1:
                wanted = self._passes % self.every == self.every - 1
        self._answers[wrapper] = wanted
        return wanted

    def _passed(self, reference: weakref.ref[Any], _parameter: Any) -> None:
        wrapper = reference()
        if wrapper is None:
            return
        self._passes += 1
        if self._answers.get(wrapper, True):
            self._exchanges += 1
            self._pending.discard(wrapper)
        else:
            self._pending.add(wrapper)

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.settle()
        if self._passes and self._exchanges:
            self._recent.append(round(self._passes / self._exchanges))
        self._passes = self._exchanges = 0

    def _settling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._pending:
                self.settle()
            return original(*args, **kwargs)

        return call

    def settle(self) -> None:
        """Exchange the gradients of passes that were not exchanged: their mean over the processes."""
        torch = self._torch
        while self._pending:
            wrapper = self._pending.pop()
            self._exchanges += 1
            distributed = importlib.import_module("torch.distributed")
            by_form: dict[tuple[Any, Any], list[Any]] = {}
            for parameter in wrapper.parameters():
                if parameter.requires_grad and parameter.grad is not None:
                    form = (parameter.grad.dtype, parameter.grad.device)
                    by_form.setdefault(form, []).append(parameter.grad)
            with torch.no_grad():
                for gradients in by_form.values():
                    flat = torch.cat([g.reshape(-1) for g in gradients])
                    distributed.all_reduce(flat, group=wrapper.process_group)
                    flat.div_(wrapper.process_group.size())
                    parts = flat.split([g.numel() for g in gradients])
                    for gradient, part in zip(gradients, parts, strict=True):
                        gradient.copy_(part.view_as(gradient))


def _keep(wrapper: Any, value: bool) -> None:
    """Set the script's own value, which `no_sync` also sets."""
    vars(wrapper)[_FLAG] = value
