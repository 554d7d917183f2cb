"""The boundary: one optimizer step that took effect. Everything that can end a run happens here."""

# What scripts hand over is of any type; narrowing it yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import gc
import math
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from autotune.protocol.losses import BAD_LOSSES
from autotune.trial.kinds import kind_of
from autotune.trial.losses import read_loss
from autotune.trial.state import COLLECTION

if TYPE_CHECKING:
    from autotune.trial.loader import Loader
    from autotune.trial.optimizer import Optimizer
    from autotune.trial.recorder import Recorder
    from autotune.trial.state import State

_SILENT_STEPS = 8
_MESSAGE_CHARS = 500
_QUEUE_NS = 5_000_000
"""How often the scheduler is asked; it takes a system call."""


class Boundary:
    """Turns what the seams counted since the last step into one row.

    The first optimizer seen is the anchor; where it stays silent while others step, the anchor
    moves. `sdk.step` replaces every other source.
    """

    def __init__(self, state: State, recorder: Recorder) -> None:
        self._state = state
        self._recorder = recorder
        self.loader: Loader | None = None
        self.optimizer: Optimizer | None = None
        self._anchor: weakref.ref[Any] | None = None
        self._others: dict[int, int] = {}
        self._by_sdk = False
        self._schedstat = _open_schedstat()
        self._queue_ns = self._read_queue_ns()
        self._queue_read_ns = 0
        self._bad = 0
        self.backward_total = 0
        self.batch_total = 0
        self._first_backwards = 0
        gc.callbacks.append(self._collected)

    def anchor_optimizer(self) -> Any:
        """The optimizer whose step is the boundary; None where it is another source."""
        return self._anchor() if self._anchor is not None else None

    def backwards_per_step(self) -> float:
        """Backward passes per step, of the whole periods seen."""
        whole = self._state.steps - 1
        return self.backward_total / whole if whole > 0 else float(self._first_backwards)

    def batches_per_step(self) -> float | None:
        """Batches fetched per step, of the whole periods seen; None where none were seen."""
        whole = self._state.steps - 1
        return self.batch_total / whole if whole > 0 and self.batch_total else None

    def passed(self, optimizer: Any) -> None:
        """A step took effect (None: counted by backward passes)."""
        if self._by_sdk or self._state.capturing():
            return
        if optimizer is not None:
            anchor = self.anchor_optimizer()
            if anchor is None:
                self._anchor = weakref.ref(optimizer)
            elif anchor is not optimizer:
                steps = self._others.get(id(optimizer), 0) + 1
                self._others[id(optimizer)] = steps
                if steps <= _SILENT_STEPS:
                    return
                self._anchor = weakref.ref(optimizer)
                self._recorder.restart()
        self._others.clear()
        try:
            self._close_step(None)
        except Exception as error:
            self._state.faults.note("boundary", error)
            if self._recorder.measures:
                # Steps that cannot be counted yield nothing, however long the script runs on.
                kind, message = _broken(error)
                self._recorder.broke(kind=kind, error=type(error).__name__, message=message)

    def sdk_step(self, samples: int | None, loss: Any) -> None:
        """`autotune.sdk.step` was called."""
        state = self._state
        if not state.here():
            return
        self._by_sdk = True
        if loss is not None:
            value = loss.detach() if hasattr(loss, "detach") else loss
            # What a CUDA graph returns is overwritten by its next replay.
            value = value.clone() if getattr(value, "is_cuda", False) else value
            state.losses = [(value, 1.0)]
        self._close_step(samples)

    def _close_step(self, given: int | None) -> None:
        state = self._state
        now = time.perf_counter_ns()
        state.steps += 1
        samples, optimizer = given, self.optimizer
        fetched = self.loader.take_samples() if self.loader is not None else None
        if samples is None:
            samples = fetched
        if samples is None:
            samples = state.input_samples
        state.samples_total += samples
        if optimizer is not None and state.backwards:
            optimizer.accumulation.note(1 if optimizer.closure else state.backwards)
        if state.steps > 1:
            # What precedes the anchor's first step is part of no whole period.
            self.backward_total += state.backwards
            self.batch_total += state.batches
        else:
            self._first_backwards = state.backwards
        if state.input_samples and self.loader is not None and not self.loader.built_any:
            self.loader.input_batch = state.input_samples // max(1, state.backwards)
        queued_ns = 0
        if now - self._queue_read_ns >= _QUEUE_NS:
            self._queue_read_ns, before_ns = now, self._queue_ns
            self._queue_ns = self._read_queue_ns()
            queued_ns = self._queue_ns - before_ns
        row = (now, state.wait_ns, samples, -1.0, queued_ns, state.mark, state.take_aside_ns())
        losses, state.losses = state.losses, []
        batches = state.batches
        state.wait_ns = state.input_samples = state.mark = state.backwards = state.batches = 0
        loss = None
        try:
            if "loss" not in state.faults.off:
                loss = self._loss(losses)
        except Exception as error:
            state.faults.note("loss", error)
        if state.at_step:
            for told in tuple(state.at_step):
                told()
        self._recorder.step(row, loss, batches)

    def _loss(self, losses: list[tuple[Any, float]]) -> Any:
        """The step's loss as a number where that costs nothing, else as what is to be read later."""
        if not losses or not self._recorder.measures:
            return None
        optimizer = self.optimizer
        if optimizer is not None and optimizer.closure:
            losses = losses[:1]
        for value, _ in losses:
            if getattr(value, "is_cuda", False):
                return losses
        loss = read_loss(losses)
        self._bad = 0 if math.isfinite(loss) else self._bad + 1
        if self._bad >= BAD_LOSSES:
            self._recorder.diverged(loss)
        return loss

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info.get("generation") == 2 and self._state.active:
            self._state.mark |= COLLECTION

    def _read_queue_ns(self) -> int:
        if self._schedstat < 0:
            return 0
        try:
            return int(os.pread(self._schedstat, 96, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def release(self) -> None:
        """Give back what is held of the system."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1


def _broken(error: Exception) -> tuple[str, str]:
    """Kind and message: a kernel's own error comes to light wherever the device is asked next."""
    kind = kind_of(error)
    if kind in ("oom_cuda", "oom_host", "cuda_fatal"):
        return kind, (str(error).strip().splitlines() or [""])[0][:_MESSAGE_CHARS]
    return "no_metric", f"counting steps failed: {error}"


def _open_schedstat() -> int:
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
