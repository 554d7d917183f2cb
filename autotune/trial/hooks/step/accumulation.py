"""Accumulation: an optimizer step that takes effect every so many micro-batches. Standard library only."""

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
        """The script's last step was not taken, so what it does once a step waits too."""
        self.open = False
        """A backward pass was made that the script has not stepped on yet."""
        self.on_given_up: Callable[[float], None] = _nothing
        """Called with the factor for gradients of the parts of a step that is not whole."""
        self._parts = 0.0
        self._ends = False
        self._drops = False
        self._short = False
        self._recent: deque[int] = deque(maxlen=RECENT_STEPS)
        self._rests: deque[int] = deque(maxlen=RECENT_STEPS)

    def set(self, factor: int) -> None:
        """Let the optimizer step take effect every `factor` micro-batches."""
        self.factor = int(factor)
        self.begin()

    def begin(self) -> None:
        """What was deferred is over and done with."""
        self.pending, self._parts = 0, 0.0
        self._ends = self._drops = self.waits = self.open = False

    def thrown_away(self) -> None:
        """The script throws away what its backward passes left, and begins the step anew."""
        self._state.backwards = max(0, self._state.backwards - self.pending - 1)
        self._state.losses.clear()
        self.begin()

    def weigh(self, part: BatchPart | None) -> tuple[float, float]:
        """How much the gradients of this part, and those there already, count in a mean over the step.

        A step ends with the pass over the loader, as that of the full batch does, and a rest of
        samples counts by its number. A rest that the loader would have dropped as a whole batch
        makes no step.

        Args:
            part: The batch that the next backward pass is over; None where that is not known.

        Returns:
            What this part's gradient is to be multiplied by, and what those of the parts before it.
        """
        self.open = True
        share = 1.0
        if part is not None:
            # Sizes that differ all the time are no rest: parts count alike, as their number does.
            share = part.samples / part.full if part.left == 0 and part.samples < part.full else 1.0
            self._ends = part.left == 0
        self._parts += share
        self._drops = part is not None and self._ends and part.drop_last and self._parts < self.factor
        if self._drops or self._parts == self.factor or not (self._ends or self.is_last_part):
            return share / self.factor, 1.0
        return share / self._parts, self.factor / self._parts

    @property
    def is_last_part(self) -> bool:
        """The optimizer's next step is to be taken, as far as is known."""
        return self.pending >= self.factor - 1 or (self._ends and not self._drops)

    def take_part(self) -> bool:
        """The script steps: whether the step is to be taken now, as its batch is whole or at its end."""
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
        """The script's last step ended a rest that makes no step."""
        return self.waits and not self.pending

    def observed(self) -> int | None:
        """Backward passes of most of the last complete steps; None before there was one."""
        off = self._state.faults.off
        if "optimizer" in off or "backward" in off:
            return None
        # Of equally many, the later counts; the rests of epochs only where there is nothing else.
        common = Counter(reversed(self._recent or self._rests)).most_common(1)
        return common[0][0] if common else None

    def note(self, backwards: int) -> None:
        """A step took effect after so many backward passes."""
        (self._rests if self._short else self._recent).append(backwards)
        self._short = False

    def give_up(self, reason: str) -> None:
        """The step is taken every time again; the reading then says so, or the run ends."""
        if self.factor == 1:
            return
        self._state.refusals["accumulation"] = reason
        if self._parts:
            # Parts that are not whole by themselves: their mean, or nothing where the next pass begins anew.
            self.on_given_up(self.factor / self._parts if self.open else 0.0)
        self.factor = 1
        self.begin()
        self._recent.clear()
        self._rests.clear()
        self._state.lost("accumulation", reason)


def _nothing(_factor: float) -> None:
    return
