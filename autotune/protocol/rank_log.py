"""Log file per rank of a distributed training: binary records of its steps. Standard library only.

Rank 0 ends the trial by its own decision, and the other ranks are killed with it. So a rank writes each step
with one system call, as a record of fixed size, and a reader finds every completed step.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from autotune.protocol.lines import open_plain

if TYPE_CHECKING:
    from pathlib import Path

_RECORD: Final = struct.Struct("<qqqqqqd")
"""Kind, five integers, and the loss."""
_STEP, _LOSS, _PEAK, _DEVICE = 1, 2, 3, 4
_HAS_LOSS, _HAS_BYTES = 16, 32
"""Bits of a step's kind: its loss, and its gradient bytes, are known."""
UNKNOWN: Final = -1
"""Communication time of a step that was not read."""
_CHUNK_RECORDS = 4096


def file_name(rank: int | str) -> str:
    """Return the name of a rank's file in the trial's folder; with ``*`` the pattern of all."""
    return f"rank{rank}.steps"


class RankWriter:
    """Appends the steps of one rank; inactive in forks of its process.

    Args:
        path: From `file_name`, in the trial's folder.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()

    def step(
        self,
        t_ns: int,
        wait_ns: int,
        samples: int,
        communication_ns: int,
        gradient_bytes: int | None,
        loss: float | None,
    ) -> None:
        """Write one optimizer step; samples, loss and bytes are this rank's alone."""
        kind = (
            _STEP | (_HAS_LOSS if loss is not None else 0) | (_HAS_BYTES if gradient_bytes is not None else 0)
        )
        self._write(kind, t_ns, wait_ns, samples, communication_ns, gradient_bytes or 0, loss or 0.0)

    def loss(self, step: int, loss: float) -> None:
        """Write the loss of an earlier step (from 0) that was read from the device since."""
        self._write(_LOSS, step, 0, 0, 0, 0, loss)

    def peak(self, size: int) -> None:
        """Write the peak of the device allocator in bytes."""
        self._write(_PEAK, size, 0, 0, 0, 0, 0.0)

    def device(self, index: int) -> None:
        """Write the index of the CUDA device that this rank uses."""
        self._write(_DEVICE, index, 0, 0, 0, 0, 0.0)

    def _write(self, kind: int, *rest: float) -> None:
        if os.getpid() == self._pid:
            os.write(self._fd, _RECORD.pack(kind, *rest))


@dataclass(slots=True)
class RankLog:
    """Records of one rank; the lists have one entry per step."""

    rank: int
    t_ns: list[int] = field(default_factory=list[int])
    wait_ns: list[int] = field(default_factory=list[int])
    samples: list[int] = field(default_factory=list[int])
    communication_ns: list[int] = field(default_factory=list[int])
    gradient_bytes: list[int | None] = field(default_factory=list["int | None"])
    losses: list[float | None] = field(default_factory=list["float | None"])
    peak_bytes: int | None = None
    device: str = "cpu"

    @property
    def broke_at(self) -> int | None:
        """Index of the first step with a non-finite loss; None without one."""
        return next((k for k, x in enumerate(self.losses) if x is not None and not math.isfinite(x)), None)


def read_rank_log(folder: Path, rank: int) -> RankLog | None:
    """Return the records of a rank so far; None without any. An incomplete last record is left out."""
    found = RankLog(rank=rank)
    try:
        file = open_plain(folder / file_name(rank))
    except OSError:
        return None
    with file:
        while data := file.read(_CHUNK_RECORDS * _RECORD.size):
            whole = len(data) - len(data) % _RECORD.size
            for record in _RECORD.iter_unpack(data[:whole]):
                _take(found, record)
    return found if found.t_ns else None


def _take(found: RankLog, record: tuple[int, int, int, int, int, int, float]) -> None:
    kind, first, wait_ns, samples, communication_ns, size, loss = record
    if kind & 15 == _STEP:
        found.t_ns.append(first)
        found.wait_ns.append(wait_ns)
        found.samples.append(samples)
        found.communication_ns.append(communication_ns)
        found.gradient_bytes.append(size if kind & _HAS_BYTES else None)
        found.losses.append(loss if kind & _HAS_LOSS else None)
    elif kind == _LOSS and 0 <= first < len(found.losses):
        found.losses[first] = loss
    elif kind == _PEAK:
        found.peak_bytes = max(first, found.peak_bytes or 0)
    elif kind == _DEVICE:
        found.device = f"cuda:{first}"
