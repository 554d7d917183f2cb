"""Blocks of an open window that is pure training, formed incrementally."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.protocol.marks import COMPILE, EVALUATION
from autotune.statistics.intervals import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUNDING = 1.0 - 1e-9
_APART = EVALUATION | COMPILE
Row = tuple[int, int, int, int, int]
"""End of a step (ns), wait (ns), samples, mark, evaluation (ns)."""


class WindowBlocks:
    """The blocks of `autotune.statistics.intervals.form_blocks`, computed as steps arrive.

    A window is evaluated some ten times; each step is processed once.

    Args:
        begin_ns: Start of the window.
        min_block_s: Shortest block.
        min_steps: The number of steps in a block is a multiple of this.
    """

    def __init__(self, begin_ns: int, min_block_s: float, min_steps: int) -> None:
        self.key = (begin_ns, min_block_s, min_steps)
        self._least_s = min_block_s * _ROUNDING
        self._min_steps = min_steps
        self._ends = [begin_ns]
        """Ends of steps, after the start of the first."""
        self._cuts = [0]
        """Number of steps before each block, then that of all complete ones."""
        self._blocks: list[Block] = []
        self._seconds = 0.0
        """Duration of the steps after these, in seconds."""
        self._is_training = True

    def knows(self, rows: Sequence[Row]) -> bool:
        """Process new steps; return whether all steps so far are pure training.

        Args:
            rows: All steps of the window so far.
        """
        ends = self._ends
        for index in range(len(ends) - 1, len(rows)):
            row = rows[index]
            self._is_training = self._is_training and not row[3] & _APART
            self._seconds += (row[0] - ends[-1]) / 1e9
            ends.append(row[0])
            count = index + 1 - self._cuts[-1]
            if self._seconds >= self._least_s and not count % self._min_steps:
                self._blocks.append(self._block(rows, self._cuts[-1], index + 1))
                self._cuts.append(index + 1)
                self._seconds = 0.0
        return self._is_training

    def of(self, rows: Sequence[Row]) -> tuple[tuple[int, ...], tuple[Block, ...]]:
        """Return the start of each block (ns), and the blocks; remaining steps join the last one.

        Args:
            rows: All steps of the window so far, processed by `knows`.
        """
        blocks, begins = self._blocks, self._cuts[:-1]
        if len(rows) > self._cuts[-1]:
            begins = begins or [0]
            blocks = [*blocks[:-1], self._block(rows, begins[-1], len(rows))]
        return tuple(self._ends[begin] for begin in begins), tuple(blocks)

    def _block(self, rows: Sequence[Row], begin: int, end: int) -> Block:
        ends, inside = self._ends, rows[begin:end]
        return Block(
            seconds=math.fsum((ends[i + 1] - ends[i]) / 1e9 for i in range(begin, end)),
            samples=sum(row[2] for row in inside),
            steps=end - begin,
            wait_s=math.fsum(row[1] / 1e9 for row in inside),
            clean=True,
        )
