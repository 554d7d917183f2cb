"""Losses of a measured run: read late, as reading waits for a device, and thinned for the report."""

from __future__ import annotations

import math
from typing import Any

from autotune.model.measurement import LossPoint
from autotune.protocol.losses import broken_at
from autotune.trial.hooks.step.losses import read_loss

_MOST_POINTS = 300


class LossTrace:
    """Losses by samples and time.

    A point is (samples of the run so far, loss or what it is read from, end of the step in ns).
    """

    def __init__(self) -> None:
        self.points: list[tuple[int, Any, int]] = []

    def read(self) -> None:
        """Read pending losses; unreadable ones are left out."""
        read = [(samples, read_loss(loss), at_ns) for samples, loss, at_ns in self.points]
        self.points = [(samples, loss, at_ns) for samples, loss, at_ns in read if loss is not None]

    def broken(self, *, ended: bool) -> float | None:
        """Return the loss at which the run, as read so far, has diverged; None if it has not.

        Args:
            ended: No further losses follow.
        """
        at = broken_at([loss for _, loss, _ in self.points], ended=ended)
        return None if at is None else self.points[at][1]

    def thinned(self, begin_ns: int) -> tuple[LossPoint, ...]:
        """Return the read losses in bins of equal step counts, with times from `begin_ns` on.

        A single non-finite loss is left out, as the run continued after it.
        """
        size = max(1, -(-len(self.points) // _MOST_POINTS))
        thin: list[LossPoint] = []
        for index in range(0, len(self.points), size):
            part = self.points[index : index + size]
            known = [loss for _, loss, _ in part if math.isfinite(loss)]
            if not known:
                continue
            samples, _, at_ns = part[-1]
            loss = math.fsum(known) / len(known)
            thin.append(LossPoint(samples=samples, loss=loss, t_s=(at_ns - begin_ns) / 1e9))
        return tuple(thin)
