"""A stretch of steps that are all alike: each hook notes the least there is, and all is counted together.

The hooks' cost is not in what they compute but in how many lines of code and objects the training has thrown
out of the caches until the next of them is reached. While the steps of an open window do the same things in
the same order (a batch is fetched, the model called with it, its loss goes backward, the optimizer steps), a
hook asks for nothing but its turn. Whoever sees something else, or wants to know of what was counted, has
`leave` count first what was noted. Nothing is decided later than at the step that it belongs to, but that a
loss is no number: that is seen when the stretch is counted, within half a second.

Whatever code of the script's runs inside of a hook, a data set or a signal handler, may come by another one
and have the stretch left. So a hook sets the stage only where nothing can have run since it asked for it.
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
"""Whose turn it is; the last four while the script's own fetch, call, backward pass or step goes on."""
_FETCHED: Final = frozenset({CALL, CALLING, BACKWARD, PASSING, STEP, STEPPING})
_CALLED: Final = frozenset({CALLING, BACKWARD, PASSING, STEP, STEPPING})
_PASSED: Final = frozenset({PASSING, STEP, STEPPING})
_FRUITLESS: Final = 8
"""Stretches of no step at all, after which none is begun: the script does things in another order."""
_ENDLESS: Final = 1 << 60
_ident = threading.get_ident


Noted = tuple[int, int, float, int]
"""End of a step (ns), its wait (ns), its loss, and the time in the run queue that was read then (ns)."""


class Model(Protocol):
    """The one that is called; `root.RootCall` is the one there is."""

    def look_closely(self) -> None:
        """At the next call."""

    def only_shape(self) -> Any:
        """Of its one argument in the last training call; None where there were more."""
        ...

    def called_calmly(self) -> None:
        """A training call went as the last one, and what follows is not known."""


class Counting(Protocol):
    """Counts what was noted; `steps.Boundary` is the one there is."""

    def queued_ns(self, now: int) -> tuple[int, int]:
        """Time in the run queue since it was read last, and when it is to be read again."""
        ...

    def count_steady(self, rows: list[Noted], record: LoaderStats | None, samples: int) -> None:
        """Steps that were alike."""

    def fetched_calmly(self, record: LoaderStats, samples: int, wait_ns: int) -> None:
        """The part of a step that goes on: its batch."""

    def passes_calmly(self, loss: float, *, is_over: bool) -> None:
        """The same: its backward pass."""


class SteadySteps:
    """The stretch that goes on, if one does.

    The hooks read and set the attributes themselves; a call would cost more than what they note.
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
        """The script's own thread."""
        self.stage = OFF
        self.boundary: Counting | None = None
        self.first = FETCH
        """What a step begins with: a fetch, or the call where batches come from no loader."""
        self.iterator = 0
        """Which iterator it is, by `id`: one that is kept would keep its workers, and one that is made anew
        has the stretch left."""
        self.optimizer: Any = None
        self.call: Model | None = None
        self.record: LoaderStats | None = None
        self.place: Any = None
        self.dimension = 0
        """Where a batch shows how many samples it has; see `loader_record.Record`."""
        self.wait_ns = 0
        self.loss = 0.0
        self.shape: Any = None
        """Of the model's one argument; None where there are more."""
        self.samples = 0
        """Of each step, in this process."""
        self.rows: list[Noted] = []
        self.left = 0
        """Steps until the end of the pass over the loader comes near."""
        self.soon_ns = 0
        """When a step is to be looked at: to read the run queue, or because the stretch is over."""
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
        """The steps to come are like the last one, as far as is known.

        Args:
            boundary: Counts them in the end.
            record: Of the loader that batches come from; None where they come from none.
            call: The one model.
            optimizer: The one that steps.
            samples: Of a step, in this process.
            until_ns: When the window is looked at.
            queue_ns: When the run queue is read next.
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
        """A step has ended that is not to be passed over, or none is left.

        Returns:
            Whether it is counted; not where the stretch was left meanwhile.
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
        """From another thread: at the end of the step that goes on."""
        self.soon_ns = self.until_ns = 0

    def drop(self) -> None:
        """In a forked child: what was noted is the parent's."""
        self.stage = OFF
        self.rows = []
        self.optimizer = self.call = self.record = None

    def leave(self) -> None:
        """Count what was noted, the part of a step that goes on as well, and note nothing any more."""
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
        # The next of each is looked at closely.
        call.look_closely()
        boundary.count_steady(rows, record, samples)
        if record is not None and stage in _FETCHED:
            boundary.fetched_calmly(record, samples, wait_ns)
        if stage in _CALLED:
            call.called_calmly()
        if stage in _PASSED:
            boundary.passes_calmly(self.loss, is_over=stage != PASSING)
