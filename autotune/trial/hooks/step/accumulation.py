"""Gradient accumulation: one optimizer step per several micro-batches. Standard library only."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.records.loader_stats import BatchPart
    from autotune.trial.runtime.state import RuntimeState

RECENT_STEPS = 8


class MicroBatches:
    """Implements `AccumulationHook`: the optimizer step takes effect every `factor` micro-batches."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self.factor = 1
        self.pending = 0
        self.waits = False
        """The script's last step was deferred or dropped, so its other per-step work is skipped."""
        self.open = False
        """A backward pass was made without a step by the script so far."""
        self.on_given_up: Callable[[float], None] = _nothing
        """Called with the factor for gradients of an incomplete step."""
        self._parts = 0.0
        self._ends = False
        self._drops = False
        self._short = False
        self._recent: deque[int] = deque(maxlen=RECENT_STEPS)
        self._rests: deque[int] = deque(maxlen=RECENT_STEPS)

    def set(self, factor: int) -> None:
        """Let the optimizer step take effect every `factor` micro-batches."""
        self._end_parts()
        self.factor = int(factor)
        self.begin()

    def begin(self) -> None:
        """Reset after a completed step."""
        self.pending, self._parts = 0, 0.0
        self._ends = self._drops = self.waits = self.open = False

    def thrown_away(self) -> None:
        """Restart the step, as the script discards its gradients."""
        self._state.backwards = max(0, self._state.backwards - self.pending - 1)
        self._state.losses.clear()
        self.begin()

    def weigh(self, part: BatchPart | None) -> tuple[float, float]:
        """Return the weights of this part's and of earlier gradients in the mean over the step.

        A step ends with the pass over the loader, like that of the full batch, and a rest of samples counts
        by its number. A rest that the loader would have dropped in full batches makes no step.

        Args:
            part: The batch of the next backward pass; None if unknown.

        Returns:
            The factor of this part's gradient, and that of the earlier parts.
        """
        self.open = True
        share = 1.0
        if part is not None:
            # Only the last batch of a pass can be a rest; others count as one part, whatever their size.
            share = part.samples / part.full if part.left == 0 and part.samples < part.full else 1.0
            self._ends = part.left == 0
        self._parts += share
        self._drops = part is not None and self._ends and part.drop_last and self._parts < self.factor
        if self._drops or self._parts == self.factor or not (self._ends or self.is_last_part):
            return share / self.factor, 1.0
        return share / self._parts, self.factor / self._parts

    @property
    def is_last_part(self) -> bool:
        """Whether the optimizer's next step will be taken, as far as known."""
        return self.pending >= self.factor - 1 or (self._ends and not self._drops)

    def take_part(self) -> bool:
        """Record a step by the script; return whether it takes effect: with all parts, or as a pass ends."""
        self.pending += 1
        self.open = False
        if self.pending < self.factor and not self._ends:
            self.waits = True
            return False
        drops, self._short = self._drops, self.pending < self.factor
        self.begin()
        self.waits = drops
        return not drops

    @property
    def dropped(self) -> bool:
        """Return whether the pass ended with too few parts for a step, as its loader drops the last batch."""
        return self.waits and not self.pending

    def observed(self) -> int | None:
        """Return the backward passes of most of the last complete steps; None before the first."""
        off = self._state.faults.off
        if "optimizer" in off or "backward" in off:
            return None
        # On a tie the later one counts; rests of epochs count only without others.
        common = Counter(reversed(self._recent or self._rests)).most_common(1)
        return common[0][0] if common else None

    def note(self, backwards: int) -> None:
        """Record a step that took effect, with its number of backward passes."""
        (self._rests if self._short else self._recent).append(backwards)
        self._short = False

    def give_up(self, reason: str) -> None:
        """End accumulation, so that every step takes effect; the reading reports the reason."""
        if self.factor == 1:
            return
        self._state.refusals["accumulation"] = reason
        self._end_parts()
        self.factor = 1
        self.begin()
        self._recent.clear()
        self._rests.clear()
        self._state.lost("accumulation", reason)

    def _end_parts(self) -> None:
        """Use the gradients of an incomplete step as their mean, or not if the next one starts from zero."""
        if self._parts:
            self.on_given_up(self.factor / self._parts if self.open else 0.0)


def _nothing(_factor: float) -> None:
    return
