"""Passes over the data in scripts without a loader, with a batch size in the source.

An accumulated step must end with its pass, like that of a full batch. The number of samples in a pass follows
from the loop in the source (`autotune.trial.loop.iteration_counts`).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.source.assignments import repeated
from autotune.source.derivation import assigned_values
from autotune.trial.loop.assignments import definition_of, tree_of
from autotune.trial.loop.iteration_counts import LoopSource, is_sliced, leaves_out
from autotune.trial.records.loader_stats import BatchPart
from autotune.trial.records.objects import names_of
from autotune.trial.runtime.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_SIZES: Final = (1, 2, 3, 5, 7, 11, 13, 17, 19, 23)
"""Batch sizes for which a loop is evaluated: no dataset below 223 million samples is a multiple of all."""
_FUNCTIONS: Final = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Pass(NamedTuple):
    """One pass over the data.

    Args:
        samples: Number of samples.
        drops_rest: Only full batches; the rest at the end is dropped.
    """

    samples: int
    drops_rest: bool

    def batches(self, size: int) -> int:
        """Return the number of batches of a size."""
        return self.samples // size if self.drops_rest else -(-self.samples // size)

    def rest(self, size: int) -> int:
        """Return the samples of the last batch."""
        return size if self.drops_rest else self.samples % size or size


def pass_at(frames: Sequence[FrameType], batch: int) -> Pass | None:
    """Return the pass that a backward pass belongs to; None if the source does not show it.

    Args:
        frames: Frames of the backward pass, innermost first.
        batch: Batch size in this process, as written in the script.
    """
    frames = [frame for frame in frames if is_user_file(frame.f_code.co_filename)]
    try:
        trees = [tree_of(frame.f_code.co_filename) for frame in frames]
        places = zip(trees, frames, strict=True)
        stack = [(tree, f.f_lineno, f.f_code.co_name) for tree, f in places if tree is not None]
        if len(stack) < len(frames) or not batch:
            return None
        inner = next((part for part in repeated(stack) if not isinstance(part.node, _FUNCTIONS)), None)
        if inner is None or not isinstance(inner.node, ast.For) or leaves_out(inner.node):
            return None
        return _found(inner.node, frames[inner.depth], stack[inner.depth][0], batch)
    finally:
        tree_of.cache_clear()
        definition_of.cache_clear()


def _found(loop: ast.For, frame: FrameType, tree: ast.Module, batch: int) -> Pass | None:
    names, values = names_of(frame), assigned_values(tree)
    sources = [LoopSource(names, values, batch, size) for size in (*_SIZES, batch)]
    counts = [source.batches(loop.iter) for source in sources]
    samples = counts[0] or 0
    for drops in (False, True):
        found = Pass(samples, drops)
        if samples > 1 and counts == [found.batches(size) for size in (*_SIZES, batch)]:
            # Unless the last batch is known to be the rest, it has to be a full one.
            is_known = drops or not samples % batch or sources[-1].slices or is_sliced(loop)
            return found if is_known else None
    return None


class OwnPass:
    """The current pass and the position of the next batch."""

    def __init__(self) -> None:
        self._found: Pass | None = None
        self._index = 0
        self._seen: list[Pass | None] = []

    def note(self, frames: Sequence[FrameType], batch: int) -> None:
        """Record a backward pass of the baseline on a new stack."""
        self._seen.append(pass_at(frames, batch))

    @property
    def samples(self) -> int:
        """Return the samples of the recorded passes; 0 if they differ, or the source of one is unknown."""
        first = self._seen[0] if self._seen else None
        return first.samples if first is not None and all(seen == first for seen in self._seen) else 0

    @property
    def begins(self) -> bool:
        """Whether the next batch is the first of a pass."""
        return not self._index

    def begin(self, frames: Sequence[FrameType], batch: int) -> None:
        """Begin a pass, possibly over other data than the last one."""
        self._found = pass_at(frames, batch)

    def part(self, samples: int, size: int) -> BatchPart | str:
        """Return the batch of the next backward pass.

        Args:
            samples: Number of samples in it.
            size: Size of a full batch.

        Returns:
            A message if it differs from the batch in the source at this place of the pass.
        """
        found = self._found
        if found is None:
            return "How many samples a pass over the data has is not seen in the source of the loop."
        left = found.batches(size) - 1 - self._index
        if samples != (size if left else found.rest(size)):
            return f"A batch of {samples} samples comes where the source of the loop has another one."
        self._index = self._index + 1 if left else 0
        return BatchPart(samples=samples, full=size, left=left, drop_last=found.drops_rest)
