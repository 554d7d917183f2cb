"""Time of a step by phase: forward, loss, backward, optimizer, and the rest.

Used in a probed process, never in one whose throughput is measured.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from autotune.trial.runtime.queue_delay import QueueDelay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autotune.trial.runtime.undo import Undo


class Phases:
    """A stack of what the training thread is in, with the time it spent in each.

    Args:
        synchronise: Waits for the device at every change, so that its work is booked where it was
            launched; does nothing on the CPU.
    """

    def __init__(self, synchronise: Callable[[], None] | None = None) -> None:
        self._synchronise = synchronise
        self._delay = QueueDelay()
        self._stack = ["host"]
        self._at = (0, 0, 0)
        self.spent_ns: dict[str, int] = defaultdict(int)
        """By phase, without what the thread waited for a CPU: what runs beside it is no part of a step."""
        self.queued_ns = 0
        self.blocked_ns: dict[str, int] = defaultdict(int)

    @property
    def knows_blocking(self) -> bool:
        """Return whether the kernel provides this thread's wait for a CPU, to separate it from blocking."""
        return self._delay.known

    def begin(self) -> None:
        """Count from now on, in the phase ``host``."""
        self.spent_ns.clear()
        self.queued_ns = 0
        self.blocked_ns.clear()
        self._stack = ["host"]
        self._at = self._now()

    def enter(self, phase: str) -> None:
        """Enter a phase."""
        self.turn()
        if phase == "backward" and self._stack[-1] == "loss":
            self._stack.pop()
        self._stack.append(phase)

    def leave(self, following: str = "") -> None:
        """Leave the current phase; the time after it may have its own phase."""
        self.turn()
        if len(self._stack) > 1:
            self._stack.pop()
        if following and self._stack[-1] not in ("backward", "optimizer", following):
            self._stack.append(following)

    def step_ends(self) -> None:
        """End open phases, such as a loss without a backward pass."""
        self._stack = [phase for phase in self._stack if phase != "loss"] or ["host"]

    def turn(self) -> None:
        """Book the time since the last change."""
        if self._synchronise is not None:
            self._synchronise()
        now = self._now()
        wall, ran, queued = (b - a for a, b in zip(self._at, now, strict=True))
        phase = self._stack[-1]
        self.spent_ns[phase] += wall - queued
        self.queued_ns += queued
        self.blocked_ns[phase] += wall - ran - queued
        self._at = now

    def _now(self) -> tuple[int, int, int]:
        return time.perf_counter_ns(), time.thread_time_ns(), self._delay.ns()

    # Where phases begin and end

    def watch(self, undo: Undo, torch: Any, optimizer: Any, roots: Iterable[tuple[Any, Any]]) -> None:
        """Put the marks in.

        Args:
            undo: Takes them out again.
            torch: The module.
            optimizer: Whose `_take` carries out an optimizer's step.
            roots: Trained modules with what is called in their place.
        """
        for module, call in roots:
            held = module.__dict__
            held["_compiled_call_impl"] = self._timed(call, "forward", following="loss")
            undo.then(functools.partial(held.__setitem__, "_compiled_call_impl", call))
        undo.assign(torch.Tensor, "backward", self._timed(torch.Tensor.backward, "backward"))
        undo.assign(torch.autograd, "backward", self._timed(torch.autograd.backward, "backward"))
        undo.assign(optimizer, "_take", self._timed(optimizer._take, "optimizer"))

    def _timed(self, original: Callable[..., Any], phase: str, *, following: str = "") -> Callable[..., Any]:
        main = threading.get_ident()

        def timed(*args: Any, **kwargs: Any) -> Any:
            # A nested backward pass is part of the outer one, and other threads are not observed.
            if threading.get_ident() != main or self._stack[-1] == phase:
                return original(*args, **kwargs)
            self.enter(phase)
            try:
                return original(*args, **kwargs)
            finally:
                self.leave(following)

        return timed

    def close(self) -> None:
        """Give back what is held of the system."""
        self._delay.close()
