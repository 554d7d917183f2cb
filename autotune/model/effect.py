"""Effect of a knob on the mathematics of a training. Standard library only."""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """Effect of a change on the training itself, weakest first."""

    EXACT = "exact"
    """The same arithmetic per sample, up to reordered sums. May be in the pick `safe`."""
    NUMERIC = "numeric"
    """The same mathematics with other rounding or kernels. Needs the loss guard; `best`."""
    TRAINING = "training"
    """Another effective batch, statistics, order. Judged by time to equal loss; `fastest` only."""

    @property
    def rank(self) -> int:
        """0 for EXACT, 1 for NUMERIC, 2 for TRAINING."""
        return ("exact", "numeric", "training").index(self.value)

    def allows(self, other: Effect) -> bool:
        """Return whether `other` reaches no further than this effect."""
        return other.rank <= self.rank


def strictest(*effects: Effect) -> Effect:
    """Return the effect that reaches furthest; EXACT where there is none."""
    return max(effects, key=lambda effect: effect.rank, default=Effect.EXACT)
