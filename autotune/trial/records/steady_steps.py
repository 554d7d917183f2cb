"""Stretches of uniform steps: each hook records the minimum, and all are counted together.

The cost of a hook is not its computation but cache misses: the training evicts the hook's code and objects
between calls. While the steps of an open window repeat the same sequence (fetch a batch, call the model,
backward pass on its loss, optimizer step), a hook only checks its turn. On any deviation, or when a count is
needed, `leave` first counts the recorded steps. No decision is made later than its step, except for a
non-finite loss. That is detected when the stretch is counted, within half a second.

Code of the script that runs inside a hook, a dataset or a signal handler, may call another hook and end the
stretch. So a hook changes the stage only if no such code can have run since its check.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from autotune.trial.records.loader_stats import LoaderStats

OFF: Final = -1
FETCH: Final = 0
CALL: Final = 1
BACKWARD: Final = 2
STEP: Final = 3
FETCHING: Final = 4
CALLING: Final = 5
PASSING: Final = 6
STEPPING: Final = 7
"""Next hook; the last four apply while the script's own fetch, call, backward pass or step runs."""
_FETCHED: Final = frozenset({CALL, CALLING, BACKWARD, PASSING, STEP, STEPPING})
_CALLED: Final = frozenset({CALLING, BACKWARD, PASSING, STEP, STEPPING})
_PASSED: Final = frozenset({PASSING, STEP, STEPPING})
_FRUITLESS: Final = 8
"""Number of stretches without a step after which none is begun, as the script uses another order."""
_ENDLESS: Final = 1 << 60
_ident = threading.get_ident


Noted = tuple[int, int, float, int]
"""End of a step (ns), its wait (ns), its loss, and the run queue time read then (ns)."""


class Model(Protocol):
    """Interface of the called model, implemented by `TrainedModules`."""

    def look_closely(self) -> None:
        """Observe the next call in detail."""

    def only_shape(self) -> Any:
        """Return the shape of its one argument in the last training call; None if there were more."""
        ...

    def called_calmly(self) -> None:
        """Record a training call equal to the last one, with unknown continuation."""


class Counting(Protocol):
    """Interface that counts recorded steps, implemented by `StepCounter`."""

    def queued_ns(self, now: int) -> tuple[int, int]:
        """Return the run queue time since the last reading, and the time of the next one."""
        ...

    def count_steady(self, rows: list[Noted], record: LoaderStats | None, samples: int) -> None:
        """Count uniform steps."""

    def fetched_calmly(self, record: LoaderStats, samples: int, wait_ns: int) -> None:
        """Count the batch of an unfinished step."""

    def passes_calmly(self, loss: float, *, is_over: bool) -> None:
        """Count the backward pass of an unfinished step."""


class SteadySteps:
    """The current stretch, if any.

    The hooks access the attributes directly, as a call would cost more than the recording.
    """

    __slots__ = (
        "boundary",
        "call",
        "dimension",
        "first",
        "fruitless",
        "iterator",
        "left",
        "loss",
        "main",
        "optimizer",
        "place",
        "queue_ns",
        "record",
        "rows",
        "samples",
        "shape",
        "soon_ns",
        "stage",
        "until_ns",
        "wait_ns",
    )

    def __init__(self, main: int) -> None:
        self.main = main
        """The script's main thread."""
        self.stage = OFF
        self.boundary: Counting | None = None
        self.first = FETCH
        """First stage of a step: a fetch, or the call if batches come from no loader."""
        self.iterator = 0
        """The iterator's `id`. A reference would keep its workers alive; a new iterator ends the stretch."""
        self.optimizer: Any = None
        self.call: Model | None = None
        self.record: LoaderStats | None = None
        self.place: Any = None
        self.dimension = 0
        """Position in a batch that shows its number of samples; see `LoaderStats.dimension`."""
        self.wait_ns = 0
        self.loss = 0.0
        self.shape: Any = None
        """Shape of the model's one argument; None if there are more."""
        self.samples = 0
        """Samples per step in this process."""
        self.rows: list[Noted] = []
        self.left = 0
        """Steps until shortly before the end of the pass over the loader."""
        self.soon_ns = 0
        """Time of the next check: to read the run queue, or at the end of the stretch."""
        self.until_ns = 0
        self.queue_ns = 0
        self.fruitless = 0

    def begin(
        self,
        boundary: Counting,
        *,
        record: LoaderStats | None,
        call: Model,
        optimizer: Any,
        samples: int,
        until_ns: int,
        queue_ns: int,
    ) -> None:
        """Begin a stretch of steps like the last one.

        Args:
            boundary: Counts the steps at the end.
            record: Loader of the batches; None without one.
            call: The one model.
            optimizer: The optimizer that steps.
            samples: Samples per step in this process.
            until_ns: Next evaluation of the window.
            queue_ns: Next reading of the run queue.
        """
        iterator = record.iterator() if record is not None and record.iterator is not None else None
        if record is not None and iterator is None:
            return
        left = _ENDLESS if record is None or record.left is None else record.left - 2
        if left < 1 or self.fruitless >= _FRUITLESS:
            return
        self.boundary, self.record, self.call = boundary, record, call
        self.iterator, self.optimizer = id(iterator), optimizer
        if record is not None:
            self.place, self.dimension = record.place, record.dimension
        self.samples, self.left = samples, left
        self.shape = call.only_shape()
        self.until_ns, self.queue_ns = until_ns, queue_ns
        self.soon_ns = min(until_ns, queue_ns)
        self.wait_ns = 0
        self.stage = self.first = CALL if record is None else FETCH

    def looked_at(self, now: int) -> bool:
        """Handle the end of a step at which a check is due, or the last one of the stretch.

        Returns:
            Whether it is counted; False if the stretch ended meanwhile.
        """
        boundary = self.boundary
        if boundary is None:
            return False
        queued_ns = 0
        if now >= self.queue_ns:
            queued_ns, self.queue_ns = boundary.queued_ns(now)
            self.soon_ns = min(self.until_ns, self.queue_ns)
        if self.stage != STEPPING:
            return False
        self.left -= 1
        self.stage = self.first
        self.rows.append((now, self.wait_ns, self.loss, queued_ns))
        if now >= self.until_ns or self.left <= 0:
            self.leave()
        return True

    def end_soon(self) -> None:
        """End the stretch after the current step; called from another thread."""
        self.soon_ns = self.until_ns = 0

    def drop(self) -> None:
        """Drop the recorded steps in a forked child, which belong to the parent."""
        self.stage = OFF
        self.rows = []
        self.optimizer = self.call = self.record = None

    def leave(self) -> None:
        """Count the recorded steps, including a part of a current one, and end the stretch."""
        if self.stage == OFF or _ident() != self.main:
            return
        stage, boundary = self.stage, self.boundary
        self.stage = OFF
        if stage == OFF or boundary is None:
            return
        rows, self.rows = self.rows, []
        self.fruitless = 0 if rows else self.fruitless + 1
        record, call, samples, wait_ns = self.record, self.call, self.samples, self.wait_ns
        self.record = self.call = self.optimizer = None
        if call is None:
            return
        # Each hook observes its next event in detail.
        call.look_closely()
        boundary.count_steady(rows, record, samples)
        if record is not None and stage in _FETCHED:
            boundary.fetched_calmly(record, samples, wait_ns)
        if stage in _CALLED:
            call.called_calmly()
        if stage in _PASSED:
            boundary.passes_calmly(self.loss, is_over=stage != PASSING)
