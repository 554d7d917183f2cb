"""What the trained module is called with, where the script makes its batches without a loader.

The script's own option says how large a batch is, and the model's input shows it: one of its dimensions has
that size. Which one it is cannot be guessed by its place, for many language models have the sequence first.
The unchanged script leaves a place to look at; a run at another size is held to it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from autotune.model.facts import InputFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.model.change import Change
    from autotune.trial.runtime.state import RuntimeState

KNOB: Final = "batch_size"
_MOST_TENSORS = 4
_MOST_SHAPES = 64
_TOLD_FRAC = 0.1
_USUAL_FRAC = 0.75
"""A size is the usual one where so many of the calls have it; ends of epochs have others."""
_MOST_BETWEEN = 64
_ALIKE_FRAC = 2 / 3
"""A number of calls is that of every backward pass where more than so many have it. Half is too few: where
two passes go over one call, every other one has none."""

Shape = tuple[Any, ...]
"""Sizes of a tensor; a framework may ask with sizes that are not known yet."""


class Inputs:
    """Sizes of the first root's arguments in training calls, and how many of them are samples.

    Args:
        state: Takes the reason where a run at another size is not what was asked for.
    """

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self.said = 0
        """What the script's own batch option says in this run; 0 without one."""
        self._expected: InputFacts | None = None
        self._holds_rest = True
        self.told_now: Callable[[], float] = _nothing_told
        """What the script tells of samples in this run, for each one counted here; 0 where it does not."""
        self._place: tuple[int, int] | None = None
        """Tensor and dimension that samples are counted by."""
        self.last = 0
        """Samples of the last call."""
        self.weighed = False
        """Parts of a step are weighed by it, so that calls have to be counted to the end."""
        self.calls = 0
        self._calls_before = 0
        """Calls when the last backward pass ended."""
        self._between: Counter[int] = Counter()
        """How many backward passes came after so many calls."""
        self._shapes: list[Counter[Shape]] = []

    def expect(self, said: int, changes: Sequence[Change], *, holds_rest: bool = True) -> None:
        """What the option says in this run, and where that has to show.

        Args:
            said: By the command line; 0 where that is not known.
            changes: One of the batch size says more: what was asked for, and where the baseline had it.
            holds_rest: All other sizes have to be the baseline's. Not so where the user may have changed
                them, by an option of their own under `apply` or by a knob that they declared.
        """
        self.said = said
        self._holds_rest = holds_rest
        change = next((c for c in changes if c.knob == KNOB), None)
        if change is not None and isinstance(change.value, int):
            self._expected = InputFacts.at(change.site, change.value)
            # Without a place the loader tells, whose size it is then.
            self.said = change.value if self._expected is not None else 0

    @property
    def expects(self) -> bool:
        """A batch of another size was asked for, and has to show where the baseline had its own."""
        return self._expected is not None

    def called(self, shapes: Sequence[Shape]) -> int:
        """A training call with tensors of these shapes; the samples in it."""
        self.calls += 1
        if self.said:
            for index, shape in enumerate(shapes[:_MOST_TENSORS]):
                if index == len(self._shapes):
                    self._shapes.append(Counter())
                known = self._shapes[index]
                if len(known) < _MOST_SHAPES or shape in known:
                    known[shape] += 1
            if self._place is None:
                self._place = self._first_place(shapes)
        tensor, dim = self._place or (0, 0)
        shape = shapes[tensor] if tensor < len(shapes) else ()
        size = shape[dim] if dim < len(shape) else (1 if self._place is None else 0)
        self.last = size if isinstance(size, int) else 0
        return self.last

    def backward(self) -> None:
        """A backward pass has ended: what was called since the last one is what it was over."""
        calls, self._calls_before = self.calls - self._calls_before, self.calls
        if len(self._between) < _MOST_BETWEEN or calls in self._between:
            self._between[calls] += 1

    def _first_place(self, shapes: Sequence[Shape]) -> tuple[int, int] | None:
        if self._expected is not None:
            tensor, dims = self._expected.tensor, self._expected.dims
            shape = shapes[tensor] if tensor < len(shapes) else ()
            return next(((tensor, d) for d in dims if d < len(shape) and shape[d] == self.said), None)
        pairs = ((i, d) for i, shape in enumerate(shapes[:_MOST_TENSORS]) for d in range(len(shape)))
        return next(((i, d) for i, d in pairs if shapes[i][d] == self.said), None)

    def _sizes(self, tensor: int) -> list[Counter[Any]]:
        """How many calls had which size, by dimension, of the calls with the usual number of dimensions."""
        known = self._shapes[tensor] if tensor < len(self._shapes) else Counter[Shape]()
        if not known:
            return []
        rank = len(known.most_common(1)[0][0])
        found: list[Counter[Any]] = [Counter() for _ in range(rank)]
        for shape, times in known.items():
            if len(shape) == rank:
                for seen, size in zip(found, shape, strict=True):
                    seen[size] += times
        return found

    def _usual(self, tensor: int, least_frac: float = _USUAL_FRAC) -> tuple[int, ...]:
        """The usual sizes of one argument, 0 for those that fewer of the calls had."""
        sizes: list[int] = []
        for seen in self._sizes(tensor):
            size, most = seen.most_common(1)[0]
            usual = most >= least_frac * self._shapes[tensor].total() and isinstance(size, int)
            sizes.append(size if usual else 0)
        return tuple(sizes)

    def _rare_frac(self, tensor: int) -> float:
        """Largest share of the calls in which one dimension of this argument had the size that is said."""
        most = max((seen[self.said] for seen in self._sizes(tensor)), default=0)
        return most / self._shapes[tensor].total() if most else 0.0

    def _per_backward(self, backwards: int) -> float:
        """Calls that nearly every backward pass is over; their mean where there is no such number."""
        if self._between:
            calls, most = self._between.most_common(1)[0]
            if most > _ALIKE_FRAC * self._between.total():
                return float(calls)
        return self.calls / backwards

    def facts(self, backwards: int) -> InputFacts | None:
        """What was seen, after so many backward passes; None where no option says a size.

        A run at another size is looked at as `observed` does it: where the baseline had its own, and for the
        size that most calls have. An end of an epoch may come after every second batch there.
        """
        if not self.said or not self.calls or not backwards:
            return None
        found = InputFacts(said=self.said, calls_per_backward=self._per_backward(backwards))
        tensors, least_frac = range(len(self._shapes)), _USUAL_FRAC
        if self._expected is not None:
            tensors, least_frac = range(self._expected.tensor, self._expected.tensor + 1), 0.0
        for tensor in tensors:
            shape = self._usual(tensor, least_frac)
            dims = tuple(dim for dim, size in enumerate(shape) if size == self.said)
            if dims:
                return replace(found, tensor=tensor, dims=dims, shape=shape)
        return replace(found, rare_frac=max((self._rare_frac(tensor) for tensor in tensors), default=0.0))

    def observed(self) -> int | None:
        """The size of a batch: that of the place where the baseline had it, if all else is as it was there.

        None where nothing tells.
        """
        if not self.said or not self.calls:
            return None
        if self._expected is None:
            told = any(self.said in self._usual(tensor) for tensor in range(len(self._shapes)))
            return self.said if told else None
        usual = self._usual(self._expected.tensor, 0.0)
        size, reason = _held_to(self._expected, usual, holds_rest=self._holds_rest)
        if not reason and (reason := _told_otherwise(self._expected, self.told_now())):
            size = None
        if reason:
            self._state.refusals[KNOB] = reason
        else:
            self._state.refusals.pop(KNOB, None)
        return size


def _held_to(wanted: InputFacts, usual: tuple[int, ...], *, holds_rest: bool) -> tuple[int | None, str]:
    """The batch that a run has, and a sentence where it is not what its option says."""
    if len(usual) != len(wanted.shape):
        return None, f"The model is called with {_text(usual)} instead of {_text(wanted.shape)}."
    moved = [dim for dim in wanted.dims if usual[dim] == wanted.said]
    own = wanted.shape[wanted.dims[0]]
    if not moved or own == wanted.said:
        return usual[wanted.dims[0]], ""
    rest = [dim for dim in range(len(usual)) if dim not in moved and wanted.shape[dim]]
    if len(moved) > 1 or (holds_rest and any(usual[dim] != wanted.shape[dim] for dim in rest)):
        return None, (
            f"Its option changes more of what the model is called with than the batch: {_text(wanted.shape)} "
            f"became {_text(usual)}."
        )
    return wanted.said, ""


def _told_otherwise(wanted: InputFacts, told: float) -> str:
    """A sentence where what the script says of its samples does not follow the size of its batch."""
    if not wanted.told or not told or abs(told / wanted.told - 1.0) <= _TOLD_FRAC:
        return ""
    return (
        f"With a batch of {wanted.said} the script reports {told:.3g} samples to autotune.step() for each "
        f"sample of its model, and {wanted.told:.3g} unchanged. The count does not follow the batch, so the "
        f"rate is not known."
    )


def _nothing_told() -> float:
    return 0.0


def _text(shape: tuple[int, ...]) -> str:
    """``16 x 20``, with a question mark for a size that varies."""
    return " x ".join(str(size) if size else "?" for size in shape) or "nothing"
