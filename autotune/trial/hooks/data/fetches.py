"""Batches that lie ready or are fetched, the samples in them that are trained on, and which loader trains."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.hooks.data.loader_facts import collates_itself, ratio_of
from autotune.trial.records.batch_structure import AttributeName, count, find_count, is_batch_of_one
from autotune.trial.records.loader_stats import WHOLE, BatchPart, LoaderStats
from autotune.trial.runtime.state import EVALUATION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.trial.runtime.state import RuntimeState

_FORGET = 0.95
_OUTWEIGH = 1.5
_TOGETHER = 2
_MOST_ODD = 8
_BESIDE_PASSES = 64
"""Loaders train beside each other where batches of both were trained on within so many backward passes."""
TIMED: Final = 64
TIMED_EACH: Final = 8
"""The first fetches in the process itself are timed on the processor, and then one of so many."""
LOOKED_AT: Final = 64
"""Fetches around which the data set is looked at, beside the first of every pass."""


class Fetches:
    """Counts what loaders hand over, as the hooks of `Loader` see it, and tells which of them trains."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self.records: list[LoaderStats] = []
        self._last: LoaderStats | None = None
        self._fetched: list[LoaderStats] = []
        """Those with batches that are not accounted for yet."""
        self._samples = 0
        self.train: LoaderStats | None = None
        self._passes = 0
        self.on_pinned: Callable[[Any], None] = _nothing
        """Told of every batch of a loader that pins, while gradients are on."""
        self.on_fetched: Callable[[], None] | None = None
        """Told of every batch that was handed over while gradients are on."""
        self._grad_enabled: Any = None
        self._torch: Any = None
        self._trained: set[str] = set()
        """Chains of loaders that trained, and of others that an evaluation fetched from."""
        self._evaluated: set[str] = set()
        self._sizes: dict[str, dict[int, None]] = {}
        """Chain -> batch sizes of the loaders that were built there and trained, the first one first."""

    def ready(self) -> int | None:
        """Batches that lie ready for the main process; None where it cannot be told.

        At the end of an epoch the queue runs empty because nothing is left to fetch, however fast it is.
        """
        record = self.train
        iterator = record.iterator() if record is not None and record.iterator is not None else None
        if iterator is None or not hasattr(iterator, "_workers"):
            return None
        try:
            wanted = int(iterator._num_workers) * int(iterator._prefetch_factor)
            if len(iterator._task_info) < wanted or not all(iterator._workers_status):
                return None
            level = int(iterator._worker_result_queue.qsize())
            data = iterator._data_queue
            if data is not iterator._worker_result_queue:
                level += int(data.qsize())
            return level + sum(1 for info in iterator._task_info.values() if len(info) == 2)
        except (AttributeError, NotImplementedError, OSError):
            return None

    def queue_batches(self) -> int:
        """Batches to take before the prefetch queue is no relic: max(W * P + W, 3)."""
        record = self.train
        held: Any = None if record is None else record.described
        workers = int(getattr(held, "num_workers", 0))
        return max(workers * int(getattr(held, "prefetch_factor", 2) or 2) + workers, 3)

    def take_samples(self) -> int | None:
        """Samples fetched from training loaders since the last call; None without such a loader."""
        if self._fetched:
            # What a second loader fetched ahead of its first pass waits for that pass.
            self._take([r for r in self._fetched if r.confirmed or self.train is None])
        taken, self._samples = self._samples, 0
        return taken if self.train is not None else None

    def part(self) -> BatchPart | None:
        """What the next backward pass is over, as far as the batch fetched last tells; None without one."""
        last = self._last
        kept = None if last is None else last.kept
        if last is None or kept is None or not last.recent or not kept.batch_size:
            return None
        # Fetched ahead, or beside another loader: which batch the pass is over is not known.
        if last.ahead != 1 or self._fetched != [last]:
            return None
        # Counted by the loader's own samples, of which a batch of the full size has `batch_size`.
        return BatchPart(
            samples=last.recent[-1], full=int(kept.batch_size), left=last.left, drop_last=kept.drop_last
        )

    @property
    def feeds(self) -> bool:
        """A loader gives the batches that are trained on, as far as is known."""
        return self.train is not None or self._last is not None

    def last_samples(self) -> int:
        """Samples of the batch that the next backward pass is over; 0 where that is not known."""
        last = self._last
        alone = last is not None and last.ahead == 1 and self._fetched == [last]
        return last.recent[-1] if last is not None and alone and last.recent else 0

    def backward_seen(self) -> None:
        """A backward pass follows the last batch: its loader is a training loader.

        So are others that were fetched as often for this pass and the one before (``zip`` of two).
        """
        last = self._last
        if last is None:
            return
        self._last = None
        last.ahead -= 1
        self._state.asks_elsewhere = False
        self._passes += 1
        last.used_at = self._passes
        if (
            len(self._fetched) == 1
            and self._fetched[0] is last
            and last is self.train
            and last.confirmed
            and last.chain not in self._evaluated
        ):
            # By far the most passes: nothing that the rest of this decides can change.
            for record in self.records:
                record.weight *= _FORGET
            self._take_from(last)
            self._fetched.clear()
            return
        fetched = [*self._fetched] if last in self._fetched else [*self._fetched, last]
        for record in fetched:
            beside = record is last or record.batches == last.batches
            # Evaluations that come every so many steps, with gradients on, are no passes in a row.
            in_row = record.together_at == self._passes - 1
            record.together = (record.together * in_row + 1) if beside else 0
            record.together_at = self._passes
            record.confirmed = record.confirmed or record is last or record.together >= _TOGETHER
            if record.confirmed:
                record.used_at = self._passes
                self._trained.add(record.chain)
                self._note_size(record)
                self._evaluated.discard(record.chain)
        self._choose(last)
        self._take(fetched)

    def _note_size(self, record: LoaderStats) -> None:
        size = record.own.get("batch_size")
        if type(size) is int:
            self._sizes.setdefault(record.chain, {})[size] = None

    def _choose(self, last: LoaderStats) -> None:
        """The training loader is the one with most samples, not the one that came last."""
        for record in self.records:
            record.weight *= _FORGET
        train = self.train
        if train is None or not train.alive:
            self.train = last
            return
        alive = [r for r in self.records if r.confirmed and r.alive]
        most = max(alive, key=lambda r: r.weight, default=train)
        if most.weight > _OUTWEIGH * train.weight:
            self.train = most

    def _take(self, records: list[LoaderStats]) -> None:
        """Add what was fetched for one pass: every wait, but the samples of one loader only."""
        used = [r for r in records if r.confirmed and r.batches]
        if used:
            main = self.train if self.train in used else max(used, key=lambda r: r.since)
            assert main is not None
            self._samples += main.since
            self._state.batches += main.batches
            self._state.wait_ns += sum(r.wait_ns for r in used)
        for record in records:
            record.since = record.batches = record.wait_ns = 0
        self._fetched = [r for r in self._fetched if r.batches]

    def _take_from(self, record: LoaderStats) -> None:
        """The same for one loader alone."""
        state = self._state
        self._samples += record.since
        state.batches += record.batches
        state.wait_ns += record.wait_ns
        record.since = record.batches = record.wait_ns = 0

    def calm_record(self, samples: int) -> LoaderStats | None:
        """Of the loader whose fetches may go unseen: all that it hands over is trained on, one batch a pass.

        Args:
            samples: Of the step that has ended.
        """
        record = self.train
        if (
            record is None
            or not samples
            or record.usual is None
            or record.usual not in (0, samples)
            or self._fetched
            or self._last is not None
            or record.chain in self._evaluated
            or not record.confirmed
        ):
            return None
        return record

    def _usual(self, record: LoaderStats) -> int | None:
        """Samples of a whole batch of it, 0 for any number, where nothing else is to be found out at a fetch.

        None where there is.
        """
        how = record.how
        if (
            how is None
            or how[0] != "dim"
            or len(how[1]) > 1
            or any(isinstance(key, AttributeName) for key in how[1])
            or record.fetches < max(TIMED, LOOKED_AT)
            or not (record.confirmed and record.ratio == 1.0)
            or record.pins
            or self.on_fetched is not None
            or not self._state.began_ns
        ):
            return None
        record.place, record.dimension = how[1][0] if how[1] else WHOLE, how[2]
        return record.full

    def _is_usual(self, record: LoaderStats, iterator: Any) -> bool:
        """A fetch like most others; at the ends of epochs, and one of so many, they are looked at closely."""
        state, left = self._state, record.left
        return (
            bool(record.fetches % TIMED_EACH)
            and (left is None or left > 1)
            and iterator._num_yielded
            and not state.evaluating
            and state.device_clock is None
            and self._grad_enabled()
        )

    def _counted(self, record: LoaderStats, batch: Any) -> bool:
        """`_count` for a whole batch of a loader that trains; False, and nothing done, for any other."""
        samples = (batch if record.place is WHOLE else batch[record.place]).shape[record.dimension]
        state, last = self._state, self._last
        if (record.usual and samples != record.usual) or (
            last is not None and state.called_to_evaluate and not state.called_to_train
        ):
            return False
        state.called_to_evaluate = state.called_to_train = False
        record.fetches += 1
        self._add(record, samples)
        return True

    def _add(self, record: LoaderStats, samples: int) -> None:
        """A batch of so many samples waits for the backward pass over it."""
        record.recent.append(samples)
        record.since += samples
        record.weight += samples
        if not record.batches:
            self._fetched.append(record)
        record.batches += 1
        self._last = record

    def count_steady(self, record: LoaderStats, samples: int, waits_ns: Sequence[int]) -> None:
        """Whole batches of the loader that trains, each with its pass: `_counted` and `backward_seen`.

        Args:
            record: Of that loader.
            samples: Of each batch.
            waits_ns: How long each was waited for.
        """
        count = len(waits_ns)
        record.fetches += count
        record.fetch_ns += sum(waits_ns)
        record.recent.extend([samples] * min(count, record.recent.maxlen or count))
        kept = _FORGET**count
        for other in self.records:
            other.weight *= kept
        record.weight += samples * _FORGET * (1.0 - kept) / (1.0 - _FORGET)
        self._passes += count
        record.used_at = self._passes
        if record.left is not None:
            record.left -= count
        # The next one is looked at closely.
        record.usual = None

    def fetched_calmly(self, record: LoaderStats, samples: int, wait_ns: int) -> None:
        """A batch like the others was handed over, and what follows is not known.

        Args:
            record: Of its loader.
            samples: Of it.
            wait_ns: How long it was waited for.
        """
        iterator = record.iterator() if record.iterator is not None else None
        record.wait_ns += wait_ns
        record.fetch_ns += wait_ns
        self._forget_evaluated()
        record.fetches += 1
        self._add(record, samples)
        if iterator is not None:
            record.left = self._left(record, iterator)
        record.ahead += 1

    def _left(self, record: LoaderStats, iterator: Any) -> int | None:
        """Batches that are left in this pass; None where that is not known."""
        kept = record.kept
        if kept is None or not kept.length or kept.kind != "map":
            return None
        # Some keep one iterator for all their epochs, by a sampler that begins anew.
        return -iterator._num_yielded % kept.length

    def _count(self, record: LoaderStats, batch: Any, trains: bool) -> None:
        how = record.how
        if how is None:
            loader = record.loader()
            # Loops often hold no more than the iterator.
            expected = getattr(record.described, "batch_size", None)
            if expected is None:
                expected = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
            record.how = how = find_count(batch, expected)
            record.ratio = ratio_of(count(batch, how), loader, self._torch)
            record.full = expected if type(expected) is int else 0
            record.takes_one = expected == 1 and collates_itself(loader) and not is_batch_of_one(batch)
        samples = count(batch, how)
        if record.ratio != 1.0:
            samples = max(1, round(samples / record.ratio))
        elif samples != record.full and record.odd < _MOST_ODD:
            samples = _counted_again(record, batch, samples)
        record.fetches += 1
        if not trains or (self._state.mark & EVALUATION and self._state.evaluating):
            self._evaluated.add(record.chain)
        if not trains:
            return
        if not record.confirmed:
            self._state.alive()
        self._forget_evaluated()
        if record.pins:
            self.on_pinned(batch)
        self._add(record, samples)
        if not self._state.began_ns:
            self._state.began_ns = time.perf_counter_ns()
        if self.on_fetched is not None:
            self.on_fetched()

    def _forget_evaluated(self) -> None:
        """Batches on which the model was only asked, in evaluation mode with gradients on, train nothing.

        Those of the loader that was asked last, which need not be the one that is asked now.
        """
        state, last = self._state, self._last
        if last is not None and last.batches and state.called_to_evaluate and not state.called_to_train:
            last.since = last.batches = last.wait_ns = 0
            last.recent.pop()
            self._fetched.remove(last)
        state.called_to_evaluate = state.called_to_train = False

    def _beside(self, record: LoaderStats) -> int:
        """Other loaders that train now; what is built at one place, a loader for each fold, counts as one."""
        since = self._passes - _BESIDE_PASSES
        # Where the script has ended, its loaders have gone with it.
        gone = not record.alive
        chains = {r.chain for r in self.records if r.confirmed and (r.alive or gone) and r.used_at > since}
        return len(chains - {record.chain})

    def _site(self, record: LoaderStats) -> str:
        twins = [r for r in self.records if r.site == record.site and r.chain != record.chain]
        return record.chain if any(not r.confirmed for r in twins) else record.site


def _nothing(_batch: Any) -> None:
    return


def _counted_again(record: LoaderStats, batch: Any, samples: int) -> int:
    """Samples of a batch of another size than the loader's, which may have been counted in the wrong place.

    Where the first batch had as many boxes as images, one was taken for the other. No batch is larger than
    the loader says, and only the last of a pass is smaller.
    """
    if not record.full or (samples < record.full and record.left in (None, 1)):
        return samples
    record.odd += 1
    how = find_count(batch, record.full)
    if count(batch, how) != record.full:
        return samples
    record.how = how
    return record.full
