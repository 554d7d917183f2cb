"""A stretch of steps that are all alike: each hook notes the least there is, and all is counted together.

The hooks' cost is not in what they compute but in how many lines of code and objects the training has thrown
out of the caches until the next of them is reached. While the steps of an open window do the same things in
the same order (a batch is fetched, the model called with it, its loss goes backward, the optimizer steps), a
hook asks for nothing but its turn. Whoever sees something else, or wants to know of what was counted, has
`leave` count first what was noted. Nothing is decided later than at the step that it belongs to, but that a
loss is no number: that is seen when the stretch is counted, within a quarter of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from autotune.protocol.lines import Row
    from autotune.trial.loader_record import Record

OFF: Final = -1
FETCH: Final = 0
CALL: Final = 1
BACKWARD: Final = 2
STEP: Final = 3
CALLING: Final = 4
PASSING: Final = 5
STEPPING: Final = 6
"""Whose turn it is; the last three while the script's own call, backward pass or step goes on."""
_FETCHED: Final = frozenset({CALL, CALLING, BACKWARD, PASSING, STEP, STEPPING})
_CALLED: Final = frozenset({CALLING, BACKWARD, PASSING, STEP, STEPPING})
_PASSED: Final = frozenset({PASSING, STEP, STEPPING})
_FRUITLESS: Final = 8
"""Stretches of no step at all, after which none is begun: the script does things in another order."""
_ENDLESS: Final = 1 << 60


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

    def count_calm(self, rows: list[Row], losses: list[float], record: Record | None) -> None:
        """Steps that were alike."""

    def fetched_calmly(self, record: Record, batch: Any, samples: int, wait_ns: int) -> None:
        """The part of a step that goes on: its batch."""

    def passes_calmly(self, loss: float, *, is_over: bool) -> None:
        """The same: its backward pass."""


class Calm:
    """The stretch that goes on, if one does.

    The hooks read and set the attributes themselves; a call would cost more than what they note.
    """

    __slots__ = (
        "batch",
        "boundary",
        "call",
        "first",
        "fruitless",
        "iterator",
        "left",
        "loss",
        "losses",
        "main",
        "optimizer",
        "queue_ns",
        "record",
        "rows",
        "samples",
        "shape",
        "soon_ns",
        "stage",
        "step_samples",
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
        """Which iterator and optimizer it is, by `id`: what is built anew has the stretch left."""
        self.optimizer = 0
        self.call: Model | None = None
        self.record: Record | None = None
        self.batch: Any = None
        """The batch that was fetched, until the model is called with it."""
        self.wait_ns = 0
        self.loss = 0.0
        self.shape: Any = None
        """Of the model's one argument; None where there are more."""
        self.samples = self.step_samples = 0
        """Of each step: in this process, and in all."""
        self.rows: list[Row] = []
        """As they are told of, and the loss of each."""
        self.losses: list[float] = []
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
        record: Record | None,
        call: Model,
        optimizer: Any,
        samples: int,
        ranks: int,
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
            ranks: Processes that train together.
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
        self.iterator, self.optimizer = id(iterator), id(optimizer)
        self.samples, self.step_samples, self.left = samples, samples * ranks, left
        self.shape = call.only_shape()
        self.until_ns, self.queue_ns = until_ns, queue_ns
        self.soon_ns = min(until_ns, queue_ns)
        self.wait_ns = 0
        self.stage = self.first = CALL if record is None else FETCH

    def looked_at(self, now: int) -> None:
        """A step has ended that is not to be passed over, or none is left."""
        boundary = self.boundary
        assert boundary is not None
        queued_ns = 0
        if now >= self.queue_ns:
            queued_ns, self.queue_ns = boundary.queued_ns(now)
            self.soon_ns = min(self.until_ns, self.queue_ns)
        self.rows.append((now, self.wait_ns, self.step_samples, -1.0, queued_ns, 0, 0))
        self.losses.append(self.loss)
        self.left -= 1
        self.stage = self.first
        if now >= self.until_ns or self.left <= 0:
            self.leave()

    def drop(self) -> None:
        """In a forked child: what was noted is the parent's."""
        self.stage = OFF
        self.rows, self.losses = [], []
        self.batch = self.call = self.record = None

    def leave(self) -> None:
        """Count what was noted, the part of a step that goes on as well, and note nothing any more."""
        stage, boundary = self.stage, self.boundary
        if stage == OFF or boundary is None:
            return
        self.stage = OFF
        rows, self.rows = self.rows, []
        losses, self.losses = self.losses, []
        self.fruitless = 0 if rows else self.fruitless + 1
        record, call, batch = self.record, self.call, self.batch
        self.record = self.call = self.batch = None
        assert call is not None
        # The next of each is looked at closely.
        call.look_closely()
        boundary.count_calm(rows, losses, record)
        if record is not None and stage in _FETCHED:
            boundary.fetched_calmly(record, batch, self.samples, self.wait_ns)
        if stage in _CALLED:
            call.called_calmly()
        if stage in _PASSED:
            boundary.passes_calmly(self.loss, is_over=stage != PASSING)
