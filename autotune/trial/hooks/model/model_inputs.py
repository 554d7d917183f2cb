"""Inputs of the trained module, in scripts that create batches without a loader.

The script's option sets the batch size, and one dimension of the model's input has that size. Its position
cannot be assumed, as many language models have the sequence first. The baseline determines the position; runs
at other sizes are checked against it.
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
_REPORT_FRAC = 0.1
_USUAL_FRAC = 0.75
"""Share of calls from which a size is the usual one; ends of epochs have others."""
_MOST_BETWEEN = 64
_ALIKE_FRAC = 2 / 3
"""Share of backward passes from which a number of calls is typical.

Half is too small: if two passes use one call, every other one has none.
"""

Shape = tuple[Any, ...]
"""Sizes of a tensor; they may be symbolic in a framework's trace."""


class Inputs:
    """Sizes of the first root's arguments in training calls, and the number of samples among them.

    Args:
        state: Receives the reason if a run at another size differs from the request.
    """

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self.batch_size = 0
        """Batch size by the script's own option in this run; 0 without one."""
        self._expected: InputFacts | None = None
        self._holds_rest = True
        self.reported_now: Callable[[], float] = _none_reported
        """Returns the samples reported by the script per sample counted here; 0 if none are reported."""
        self._place: tuple[int, int] | None = None
        """Tensor and dimension used to count samples."""
        self.last = 0
        """Samples of the last call."""
        self.weighed = False
        """Accumulated parts are weighted by it, so that all calls must be counted."""
        self.calls = 0
        self._calls_before = 0
        """Number of calls at the end of the last backward pass."""
        self._between: Counter[int] = Counter()
        """Number of calls per backward pass -> frequency."""
        self._shapes: list[Counter[Shape]] = []

    def expect(self, batch_size: int, changes: Sequence[Change], *, holds_rest: bool = True) -> None:
        """Set the batch size of this run, and the position to check it at.

        Args:
            batch_size: Size by the command line; 0 if unknown.
            changes: A change of the batch size holds the requested size, and its position in the baseline.
            holds_rest: All other sizes must equal the baseline's. False if the user may have changed
                them, by an own option under `apply` or by a declared knob.
        """
        self.batch_size = batch_size
        self._holds_rest = holds_rest
        change = next((c for c in changes if c.knob == KNOB), None)
        if change is not None and isinstance(change.value, int):
            self._expected = InputFacts.at(change.site, change.value)
            # Without a position the loader's batch size is used.
            self.batch_size = change.value if self._expected is not None else 0

    @property
    def expects(self) -> bool:
        """Whether another batch size was requested, to be checked at its position in the baseline."""
        return self._expected is not None

    def called(self, shapes: Sequence[Shape]) -> int:
        """Record a training call with tensors of these shapes; return the samples in it."""
        self.calls += 1
        if self.batch_size:
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
        """Record the end of a backward pass over the calls since the previous one."""
        calls, self._calls_before = self.calls - self._calls_before, self.calls
        if len(self._between) < _MOST_BETWEEN or calls in self._between:
            self._between[calls] += 1

    def _first_place(self, shapes: Sequence[Shape]) -> tuple[int, int] | None:
        if self._expected is not None:
            tensor, dims = self._expected.tensor, self._expected.dims
            shape = shapes[tensor] if tensor < len(shapes) else ()
            return next(((tensor, d) for d in dims if d < len(shape) and shape[d] == self.batch_size), None)
        pairs = ((i, d) for i, shape in enumerate(shapes[:_MOST_TENSORS]) for d in range(len(shape)))
        return next(((i, d) for i, d in pairs if shapes[i][d] == self.batch_size), None)

    def _sizes(self, tensor: int) -> list[Counter[Any]]:
        """Return the frequency of sizes by dimension, over calls with the usual number of dimensions."""
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
        """Return the usual sizes of one argument, 0 for those of fewer calls."""
        sizes: list[int] = []
        for seen in self._sizes(tensor):
            size, most = seen.most_common(1)[0]
            usual = most >= least_frac * self._shapes[tensor].total() and isinstance(size, int)
            sizes.append(size if usual else 0)
        return tuple(sizes)

    def _rare_frac(self, tensor: int) -> float:
        """Return the largest share of calls in which one dimension of this argument had the set size."""
        most = max((seen[self.batch_size] for seen in self._sizes(tensor)), default=0)
        return most / self._shapes[tensor].total() if most else 0.0

    def _per_backward(self, backwards: int) -> float:
        """Return the calls per backward pass for nearly all passes; the mean if they vary."""
        if self._between:
            calls, most = self._between.most_common(1)[0]
            if most > _ALIKE_FRAC * self._between.total():
                return float(calls)
        return self.calls / backwards

    def facts(self, backwards: int) -> InputFacts | None:
        """Return the facts after a number of backward passes; None if no option sets a size.

        A run at another size is evaluated like `observed`: at the position in the baseline, with the size of
        most calls. There an end of an epoch may follow every second batch.
        """
        if not self.batch_size or not self.calls or not backwards:
            return None
        found = InputFacts(batch_size=self.batch_size, calls_per_backward=self._per_backward(backwards))
        tensors, least_frac = range(len(self._shapes)), _USUAL_FRAC
        if self._expected is not None:
            tensors, least_frac = range(self._expected.tensor, self._expected.tensor + 1), 0.0
        for tensor in tensors:
            shape = self._usual(tensor, least_frac)
            dims = tuple(dim for dim, size in enumerate(shape) if size == self.batch_size)
            if dims:
                return replace(found, tensor=tensor, dims=dims, shape=shape)
        return replace(found, rare_frac=max((self._rare_frac(tensor) for tensor in tensors), default=0.0))

    def observed(self) -> int | None:
        """Return the batch size at its position in the baseline, if all other sizes equal the baseline's.

        None if it cannot be determined.
        """
        if not self.batch_size or not self.calls:
            return None
        if self._expected is None:
            is_found = any(self.batch_size in self._usual(tensor) for tensor in range(len(self._shapes)))
            return self.batch_size if is_found else None
        usual = self._usual(self._expected.tensor, 0.0)
        size, reason = _checked_batch(self._expected, usual, holds_rest=self._holds_rest)
        if not reason and (reason := _report_mismatch(self._expected, self.reported_now())):
            size = None
        if reason:
            self._state.refusals[KNOB] = reason
        else:
            self._state.refusals.pop(KNOB, None)
        return size


def _checked_batch(wanted: InputFacts, usual: tuple[int, ...], *, holds_rest: bool) -> tuple[int | None, str]:
    """Return the batch size of a run, and a message if it differs from its option."""
    if len(usual) != len(wanted.shape):
        return None, f"The model is called with {_text(usual)} instead of {_text(wanted.shape)}."
    moved = [dim for dim in wanted.dims if usual[dim] == wanted.batch_size]
    own = wanted.shape[wanted.dims[0]]
    if not moved or own == wanted.batch_size:
        return usual[wanted.dims[0]], ""
    rest = [dim for dim in range(len(usual)) if dim not in moved and wanted.shape[dim]]
    if len(moved) > 1 or (holds_rest and any(usual[dim] != wanted.shape[dim] for dim in rest)):
        return None, (
            f"Its option changes more of the model's input than the batch: {_text(wanted.shape)} "
            f"became {_text(usual)}."
        )
    return wanted.batch_size, ""


def _report_mismatch(wanted: InputFacts, reported: float) -> str:
    """Return a message if the reported samples do not follow the batch size."""
    baseline = wanted.reported_per_sample
    if not baseline or not reported or abs(reported / baseline - 1.0) <= _REPORT_FRAC:
        return ""
    return (
        f"With a batch of {wanted.batch_size} the script reports {reported:.3g} samples to autotune.step() "
        f"per sample of its model, and {baseline:.3g} unchanged. The count does not follow the batch, so the "
        "rate is not known."
    )


def _none_reported() -> float:
    return 0.0


def _text(shape: tuple[int, ...]) -> str:
    """Return ``16 x 20``, with a question mark for a size that varies."""
    return " x ".join(str(size) if size else "?" for size in shape) or "nothing"
