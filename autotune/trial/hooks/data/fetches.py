"""Fetched and queued batches, the samples used for training, and the choice of the training loader."""

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
"""Loaders are used together if batches of both were used within this many backward passes."""
TIMED: Final = 64
TIMED_EACH: Final = 8
"""The first fetches in the process itself have their CPU time measured, then one of this many."""
LOOKED_AT: Final = 64
"""Number of fetches, besides the first of each pass, around which the dataset is examined."""


class Fetches:
    """Counts batches of loaders, as observed by the hooks of `Loader`, and finds the training loader."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self.records: list[LoaderStats] = []
        self._last: LoaderStats | None = None
        self._fetched: list[LoaderStats] = []
        """Loaders with batches that were not counted yet."""
        self._samples = 0
        self.train: LoaderStats | None = None
        self._passes = 0
        self.on_pinned: Callable[[Any], None] = _nothing
        """Called with every batch of a pinning loader, while gradients are on."""
        self.on_fetched: Callable[[], None] | None = None
        """Called for every batch delivered while gradients are on."""
        self._grad_enabled: Any = None
        self._torch: Any = None
        self._trained: set[str] = set()
        """Chains of loaders used for training, and of others that an evaluation fetched from."""
        self._evaluated: set[str] = set()
        self._sizes: dict[str, dict[int, None]] = {}
        """Chain -> batch sizes of the loaders built there and used for training, in order."""

    def ready(self) -> int | None:
        """Return the queued batches of the main process; None if unknown.

        At the end of an epoch the queue is empty because no batch is left, however fast the loader is.
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
        """Return the number of batches until the initial prefetch queue is consumed: max(W * P + W, 3)."""
        record = self.train
        held: Any = None if record is None else record.described
        workers = int(getattr(held, "num_workers", 0))
        return max(workers * int(getattr(held, "prefetch_factor", 2) or 2) + workers, 3)

    def take_samples(self) -> int | None:
        """Return the samples fetched from training loaders since the last call; None without a loader."""
        if self._fetched:
            # Batches that a second loader fetched before its first pass count for that pass.
            self._take([r for r in self._fetched if r.confirmed or self.train is None])
        taken, self._samples = self._samples, 0
        return taken if self.train is not None else None

    def part(self) -> BatchPart | None:
        """Return the batch of the next backward pass, according to the last fetch; None without one."""
        last = self._last
        kept = None if last is None else last.kept
        if last is None or kept is None or not last.recent or not kept.batch_size:
            return None
        # Fetched ahead, or together with another loader: the batch of the pass is unknown.
        if last.ahead != 1 or self._fetched != [last]:
            return None
        # Counted in the loader's own samples, of which a full batch has `batch_size`.
        return BatchPart(
            samples=last.recent[-1], full=int(kept.batch_size), left=last.left, drop_last=kept.drop_last
        )

    @property
    def feeds(self) -> bool:
        """Whether a loader supplies the training batches, as far as known."""
        return self.train is not None or self._last is not None

    def last_samples(self) -> int:
        """Return the samples in the batch of the next backward pass; 0 if unknown."""
        last = self._last
        alone = last is not None and last.ahead == 1 and self._fetched == [last]
        return last.recent[-1] if last is not None and alone and last.recent else 0

    def backward_seen(self) -> None:
        """Record a backward pass, which makes the last batch's loader a training loader.

        So are others fetched equally often for this pass and the one before (``zip`` of two).
        """
        last = self._last
        if last is None:
            return
        self._last = None
        last.ahead -= 1
        self._state.fetched_elsewhere = False
        self._passes += 1
        last.used_at = self._passes
        if (
            len(self._fetched) == 1
            and self._fetched[0] is last
            and last is self.train
            and last.confirmed
            and last.chain not in self._evaluated
        ):
            # The most frequent case: the remaining decisions cannot change.
            for record in self.records:
                record.weight *= _FORGET
            self._take_from(last)
            self._fetched.clear()
            return
        fetched = [*self._fetched] if last in self._fetched else [*self._fetched, last]
        for record in fetched:
            beside = record is last or record.batches == last.batches
            # Evaluations with gradients on, once every several steps, are no consecutive passes.
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
        """Choose the loader with most samples as the training loader, not the most recent."""
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
        """Count the fetches for one pass: the waits of all loaders, but the samples of one."""
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
        """Count the fetches of a single loader."""
        state = self._state
        self._samples += record.since
        state.batches += record.batches
        state.wait_ns += record.wait_ns
        record.since = record.batches = record.wait_ns = 0

    def calm_record(self, samples: int) -> LoaderStats | None:
        """Return the loader whose fetches need no observation: one batch per pass, all for training.

        Args:
            samples: Samples of the last step.
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
        """Return the samples of a full batch, 0 for any number, if a fetch has no other facts to observe.

        None if it has.
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
        """Return whether a fetch needs no examination; epoch ends and one of several fetches do."""
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
        """Count a full batch of a training loader like `_count`; return False, with no effect, for others."""
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
        """Add a batch to those that await a backward pass."""
        record.recent.append(samples)
        record.since += samples
        record.weight += samples
        if not record.batches:
            self._fetched.append(record)
        record.batches += 1
        self._last = record

    def count_steady(self, record: LoaderStats, samples: int, waits_ns: Sequence[int]) -> None:
        """Count full batches of the training loader with their passes: `_counted` and `backward_seen`.

        Args:
            record: The loader.
            samples: Samples per batch.
            waits_ns: Wait for each batch.
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
        # The next one is examined.
        record.usual = None

    def fetched_calmly(self, record: LoaderStats, samples: int, wait_ns: int) -> None:
        """Count a batch equal to the others, with unknown continuation.

        Args:
            record: Its loader.
            samples: Samples in it.
            wait_ns: Wait for it.
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
        """Return the batches left in this pass; None if unknown."""
        kept = record.kept
        if kept is None or not kept.length or kept.kind != "map":
            return None
        # Some keep one iterator for all epochs, with a sampler that restarts.
        return -iterator._num_yielded % kept.length

    def _count(self, record: LoaderStats, batch: Any, trains: bool) -> None:
        how = record.how
        if how is None:
            loader = record.loader()
            # Loops often hold only the iterator.
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
        """Drop batches used in evaluation mode with gradients on, which train nothing.

        These are batches of the loader used last, which may differ from the current one.
        """
        state, last = self._state, self._last
        if last is not None and last.batches and state.called_to_evaluate and not state.called_to_train:
            last.since = last.batches = last.wait_ns = 0
            last.recent.pop()
            self._fetched.remove(last)
        state.called_to_evaluate = state.called_to_train = False

    def _beside(self, record: LoaderStats) -> int:
        """Return the number of other training loaders; those built at one place count as one."""
        since = self._passes - _BESIDE_PASSES
        # After the script's end its loaders no longer exist.
        gone = not record.alive
        chains = {r.chain for r in self.records if r.confirmed and (r.alive or gone) and r.used_at > since}
        return len(chains - {record.chain})

    def _site(self, record: LoaderStats) -> str:
        twins = [r for r in self.records if r.site == record.site and r.chain != record.chain]
        return record.chain if any(not r.confirmed for r in twins) else record.site


def _nothing(_batch: Any) -> None:
    return


def _counted_again(record: LoaderStats, batch: Any, samples: int) -> int:
    """Return the samples of a batch whose size differs from the loader's, counted again.

    If the first batch had as many boxes as images, one may have been taken for the other. No batch exceeds
    the loader's size, and only the last of a pass is smaller.
    """
    if not record.full or (samples < record.full and record.left in (None, 1)):
        return samples
    record.odd += 1
    how = find_count(batch, record.full)
    if count(batch, how) != record.full:
        return samples
    record.how = how
    return record.full
