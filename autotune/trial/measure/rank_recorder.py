"""Log of one rank of a distributed training, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.protocol.rank_log import UNKNOWN
from autotune.trial.hooks.step.losses import read_loss

if TYPE_CHECKING:
    from autotune.protocol.lines import Row
    from autotune.protocol.rank_log import RankWriter
    from autotune.trial.measure.communication import Communication
    from autotune.trial.runtime.faults import Faults
    from autotune.trial.runtime.memory import DeviceMemory

_LATER_NS = 250_000_000
"""Interval between readings of device state: memory, and losses stored there."""
_MOST_PENDING = 256


class RankRecorder:
    """Writes one row per optimizer step; never raises into the script or waits for a device.

    Args:
        writer: Log file of this rank.
        memory: Allocator figures of this process.
        faults: Log of errors.
        ranks: Number of ranks; sample counts are this rank's times this number.
    """

    def __init__(self, writer: RankWriter, memory: DeviceMemory, faults: Faults, *, ranks: int) -> None:
        self._writer = writer
        self._memory = memory
        self._faults = faults
        self._ranks = ranks
        self._torch: Any = None
        self._communication: Communication | None = None
        self._steps = 0
        self._later_ns = 0
        self._device: int | None = None
        self._pending: list[tuple[int, Any]] = []
        """Step and loss on the device, in step order."""
        self._copy: tuple[tuple[int, ...], Any, Any] | None = None
        """Steps, their losses being copied to the host, and the event that marks completion."""

    def watch(self, torch: Any, communication: Communication) -> None:
        """Count communication from now on; called once torch is imported."""
        self._torch = torch
        communication.install(torch)
        self._communication = communication

    def step(self, row: Row, loss: Any) -> None:
        """Record the end of a step."""
        if "rank_log" in self._faults.off:
            return
        try:
            self._step(row, loss)
        except Exception as error:
            self._faults.note("rank_log", error)

    def _step(self, row: Row, loss: Any) -> None:
        now = row[0]
        communication_ns, size = (
            (UNKNOWN, None) if self._communication is None else self._communication.take(now)
        )
        samples = row[2] // self._ranks
        self._writer.step(now, row[1], samples, communication_ns, size, self._value(loss))
        self._steps += 1
        if self._memory.on_cuda and now - self._later_ns > _LATER_NS:
            self._later_ns = now
            self._read_device()

    def _value(self, loss: Any) -> float | None:
        """Return the step's loss if it is a number; losses on a device are read later."""
        if loss is None or isinstance(loss, (int, float)):
            return loss
        if any(getattr(value, "is_cuda", False) for value, _ in loss):
            if len(self._pending) < _MOST_PENDING:
                total = sum(value.float().mean() * factor for value, factor in loss)
                self._pending.append((self._steps, total))
            return None
        return read_loss(loss)

    def _read_device(self) -> None:
        torch = self._torch
        if self._device is None:
            self._device = int(torch.cuda.current_device())
            self._writer.device(self._device)
        peak = self._memory.peak_bytes()
        if peak is not None:
            self._writer.peak(peak)
        if self._copy is not None and self._copy[2].query():
            for step, loss in zip(self._copy[0], self._copy[1].tolist(), strict=True):
                self._writer.loss(step, loss)
            self._copy = None
        if self._copy is None and self._pending and not self._memory.capturing:
            steps, losses = zip(*self._pending, strict=True)
            on_host = torch.stack(losses).to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending, self._copy = [], (steps, on_host, event)
