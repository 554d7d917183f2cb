"""The DataLoader seam: overrides at construction, waits, samples, and which loader trains."""

# What scripts hand over is of any type; narrowing it yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import inspect
import io
import multiprocessing
import random
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.core.facts import LoaderFacts
from autotune.trial.sending import Sent, try_sending
from autotune.trial.state import EVALUATION, LOADER, caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.core.config import Value
    from autotune.trial.inputs import Inputs
    from autotune.trial.state import State
    from autotune.trial.undo import Undo

_WORKER_ONLY = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_RECENT = 16
_FORGET = 0.95
_OUTWEIGH = 1.5
_TOGETHER = 2
_PROBES = 3
_BESIDE_PASSES = 64
"""Loaders train beside each other where batches of both were trained on within so many backward passes."""
_TIMED, _TIMED_EACH = 64, 8
"""The first fetches in the process itself are timed on the processor, and then one of so many."""
_HANDLES = (
    ("zipfile", "ZipFile"),
    ("tarfile", "TarFile"),
    ("sqlite3", "Connection"),
    ("h5py", "File"),
    ("h5py", "Group"),
    ("h5py", "Dataset"),
    ("lmdb", "Environment"),
    ("lmdb", "Transaction"),
)
_LOOKED_AT = 64
"""Fetches around which the data set is looked at, beside the first of every pass."""
_WHOLE = object()
BETWEEN: Final = "between"
INSIDE: Final = "inside"
_LEVELS = 5
_MOST_ODD = 8
_WIDE = 16
How = tuple[str, tuple[Any, ...], int]
_Item = tuple[tuple[Any, ...], Any]
"""Where in a batch something is, and what."""


class Part(NamedTuple):
    """A batch that a backward pass is over, as a part of an optimizer step."""

    samples: int
    full: int
    """Samples of a batch that is no rest."""
    left: int | None
    """Batches that follow it in this pass over the loader; None where that is not known."""
    drop_last: bool


class Record:
    """One DataLoader object."""

    def __init__(self, loader: Any, sites: list[str]) -> None:
        self.loader = weakref.ref(loader)
        self.sites = sites
        self.chain = "<".join(sites)
        """Two user frames, for factories that build several loaders at one line."""
        self.confirmed = False
        self.expected = False
        """Built where one that trained was built before: a loader made anew for every epoch."""
        self.kept: LoaderFacts | None = None
        """What it was like when it was first iterated over; loops often hold no more than the iterator."""
        self.since = 0
        """Samples, batches and time fetched for training since the last backward pass."""
        self.batches = 0
        self.wait_ns = 0
        self.together = 0
        """Passes in a row in which it was fetched beside the loader that was fetched last."""
        self.together_at = 0
        """Number of the pass that was looked at last for that."""
        self.weight = 0.0
        """Samples trained on, old ones forgotten."""
        self.used_at = 0
        """Number of the last backward pass over a batch of it."""
        self.ratio = 1.0
        """What is counted in a batch, per sample of the loader."""
        self.full = 0
        """Samples of a whole batch, as the loader says; 0 where it does not."""
        self.odd = 0
        """Batches of another size that were looked at again, for the place where samples are counted."""
        self.takes_one = False
        """Batches are of one sample, which a collate function of the script's own hands over as it is."""
        self.shared_handle = ""
        self.recent: deque[int] = deque(maxlen=_RECENT)
        self.pins = False
        """Its batches lie in pinned memory."""
        self.fetches = 0
        self.how: How | None = None
        self.iterator: weakref.ref[Any] | None = None
        self.workers = 0
        """Most that were seen alive for its last iterator; those that have read their share end earlier."""
        self.fetch_ns = 0
        self.timed_ns = 0
        self.fetch_cpu_ns = 0
        """Time on the processor, of `timed_ns` of its fetches."""
        self.in_process = 0
        self.probes = 0
        self.random = False
        self.method = ""
        """How the workers of its last iterator were started."""
        self.in_order: bool | None = None
        self.left: int | None = None
        """Batches that are left in this pass over it; None where its length is not known."""
        self.ahead = 0
        """Batches of this pass that no backward pass was over yet."""
        self.settings: dict[tuple[int, str], Any] = {}
        """What its data set held after the last fetch that was looked at."""
        self.settings_at = 0
        """How many fetches there were then."""
        self.usual: int | None = None
        """Samples of a whole batch, 0 for any number, where fetches have no more to tell than that there was
        one; else None."""
        self.place: Any = _WHOLE
        self.dimension = 0
        """Where a batch of it shows how many samples it has: in the tensor at this place of it, `_WHOLE` for
        a batch that is one itself."""
        self.changed = ""
        """`BETWEEN` or `INSIDE`: when somebody else than a fetch changed what the data set holds."""

    @property
    def alive(self) -> bool:
        """Somebody holds it, or iterates over it."""
        return self.loader() is not None or (self.iterator is not None and self.iterator() is not None)

    @property
    def described(self) -> Any:
        """What has its settings as attributes: itself, or what is kept of it; None before it was used."""
        loader = self.loader()
        return self.kept if loader is None else loader  # a loader is false, or raises, by its length

    @property
    def in_use(self) -> bool:
        """Alive, or what it fetched is not accounted for yet."""
        return self.alive or self.batches > 0

    @property
    def site(self) -> str:
        """Innermost user frame that built it."""
        return self.sites[0] if self.sites else ""


class Loader:
    """Implements `LoaderSeam`, and counts."""

    def __init__(self, state: State, undo: Undo) -> None:
        self._state = state
        self._undo = undo
        self.sites: set[str] = set()
        self._overrides: dict[str, Value | None] = {}
        self.records: list[Record] = []
        self._last: Record | None = None
        self._fetched: list[Record] = []
        """Those with batches that are not accounted for yet."""
        self._samples = 0
        self.train: Record | None = None
        self._passes = 0
        self.built_any = False
        self.input_batch: int | None = None
        self.inputs: Inputs | None = None
        """Tells the size of a batch where no loader does."""
        self.in_thread = False
        """A loader was asked in another thread than the one that trains."""
        self.tries_sending = False
        """Find out whether the dataset could be sent to workers that are not forked."""
        self.on_pinned: Callable[[Any], None] = _nothing
        """Told of every batch of a loader that pins, while gradients are on."""
        self.on_started: Callable[[], None] | None = None
        """Told that a pass over a loader begins, whatever it is for."""
        self.on_fetched: Callable[[], None] | None = None
        """Told of every batch that was handed over while gradients are on."""
        self._gone = False
        """No batch is watched any more."""
        self._backs: list[Callable[[], None]] = []
        """Take back what stands in the way of every batch."""
        self._grad_enabled: Any = None
        self._torch: Any = None
        self._trained: set[str] = set()
        """Chains of loaders that trained, and of others that an evaluation fetched from."""
        self._evaluated: set[str] = set()
        self._sent_from: dict[str, Sent] = {}
        """Chain -> what came of sending what a loader built there needs."""

    def override(self, keyword: str, value: Value | None) -> None:
        """Build the training loader with this keyword from now on; None removes the argument."""
        self._overrides[keyword] = value

    def observed(self, keyword: str) -> Value | None:
        """What the training loader in use really has; None before it is known."""
        record = self.train
        if "loader" in self._state.faults.off:
            return None
        if record is None:
            return self._input_batch() if keyword == "batch_size" and self._state.steps >= 2 else None
        if keyword == "batch_size":
            own = self._own_batch_size(record)
            return own if own is not None and record.recent else max(record.recent, default=None)
        if keyword == "num_workers":
            return self._workers(record)
        if keyword == "multiprocessing_context":
            return record.method or None
        if keyword == "in_order":
            return record.in_order
        held = record.described
        if held is None or (keyword == "prefetch_factor" and getattr(held, "num_workers", 0) == 0):
            return None
        found = getattr(held, keyword, None)
        return found if isinstance(found, (bool, int, float, str)) else None

    def _input_batch(self) -> int | None:
        if self.inputs is None or not self.inputs.said:
            return self.input_batch
        told = self.inputs.observed()
        return self.input_batch if told is None and not self.inputs.expects else told

    def _own_batch_size(self, record: Record) -> int | None:
        loader = record.loader()
        if loader is not None or record.kept is None:
            return _batch_size(loader, self._torch)
        return None if record.kept.custom_batch_sampler else record.kept.batch_size

    def _workers(self, record: Record) -> int:
        iterator = record.iterator() if record.iterator is not None else None
        workers = getattr(iterator, "_workers", None)
        if workers is not None and not getattr(iterator, "_shutdown", False):
            record.workers = max(record.workers, sum(1 for worker in workers if worker.is_alive()))
        return record.workers

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

    def part(self) -> Part | None:
        """What the next backward pass is over, as far as the batch fetched last tells; None without one."""
        last = self._last
        kept = None if last is None else last.kept
        if last is None or kept is None or not last.recent or not kept.batch_size:
            return None
        # Fetched ahead, or beside another loader: which batch the pass is over is not known.
        if last.ahead != 1 or self._fetched != [last]:
            return None
        # Counted by the loader's own samples, of which a batch of the full size has `batch_size`.
        return Part(
            samples=last.recent[-1], full=int(kept.batch_size), left=last.left, drop_last=kept.drop_last
        )

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
                self._evaluated.discard(record.chain)
        self._choose(last)
        self._take(fetched)

    def _choose(self, last: Record) -> None:
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

    def _take(self, records: list[Record]) -> None:
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

    def _take_from(self, record: Record) -> None:
        """The same for one loader alone."""
        state = self._state
        self._samples += record.since
        state.batches += record.batches
        state.wait_ns += record.wait_ns
        record.since = record.batches = record.wait_ns = 0

    # Installation

    def install(self, torch: Any) -> None:
        """Put the seam in."""
        self._torch = torch
        self._grad_enabled = torch.is_grad_enabled
        data = torch.utils.data
        module = sys.modules[data.DataLoader.__module__]
        base = module._BaseDataLoaderIter
        self._wrap_init(data.DataLoader)
        self._wrap_iterator(base)

    def _wrap_init(self, cls: Any) -> None:
        original = cls.__init__
        signature = inspect.signature(original)
        state = self._state

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if not state.active or "loader" in state.faults.off:
                original(this, *args, **kwargs)
                return
            sites: list[str] = []
            try:
                sites = state.user_frames(caller(1))
                if self._overrides and self._is_target(sites, signature, this, args, kwargs):
                    bound = signature.bind(this, *args, **kwargs)
                    self._apply(bound.arguments)
                    args, kwargs = bound.args[1:], bound.kwargs
            except TypeError:
                pass  # the original raises the script's own error
            except Exception as error:
                state.faults.note("loader", error)
            original(this, *args, **kwargs)
            try:
                self.built_any = True
                record = Record(this, sites)
                this.__dict__["_autotune_record"] = record
                record.expected = record.chain in self._trained - self._evaluated
                record.shared_handle = shared_handle(getattr(this, "dataset", None))
                self.records = [r for r in self.records if r.in_use or r is self.train]
                self.records.append(record)
            except Exception as error:
                state.faults.note("loader", error)

        self._undo.assign(cls, "__init__", init)
        getstate = getattr(cls, "__getstate__", None)

        def without_record(this: Any) -> Any:
            held = getstate(this) if getstate is not None else dict(this.__dict__)
            if isinstance(held, dict):
                return {k: v for k, v in held.items() if k != "_autotune_record"}
            return held

        self._undo.assign(cls, "__getstate__", without_record)

    def _is_target(self, sites: list[str], signature: Any, this: Any, args: Any, kwargs: Any) -> bool:
        if self.sites:
            return bool({sites[0], "<".join(sites)} & self.sites) if sites else False
        given = signature.bind(this, *args, **kwargs).arguments
        if given.get("shuffle"):
            return True
        for name in ("sampler", "batch_sampler"):
            sampler = given.get(name)
            inner = getattr(sampler, "sampler", sampler)
            if sampler is not None and type(inner).__name__ != "SequentialSampler":
                return True
        if isinstance(given.get("dataset"), self._torch.utils.data.IterableDataset):
            return True
        return not self.records

    def _apply(self, given: dict[str, Any]) -> None:
        for keyword, value in self._overrides.items():
            if keyword == "batch_size":
                self._apply_batch(given, value)
            elif value is None:
                given.pop(keyword, None)
            else:
                given[keyword] = value
        if not given.get("num_workers"):
            for keyword in _WORKER_ONLY:
                if given.get(keyword) and self._overrides.get(keyword):
                    self._state.refusals[keyword] = f"{keyword} has no meaning without loader workers."
                given.pop(keyword, None)

    def _apply_batch(self, given: dict[str, Any], value: Any) -> None:
        sampler = given.get("batch_sampler")
        standard = self._torch.utils.data.BatchSampler
        if sampler is not None and type(sampler) is not standard:
            name = type(sampler).__name__
            self._state.refusals["batch_size"] = (
                f"The training loader has a batch sampler of its own ({name})."
            )
        elif sampler is not None:
            given["batch_sampler"] = standard(sampler.sampler, value, sampler.drop_last)
        elif "batch_size" in given and given["batch_size"] is None:
            self._state.refusals["batch_size"] = "The dataset makes the batches itself (batch_size=None)."
        elif _length(given.get("dataset"), value) < value:
            self._state.refusals["batch_size"] = f"A batch of {value} is larger than the data set."
        else:
            given["batch_size"] = value

    def _wrap_iterator(self, base: Any) -> None:
        state = self._state
        original_init, original_next, original_reset = base.__init__, base.__next__, base._reset
        clock, cpu = time.perf_counter_ns, time.thread_time_ns
        off = state.faults.off

        def starts(record: Record | None) -> None:
            """A loader starts (again): what that costs belongs to what it is for."""
            if record is not None and state.here():
                if self.on_started is not None:
                    self.on_started()
                fetches(record, clock(), self._grad_enabled())

        def fetches(record: Record, now: int, trains: bool) -> None:
            if not trains:
                # An evaluation, by a model of its own perhaps; neither its time nor its samples train.
                state.evaluates(now, by_loader=True)
            elif record.confirmed or record.expected:
                state.asks_elsewhere = False
                state.trains(now)
            else:
                # Some scripts never call `backward`, so that no loader is known to train.
                state.asks_elsewhere = self.train is not None
                if state.asks_elsewhere and record.batches:
                    # Asked again, and no backward pass was over what it gave.
                    state.evaluates(now)
                else:
                    state.may_evaluate(now)

        @functools.wraps(original_init)
        def init(this: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            starts(getattr(loader, "_autotune_record", None))
            original_init(this, loader, *args, **kwargs)
            record = getattr(loader, "_autotune_record", None)
            if record is not None and state.active:
                this._autotune_record = record
                record.ahead = 0
                record.iterator = weakref.ref(this)
                record.workers = 0
                record.pins = bool(getattr(loader, "pin_memory", False))
                self._workers(record)
                if record.kept is None:
                    self._keep(record, loader)
                record.method = _start_method(this)
                record.in_order = getattr(this, "_in_order", None)
                if record.confirmed or record.expected:
                    state.mark |= LOADER

        @functools.wraps(original_reset)
        def reset(this: Any, *args: Any, **kwargs: Any) -> None:
            starts(getattr(this, "_autotune_record", None))
            original_reset(this, *args, **kwargs)
            record = getattr(this, "_autotune_record", None)
            if record is not None and state.active:
                record.ahead = 0
                # A short epoch is over before anybody asks.
                self._workers(record)
                record.method = _start_method(this)
                record.in_order = getattr(this, "_in_order", None)
            if record is not None and (record.confirmed or record.expected):
                state.mark |= LOADER

        @functools.wraps(original_next)
        def advance(this: Any) -> Any:
            record: Record | None = getattr(this, "_autotune_record", None)
            if self._gone or record is None or not state.here() or "loader" in off:
                self.in_thread = self.in_thread or (record is not None and state.active and not state.here())
                return original_next(this)
            if record.usual is not None and self._is_usual(record, this):
                state.asks_elsewhere = False
                begin = clock()
                try:
                    batch = original_next(this)
                finally:
                    spent = clock() - begin
                    record.wait_ns += spent
                try:
                    record.fetch_ns += spent
                    if not self._counted(record, batch):
                        self._count(record, batch, trains=True)
                        record.usual = self._usual(record)
                    record.left = self._left(record, this)
                    record.ahead += 1
                except Exception as error:
                    state.faults.note("loader", error)
                return batch
            # The first fetch of an iterator draws the order of the epoch, in whatever process it loads.
            inside = not this._num_workers
            probe = inside and record.probes < _PROBES and this._num_yielded > 0
            before = None
            if probe:
                try:
                    before = self._random_state()
                    record.probes += 1
                except Exception as error:
                    state.faults.note("loader", error)
                    probe = False
            looks = record.fetches < _LOOKED_AT or not this._num_yielded or record.left == 1
            if looks:
                self._look_at_data(record, this, before=True)
            trains = self._grad_enabled()
            # To ask for the time on the processor is a system call.
            timed = inside and (record.fetches < _TIMED or not record.fetches % _TIMED_EACH)
            cpu_begin = cpu() if timed else 0
            begin = clock()
            fetches(record, begin, trains)
            device = state.device_clock if trains else None
            if device is not None:
                device.fetch_begins()
            try:
                batch = original_next(this)
            finally:
                spent = clock() - begin
                if device is not None:
                    device.fetch_ends()
                if trains:
                    record.wait_ns += spent
            try:
                record.fetch_ns += spent
                if timed:
                    record.timed_ns += spent
                    record.fetch_cpu_ns += cpu() - cpu_begin
                if inside:
                    record.in_process += 1
                    if probe and before != self._random_state():
                        record.random = True
                self._count(record, batch, trains)
                record.left = self._left(record, this)
                record.ahead += 1
                record.usual = self._usual(record)
            except Exception as error:
                state.faults.note("loader", error)
            if looks:
                self._look_at_data(record, this, before=False)
            return batch

        for name, ours in (("__init__", init), ("_reset", reset), ("__next__", advance)):
            self._backs.append(self._undo.replace(base, name, ours))

    def let_go(self) -> None:
        """Iterators are as if we were not there; loaders built from now on get their changes as before."""
        self._gone = True
        for record in self._fetched:
            record.batches = 0
        self._fetched.clear()
        while self._backs:
            self._backs.pop()()

    def _usual(self, record: Record) -> int | None:
        """Samples of a whole batch of it, 0 for any number, where nothing else is to be found out at a fetch.

        None where there is.
        """
        how = record.how
        if (
            how is None
            or how[0] != "dim"
            or len(how[1]) > 1
            or any(isinstance(key, _Name) for key in how[1])
            or record.fetches < max(_TIMED, _LOOKED_AT)
            or not (record.confirmed and record.ratio == 1.0)
            or record.pins
            or self.on_fetched is not None
            or not self._state.began_ns
        ):
            return None
        record.place, record.dimension = how[1][0] if how[1] else _WHOLE, how[2]
        return record.full

    def _is_usual(self, record: Record, iterator: Any) -> bool:
        """A fetch like most others; at the ends of epochs, and one of so many, they are looked at closely."""
        state, left = self._state, record.left
        return (
            bool(record.fetches % _TIMED_EACH)
            and (left is None or left > 1)
            and iterator._num_yielded
            and not state.evaluating
            and state.device_clock is None
            and self._grad_enabled()
        )

    def _counted(self, record: Record, batch: Any) -> bool:
        """`_count` for a whole batch of a loader that trains; False, and nothing done, for any other."""
        samples = (batch if record.place is _WHOLE else batch[record.place]).shape[record.dimension]
        state, last = self._state, self._last
        if (record.usual and samples != record.usual) or (
            last is not None and state.called_to_evaluate and not state.called_to_train
        ):
            return False
        state.called_to_evaluate = state.called_to_train = False
        record.fetches += 1
        self._add(record, samples)
        return True

    def _add(self, record: Record, samples: int) -> None:
        """A batch of so many samples waits for the backward pass over it."""
        record.recent.append(samples)
        record.since += samples
        record.weight += samples
        if not record.batches:
            self._fetched.append(record)
        record.batches += 1
        self._last = record

    def _left(self, record: Record, iterator: Any) -> int | None:
        """Batches that are left in this pass; None where that is not known."""
        kept = record.kept
        if kept is None or not kept.length or kept.kind != "map":
            return None
        # Some keep one iterator for all their epochs, by a sampler that begins anew.
        return -iterator._num_yielded % kept.length

    def _count(self, record: Record, batch: Any, trains: bool) -> None:
        how = record.how
        if how is None:
            loader = record.loader()
            expected = getattr(loader, "batch_size", None)
            if expected is None:
                expected = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
            record.how = how = find_count(batch, expected)
            record.ratio = _ratio(count(batch, how), loader, self._torch)
            record.full = expected if type(expected) is int else 0
            record.takes_one = expected == 1 and _collates_itself(loader) and not is_batch_of_one(batch)
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

    def _look_at_data(self, record: Record, iterator: Any, *, before: bool) -> None:
        """Whether what the data set holds was changed since the last fetch, which workers have a copy of."""
        try:
            held = _settings(getattr(iterator, "_dataset", None))
            if not before:
                record.settings, record.settings_at = held, record.fetches
            elif (
                record.settings_at == record.fetches
                and record.changed != INSIDE
                and any(held.get(name, value) != value for name, value in record.settings.items())
            ):
                record.changed = INSIDE if iterator._num_yielded else BETWEEN
        except Exception as error:
            self._state.faults.note("loader_facts", error)

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

    def _random_state(self) -> Any:
        numpy = sys.modules.get("numpy.random")
        state: Any = None if numpy is None else numpy.get_state()
        # Generators other than the Mersenne twister tell their state as a dict.
        drawn = repr(state) if isinstance(state, dict) else state and (int(state[2]), int(state[1][0]))
        # Not by way of NumPy, which PyTorch works without.
        return random.getstate(), self._torch.get_rng_state().tolist(), drawn

    # Facts

    def facts(self) -> LoaderFacts | None:
        """What is known about the training loader; None without one."""
        record = self.train
        if record is None:
            return None
        loader = record.loader()
        if loader is not None:
            self._keep(record, loader)
        if record.kept is None:
            return None
        in_process = record.in_process > 0
        sent = self._sent(record)
        return replace(
            record.kept,
            site=self._site(record),
            fetch_cpu_frac=min(1.0, record.fetch_cpu_ns / record.timed_ns)
            if in_process and record.timed_ns
            else None,
            fetch_s=record.fetch_ns / record.fetches / 1e9 if record.fetches else None,
            random=record.random or (not record.probes and record.kept.random),
            shared_handle=record.shared_handle,
            mp_context=record.method or record.kept.mp_context,
            unsendable=sent.refusal,
            own_code=sent.own_code,
            beside=self._beside(record),
            changed=record.changed,
            takes_one=record.takes_one,
        )

    def _beside(self, record: Record) -> int:
        """Other loaders that train now; what is built at one place, a loader for each fold, counts as one."""
        since = self._passes - _BESIDE_PASSES
        chains = {r.chain for r in self.records if r.confirmed and r.alive and r.used_at > since}
        return len(chains - {record.chain})

    def _keep(self, record: Record, loader: Any) -> None:
        try:
            record.kept = self._described(loader)
        except Exception as error:
            self._state.faults.note("loader_facts", error)

    def _described(self, loader: Any) -> LoaderFacts:
        """A loader as it was built, without what its fetches tell."""
        torch = self._torch
        dataset = getattr(loader, "dataset", None)
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        sampler = getattr(loader, "batch_sampler", None)
        custom = sampler is not None and type(sampler) is not torch.utils.data.BatchSampler
        batch_size = getattr(loader, "batch_size", None)
        if batch_size is None and not custom:
            batch_size = getattr(sampler, "batch_size", None)
        source = _source(type(dataset))
        counted = getattr(loader, "_IterableDataset_len_called", None)
        length = _length(loader, None)
        if iterable:
            # Torch warns of data sets that yield more than they said when asked.
            loader._IterableDataset_len_called = counted
        return LoaderFacts(
            site="",
            batch_size=batch_size,
            num_workers=int(getattr(loader, "num_workers", 0)),
            prefetch_factor=getattr(loader, "prefetch_factor", None),
            pin_memory=bool(getattr(loader, "pin_memory", False)),
            persistent_workers=bool(getattr(loader, "persistent_workers", False)),
            kind="iterable" if iterable else "map",
            custom_batch_sampler=custom,
            drop_last=bool(getattr(sampler, "drop_last", getattr(loader, "drop_last", False))),
            shards=iterable and _shares_out(dataset, source),
            length=length,
            dataset_length=_length(dataset, None),
            cuda_tensors=_holds_cuda(dataset, torch),
            random=_looks_random(dataset, source),
            shuffles=not iterable and _draws_order(loader, torch),
            mp_context=_wanted_method(loader),
        )

    def _sent(self, record: Record) -> Sent:
        found = self._sent_from.get(record.chain)
        if found is None and self.tries_sending:
            loader = record.loader()
            iterator = record.iterator() if record.iterator is not None else None
            if loader is not None:
                what = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
            elif iterator is not None:
                what = (iterator._dataset, iterator._collate_fn, getattr(iterator, "_worker_init_fn", None))
            else:
                return Sent()
            self._sent_from[record.chain] = found = try_sending(what, self._torch)
        return found or Sent()

    def _site(self, record: Record) -> str:
        twins = [r for r in self.records if r.site == record.site and r.chain != record.chain]
        return record.chain if any(not r.confirmed for r in twins) else record.site


def _nothing(_batch: Any) -> None:
    return


def _start_method(iterator: Any) -> str:
    """How an iterator's workers came into being; empty without workers."""
    workers = getattr(iterator, "_workers", None)
    popen = getattr(workers[0], "_popen", None) if workers else None
    return str(getattr(popen, "method", ""))


def _wanted_method(loader: Any) -> str:
    """How a loader would start workers, without settling it for the whole process by asking."""
    context = getattr(loader, "multiprocessing_context", None)
    name = getattr(context, "_name", None) or multiprocessing.get_start_method(allow_none=True)
    return name or ("forkserver" if sys.version_info >= (3, 14) else "fork")


class _Name(str):
    """Of an attribute, where a path leads through an object of a class of the script's own."""

    __slots__ = ()


def find_count(batch: Any, expected: int | None) -> How:
    """How to count the samples of batches of this form.

    Looked for from list to list inwards, since what lies deeper belongs to single samples. That is the
    first dimension of a tensor, or the length of a list whose elements are samples; the loader's own
    batch size tells which, and whether it is another dimension.

    Returns:
        (kind, path, dimension), for `count`.
    """
    told = _told(batch)
    if told is not None and (expected is None or count(batch, told) == expected):
        return told
    items: list[_Item] = [((), batch)]
    fallback: How | None = None
    for _ in range(_LEVELS):
        items = _without_mappings(items)
        graphs = next((path for path, item in items if _is_graphs(item)), None)
        if graphs is not None:
            return ("graphs", graphs, 0)
        sized = [(path, shape) for path, item in items if (shape := _shape(item))]
        lists = [(path, item) for path, item in items if isinstance(item, (list, tuple)) and item]
        # At the top, a list holds the fields of a batch, unless its elements are samples by their looks.
        samples = [(path, item) for path, item in lists if path or _are_samples(item, expected)]
        found = None if expected is None else _expected_among(sized, samples, expected)
        if found is not None:
            return found
        if sized:
            fallback = fallback or ("dim", sized[0][0], 0)
        elif samples:
            fallback = fallback or ("len", samples[0][0], 0)
        if fallback is not None and (expected is None or any(path for path, _ in (*sized, *samples))):
            break
        items = [((*path, index), inner) for path, item in lists for index, inner in enumerate(item[:_WIDE])]
    if fallback is None and isinstance(batch, (list, tuple)):
        fallback = ("len", (), 0)
    return told or fallback or ("one", (), 0)


def _told(batch: Any) -> How | None:
    """How a batch of a class of its own tells its size: by an attribute or its length; None without one.

    What else it holds may come first: the names of its fields, or what was sampled around each of its nodes.
    """
    if _shape(batch) is not None or isinstance(batch, (list, tuple, str, bytes, Mapping)):
        return None
    size = _attribute(batch, "batch_size")
    if type(size) is int and size > 0:
        return ("size", (), 0)
    # A mapping is as long as it has fields.
    return ("len", (), 0) if not _is_mapping(batch) and _length(batch, 0) > 0 else None


def _counted_again(record: Record, batch: Any, samples: int) -> int:
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


def is_batch_of_one(item: Any, depth: int = _LEVELS) -> bool:
    """Whether this looks like a batch with one sample in it, and not like that sample itself."""
    shape = _shape(item)
    if shape is not None:
        return shape[:1] == (1,)
    if item is None or not depth:
        return item is None
    if _is_graphs(item):
        return int(item.num_graphs) == 1
    if isinstance(item, (list, tuple)):
        if len(item) == 1 and _shape(item[0]) is None:
            return True
        return bool(item) and all(is_batch_of_one(part, depth - 1) for part in item)
    told = _told(item)
    if told is not None:
        return count(item, told) == 1
    if _is_mapping(item):
        keys = keys_of(item)
        return bool(keys) and all(is_batch_of_one(item[key], depth - 1) for key in keys)
    shapes = [shape for value in _held(item).values() if (shape := _shape(value)) is not None]
    return bool(shapes) and all(shape[:1] == (1,) for shape in shapes)


def _helpers(kind: type) -> Iterator[Any]:
    """Functions of a module that the methods of a class in it name."""
    for cls in kind.__mro__[:4]:
        if cls.__module__.startswith("torch.utils.data"):
            break
        for method in vars(cls).values():
            code, known = _attribute(method, "__code__"), _attribute(method, "__globals__")
            if isinstance(code, CodeType) and isinstance(known, dict):
                named = (known.get(name) for name in code.co_names)
                yield from (function for function in named if isinstance(function, FunctionType))


def _collates_itself(loader: Any) -> bool:
    """A collate function that is not torch's makes the loader's batches."""
    function = _attribute(loader, "collate_fn")
    return not str(_attribute(function, "__module__")).startswith("torch.")


def _shares_out(dataset: Any, source: str) -> bool:
    """Whether an iterable dataset shares itself out among workers: itself, by a helper, by a stage of it."""
    if "get_worker_info" in source:
        return True
    held = list(_held(dataset).values())
    held += [stage for group in held if isinstance(group, (list, tuple)) for stage in group[:_WIDE]]
    functions = [func if callable(func := _attribute(stage, "func")) else stage for stage in held]
    codes = [_attribute(function, "__code__") for function in (*functions, *_helpers(type(dataset)))]
    return any(isinstance(code, CodeType) and _shares_by(code) for code in codes)


def _shares_by(code: CodeType) -> bool:
    """A function that asks which of how many workers it runs in; some ask only to draw otherwise in each."""
    asks = any("worker_info" in name for name in code.co_names)
    return "by_worker" in code.co_name or (asks and "num_workers" in (*code.co_names, *code.co_varnames))


def _expected_among(
    sized: list[tuple[tuple[Any, ...], tuple[int, ...]]], lists: list[_Item], expected: int
) -> How | None:
    for path, shape in sized:
        if shape[0] == expected:
            return ("dim", path, 0)
    for path, item in lists:
        if len(item) == expected:
            return ("len", path, 0)
    for path, item in lists:
        shapes = [_shape(element) for element in item]
        if all(shape and shape[0] == expected for shape in shapes):
            return ("dim", (*path, 0), 0)  # views of all samples, not one sample each
    for path, shape in sized:
        if expected in shape:
            return ("dim", path, shape.index(expected))
    return None


def _are_samples(items: Any, expected: int | None) -> bool:
    """Elements of a whole batch that are one sample each, and no fields of it: all of one form."""
    shapes = [_shape(item) for item in items]
    if all(shape is not None for shape in shapes):
        alike = len({len(shape) for shape in shapes if shape is not None}) == 1
        return alike and len(items) == expected and not any(s and s[0] == expected for s in shapes)
    if all(isinstance(item, tuple) for item in items):
        return isinstance(items, list) and len({tuple(type(part) for part in item) for item in items}) == 1
    if all(isinstance(item, Mapping) for item in items):
        return True
    return not any(shapes) and not any(isinstance(item, (list, tuple, Mapping)) for item in items)


def _without_mappings(items: list[_Item]) -> list[_Item]:
    """The same with what mappings hold in their place."""
    found: list[_Item] = []
    pending = items[::-1]
    while pending:
        path, item = pending.pop()
        inner: list[_Item] = []
        try:
            if _shape(item) is not None or len(path) >= _LEVELS or _is_graphs(item):
                pass
            elif _is_mapping(item):
                inner = [((*path, key), item[key]) for key in keys_of(item)[:_WIDE]]
            elif not path and not isinstance(item, (list, tuple)):
                # A batch of a class of the script's own; inside of another form it may be one sample.
                inner = [((_Name(name),), held) for name, held in list(_held(item).items())[:_WIDE]]
        except Exception:
            inner = []  # an object of the script's that only looks like one
        if inner:
            pending += inner[::-1]
        else:
            found.append((path, item))
    return found


def _is_graphs(item: Any) -> bool:
    return isinstance(_attribute(item, "num_graphs"), int)


def keys_of(item: Any) -> list[Any]:
    """Of a mapping, or of what looks like one: some have `keys` as a property."""
    keys: Any = item.keys
    if callable(keys):
        keys = keys()
    return list(keys)


def _is_mapping(item: Any) -> bool:
    return isinstance(item, Mapping) or (hasattr(item, "keys") and hasattr(item, "__getitem__"))


def _shape(item: Any) -> tuple[int, ...] | None:
    """Sizes of a tensor, None for anything else."""
    shape = _attribute(item, "shape")
    if shape is None or callable(shape):
        return None
    try:
        return tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        return None


def _attribute(item: Any, name: str) -> Any:
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def count(batch: Any, how: How) -> int:
    """Samples in a batch."""
    kind, path, dimension = how
    if kind == "one":
        return 1
    for key in path:
        batch = getattr(batch, key) if isinstance(key, _Name) else batch[key]
    if kind == "dim":
        return int(batch.shape[dimension])
    if kind == "len":
        return len(batch)
    return int(batch.batch_size if kind == "size" else batch.num_graphs)


def shared_handle(dataset: Any) -> str:
    """Class of an open file that a dataset holds, empty without one.

    Forked workers share such a file's position, or a connection that must not cross a fork. It is
    looked for before the first fetch: what a dataset opens at its first read, each worker opens itself.
    """
    for _ in range(3):
        held = list(_held(dataset).values())
        held += [v for group in held if isinstance(group, (list, tuple)) for v in group[:8]]
        held += [v for group in held if isinstance(group, dict) for v in list(group.values())[:8]]
        for value in held:
            if _is_handle(value):
                return type(value).__name__
        dataset = _attribute(dataset, "dataset")
        if dataset is None:
            break
    return ""


def _is_handle(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not isinstance(value, (io.BytesIO, io.StringIO)) and not value.closed
    if type(value).__name__ == "_TemporaryFileWrapper":
        return _is_handle(value.file)
    for module, name in _HANDLES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return True
    return False


def _batch_size(loader: Any, torch: Any) -> int | None:
    """Samples of a full batch as the loader itself has it; None where it does not say."""
    size = getattr(loader, "batch_size", None)
    sampler = getattr(loader, "batch_sampler", None)
    if size is None and type(sampler) is torch.utils.data.BatchSampler:
        size = getattr(sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _ratio(found: int, loader: Any, torch: Any) -> float:
    """What is counted in the first batch, per sample of the loader: 2 for two views of each."""
    size = _batch_size(loader, torch)
    if not size or not found or found == size:
        return 1.0
    whole = (_length(getattr(loader, "batch_sampler", None), 0) or 0) > 1
    return found / size if whole or found % size == 0 else 1.0


def _draws_order(loader: Any, torch: Any) -> bool:
    """Whether the order of the samples is drawn anew for every epoch, as far as can be told."""
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches) is not torch.utils.data.BatchSampler:
        return True
    return not isinstance(getattr(batches, "sampler", sampler), torch.utils.data.SequentialSampler)


def _held(item: Any) -> dict[str, Any]:
    """What an object of the script's holds in itself; some answer questions about it with any error."""
    return dict(_attribute(item, "__dict__") or {})


def _length(sized: Any, default: Any) -> Any:
    try:
        return len(sized)
    except Exception:
        return default


@functools.lru_cache(maxsize=16)
def _source(kind: type) -> str:
    parts: list[str] = []
    for cls in kind.__mro__[:4]:
        if cls.__module__.startswith("torch.utils.data"):
            break
        try:
            parts.append(inspect.getsource(cls))
        except (OSError, TypeError):
            continue
    return "\n".join(parts)


def _holds_cuda(dataset: Any, torch: Any) -> bool:
    held = list(_held(dataset).values())
    held += [t for group in held if isinstance(group, (list, tuple)) for t in group[:8]]
    return any(isinstance(item, torch.Tensor) and item.is_cuda for item in held)


def _settings(dataset: Any) -> dict[tuple[int, str], Any]:
    """What a data set and those that it wraps hold: numbers and texts as they are, the rest by identity.

    What is not there yet may be made whenever it is asked for.
    """
    found: dict[tuple[int, str], Any] = {}
    for depth in range(3):
        for name, value in _held(dataset).items():
            if value is not None:
                plain = type(value) in (bool, int, str)
                found[depth, name] = value if plain else repr(value) if type(value) is float else id(value)
        dataset = _attribute(dataset, "dataset")
        if dataset is None:
            break
    return found


def _looks_random(dataset: Any, source: str) -> bool:
    words = ("random.", "torch.rand", "torch.bernoulli", "default_rng")
    if any(word in source for word in words):
        return True
    text = " ".join(repr(value)[:2000] for key, value in _members(dataset) if "transform" in key.lower())
    return any(word in text for word in ("Random", "Jitter", "Augment", "MixUp", "CutMix"))


def _members(dataset: Any) -> list[tuple[str, Any]]:
    return [*_held(dataset).items(), *_held(_attribute(dataset, "dataset")).items()]
