"""Evaluation of a window: its blocks, its steady part, and whether it may end before its limit."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from autotune.protocol.disturbed import touched
from autotune.protocol.marks import evaluation_counts, trained_s
from autotune.statistics import intervals
from autotune.trial.measure.window_blocks import WindowBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.trial import Fidelity
    from autotune.trial.measure.sources import Sources
    from autotune.trial.measure.timed_steps import TimedSteps
    from autotune.trial.measure.window_blocks import Row as WindowRow

FEWEST_STEPS = 6
FEWEST_BLOCKS = 3
_BEYOND_DOUBT = 2.0


class Steady(NamedTuple):
    """Steady part of a window.

    `cut` is the index of its first block, and `begin_ns` the start of that block. `verdict` is whether the
    window was steady. `doubt` has the range of the interval if the steps before it were no start-up; it is
    empty if they certainly were.
    """

    verdict: str
    begin_ns: int
    doubt: dict[str, float]


class Window:
    """The steps of a window, as blocks of pure training.

    Args:
        steps: The steps so far.
        fidelity: Limits of the window.
        sources: Gives the loader, and the spans disturbed by other processes.
    """

    def __init__(self, steps: TimedSteps, fidelity: Fidelity, sources: Sources) -> None:
        self._steps = steps
        self._fidelity = fidelity
        self._sources = sources
        self._forming: WindowBlocks | None = None
        self.is_short = False
        """The window was made of the available steps, without the usual warm-up."""

    def apart_ns(self) -> int:
        """Return the time of the window so far that is not training."""
        if self._formed() is not None:
            return 0
        rows, periods = self._steps.timed()
        trained = self._trained_s(rows, periods)
        return int(1e9 * sum(p - (t or 0.0) for p, t in zip(periods, trained, strict=True)))

    def lost_ns(self) -> int:
        """Return the time of disturbed blocks, which extends the window, at most to twice its length."""
        if not self._sources.disturbed():
            return 0
        lost_s = math.fsum(block.seconds for block in self._blocks()[1] if not block.clean)
        return int(1e9 * min(lost_s, self._fidelity.max_window_s))

    def has_rate(self) -> bool:
        """Return whether the window has enough steps for a rate with an interval."""
        return len(self._steps.rows) >= FEWEST_STEPS and len(self._blocks()[1]) >= FEWEST_BLOCKS

    def evaluation_counts(self) -> bool:
        """Return whether evaluation inside steps is part of them."""
        return self._evaluation_counts(self._steps.timed()[0])

    def steady(self) -> Steady:
        """Return the steady part."""
        firsts, blocks = self._blocks()
        cut, verdict = self._steady(blocks)
        begin_ns = firsts[cut] if cut < len(firsts) else self._steps.begin_ns
        low, high = intervals.doubted_start(blocks, cut)
        is_certain = (low, high) == (1.0, 1.0) or not math.isfinite(high)
        doubt = {} if is_certain else {"doubt_low": low, "doubt_high": high}
        return Steady(verdict=verdict, begin_ns=begin_ns, doubt=doubt)

    def enough(self) -> str | None:
        """Return why the window may end before its limit; None if it may not."""
        fidelity = self._fidelity
        _, whole = self._blocks()
        cut, verdict = self._steady(whole)
        # Only the clean part of the steady blocks is reported: it must be long enough and precise.
        blocks = [block for block in whole[cut:] if block.clean]
        is_part = len(blocks) < len(whole)
        too_short = math.fsum(b.seconds for b in blocks) < fidelity.min_window_s if is_part else False
        if too_short or verdict == "no_steady_state" or len(blocks) < FEWEST_BLOCKS:
            return None
        # Samples are unknown: the interval of seconds per step is used, and no rate is compared.
        per_step = not any(block.samples for block in blocks)
        unit = "s" if per_step else "samples/s"
        least, most = intervals.doubted_start(whole, cut)
        is_tight = intervals.is_tight(blocks, fidelity.target_width, unit=unit, per_step=per_step)
        if is_tight and most - least <= fidelity.target_width:
            return "tight"
        estimate = intervals.window_estimate(blocks, unit=unit, per_step=per_step)
        # A prefilled queue overestimates the rate, which errs towards continuing.
        doubt = _BEYOND_DOUBT * (max(estimate.high, most * estimate.value) - estimate.value)
        return "dominated" if not per_step and estimate.value + doubt < fidelity.dominated_below else None

    def _trained_s(self, rows: Sequence[WindowRow], periods: list[float]) -> tuple[float | None, ...]:
        """Return the training part of each step in seconds, None for a step set aside."""
        counts = self._evaluation_counts(rows)
        return trained_s([row[3] for row in rows], [row[4] for row in rows], periods, counts=counts)

    def _evaluation_counts(self, rows: Sequence[WindowRow]) -> bool:
        decided = self._fidelity.evaluation_counts
        return evaluation_counts([row[3] for row in rows]) if decided is None else decided

    def _blocks(self) -> tuple[tuple[int, ...], tuple[intervals.Block, ...]]:
        """Return the start of each block (ns), and the blocks, of the steps that are all training."""
        disturbed = self._sources.disturbed()
        if not disturbed and (formed := self._formed()) is not None:
            return formed.of(self._steps.rows)
        rows, periods = self._steps.timed()
        trained = self._trained_s(rows, periods)
        begins = [self._steps.begin_ns, *(row[0] for row in rows)][: len(rows)]
        dirty = touched(begins, [row[0] for row in rows], disturbed)
        kept = [
            (b, s, r, d) for b, s, r, d in zip(begins, trained, rows, dirty, strict=True) if s is not None
        ]
        # On a clock that stops outside of training.
        ends = list(itertools.accumulate(s for _, s, _, _ in kept))
        blocks = intervals.form_blocks(
            [0.0, *ends[:-1]],
            ends,
            [r[2] for _, _, r, _ in kept],
            [r[1] / 1e9 for _, _, r, _ in kept],
            [d for _, _, _, d in kept],
            min_block_s=self._min_block_s(),
            min_steps=self._min_steps(),
        )
        firsts: list[int] = []
        index = 0
        for block in blocks:
            firsts.append(kept[index][0])
            index += block.steps
        return tuple(firsts), blocks

    def _formed(self) -> WindowBlocks | None:
        """Return the open window on the host's clock, if all its steps are pure training."""
        if self._steps.clock is not None or self._steps.end is not None:
            return None
        key = (self._steps.begin_ns, self._min_block_s(), self._min_steps())
        if self._forming is None or self._forming.key != key:
            self._forming = WindowBlocks(*key)
        return self._forming if self._forming.knows(self._steps.rows) else None

    def _steady(self, blocks: Sequence[intervals.Block]) -> tuple[int, str]:
        """Return the index of the first steady block, and whether the window was steady."""
        if self.is_short:
            return 0, "steady"
        # Disturbed blocks are no evidence about warm-up.
        clean = [k for k, b in enumerate(blocks) if b.clean]
        kept = clean if len(clean) >= FEWEST_BLOCKS else range(len(blocks))
        shown = [blocks[k] for k in kept]
        rates = [b.samples / b.seconds if b.samples else b.steps / b.seconds for b in shown if b.seconds > 0]
        cut, verdict = intervals.steady_start(rates) if len(rates) == len(shown) else (0, "steady")
        cut = kept[cut] if cut else 0
        if cut and self._steps.clock_used == "host":
            # Host and device clocks agree at the window's start only, so nothing is cut.
            return 0, "no_steady_state"
        return cut, verdict

    def _min_block_s(self) -> float:
        return min(0.25, self._fidelity.min_window_s / 8)

    def _min_steps(self) -> int:
        """Return the workers of the loader: the steps of a block are a multiple of them."""
        loader = self._sources.loader
        found = loader.observed("num_workers") if loader is not None else None
        return max(1, int(found) if found else 1)
