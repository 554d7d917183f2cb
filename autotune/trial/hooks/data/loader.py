"""DataLoader hook: overrides at construction, and observation of waits and batches."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.knobs.loader.num_workers import refuse_workers
from autotune.trial.hooks.data.datasets import shared_handle
from autotune.trial.hooks.data.fetch_watch import FetchWatch
from autotune.trial.hooks.data.fetches import LOOKED_AT, TIMED, TIMED_EACH, Fetches
from autotune.trial.hooks.data.loader_facts import batch_size_of, described, settles_at_once, start_method
from autotune.trial.hooks.data.loader_overrides import Overrides, continue_pass, hand_back
from autotune.trial.hooks.data.pickle_check import Sent, try_sending
from autotune.trial.records.loader_stats import BETWEEN, INSIDE, WHOLE, LoaderStats
from autotune.trial.records.steady_steps import CALL, FETCH, FETCHING, OFF
from autotune.trial.runtime.state import LOADER, caller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from autotune.model.config import Value
    from autotune.model.facts import FetchState, LoaderFacts
    from autotune.trial.hooks.data.held_state import StateSnapshot
    from autotune.trial.hooks.model.model_inputs import Inputs
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_PROBES = 3
_UNCHANGED = object()


class Loader(Fetches):
    """Implements `LoaderHook`, and counts batches."""

    def __init__(self, state: RuntimeState, undo: Undo) -> None:
        super().__init__(state)
        self._undo = undo
        self.overrides = Overrides(state)
        self.built_any = False
        self.input_batch: int | None = None
        self.inputs: Inputs | None = None
        """Source of the batch size if no loader has one."""
        self.is_measured = True
        """Facts are requested; not under `apply`."""
        self.in_thread = False
        """A loader was used in another thread than the training thread."""
        self.on_started: Callable[[], None] | None = None
        """Called at the start of each pass over a loader."""
        self.on_pass: Callable[[LoaderStats], None] | None = None
        """Called before an iterator over a loader is created; under `apply`."""
        self._gone = False
        """Batches are not observed any more."""
        self._backs: list[Callable[[], None]] = []
        """Functions that remove the hooks on batches."""
        self._pickled_from: dict[str, Sent] = {}
        """Chain -> result of the test whether a loader built there can be pickled."""
        self.searched: Mapping[str, Value] = {}
        """The script's own values in the search, by keyword; under `apply`."""
        self._watch = FetchWatch(state, undo)
        self._handles: dict[str, str] = {}
        """Chain -> open file of the first loader built there, before its first fetch."""
        self._states: dict[str, FetchState] = {}
        """Chain -> state changed by fetches from a loader built there."""
        self._read_at: dict[str, tuple[int, int]] = {}
        """Chain -> (loaders built there and read, number of passes)."""

    @property
    def looks_closely(self) -> bool:
        """Whether to examine the dataset, and whether it can be sent to non-forked workers."""
        return self._watch.is_on

    @looks_closely.setter
    def looks_closely(self, on: bool) -> None:
        self._watch.is_on = on

    def window_opens(self) -> None:
        """Stop examinations that would take part of a step."""
        self._watch.is_measuring = True

    def override(self, keyword: str, value: Value | None) -> None:
        """Build the training loader with this keyword from now on; None removes the argument."""
        self.overrides.wanted[keyword] = value

    def give_back(self, keyword: str) -> bool:
        """Restore the script's own value: in batches not begun yet, and in workers from the next pass on.

        Returns:
            Whether the value was restored.
        """
        wanted = self.overrides.wanted
        patched = wanted.pop(keyword, _UNCHANGED) is not _UNCHANGED
        if not patched and keyword in self.searched:
            # A loader set by the script's own option; otherwise the loader has its value from the search.
            wanted[keyword] = self.searched[keyword]
        for record in self.records if patched else [self.train]:
            loader = None if record is None else record.loader()
            value = record.own.get(keyword) if patched and record is not None else self.searched.get(keyword)
            if record is not None and loader is not None and value is not None:
                hand_back(loader, keyword, value, self._torch)
                if keyword == "batch_size" and record.iterator is not None and isinstance(value, int):
                    continue_pass(record.iterator(), value, self._torch)
                record.usual = None
                self._keep(record, loader)
        # Batches that the script makes itself keep the size in its option or constant.
        return patched or (keyword in self.searched and self.train is not None)

    @property
    def changes_batches(self) -> bool:
        """Whether batches of a loader differ from the script's own size."""
        return "batch_size" in self.overrides.wanted

    @contextlib.contextmanager
    def own_batches(self) -> Generator[None]:
        """Give batches of the script's own size in passes that begin inside this context."""
        changed: list[tuple[Any, int]] = []
        for record in self.records if self.changes_batches else ():
            loader, own = record.loader(), record.own.get("batch_size")
            sampler = getattr(loader, "batch_sampler", None)
            size = getattr(sampler, "batch_size", None)
            if loader is not None and type(own) is int and type(size) is int and size != own:
                changed.append((loader, size))
                hand_back(loader, "batch_size", own, self._torch)
        try:
            yield
        finally:
            for loader, size in changed:
                hand_back(loader, "batch_size", size, self._torch)

    def workers_refused(self, loader: Any) -> str | None:
        """Return why workers would change the training, by fetches in children; None if they would not.

        Args:
            loader: About to start workers that the script itself does not use.
        """
        handle = shared_handle(loader.dataset, loader.collate_fn)
        if not handle:
            self._watch.try_fetches(loader, LOOKED_AT)
        return refuse_workers(
            replace(
                described(loader, self._torch),
                num_workers=0,
                shared_handle=handle or self._watch.handle_of(loader.dataset),
                fetch_state=self._watch.state_of(loader.dataset),
            )
        )

    def other_size(self) -> str:
        """Return why the last batch is not covered by the search; empty if it is."""
        last = self._last
        if last is None or not last.is_other:
            return ""
        return f"a loader of {last.own.get('batch_size')} samples trains, built at {last.site}"

    def observed(self, keyword: str) -> Value | None:
        """Return the value in the training loader in use; None before it is known."""
        record = self.train
        if "loader" in self._state.faults.off:
            return None
        if record is None:
            return self._input_batch() if keyword == "batch_size" and self._state.steps >= 2 else None
        if keyword == "batch_size":
            own = self._own_batch_size(record)
            return own if own is not None and record.recent else max(record.recent, default=None)
        if keyword == "num_workers":
            return record.count_workers()
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
        if self.inputs is None or not self.inputs.batch_size:
            return self.input_batch
        observed = self.inputs.observed()
        return self.input_batch if observed is None and not self.inputs.expects else observed

    def _own_batch_size(self, record: LoaderStats) -> int | None:
        loader = record.loader()
        if loader is not None or record.kept is None:
            return batch_size_of(loader, self._torch)
        return None if record.kept.custom_batch_sampler else record.kept.batch_size

    # Installation

    def install(self, torch: Any) -> None:
        """Install the hook."""
        self._torch = torch
        self.overrides.install(torch)
        self._grad_enabled = torch.is_grad_enabled
        data = torch.utils.data
        module = sys.modules[data.DataLoader.__module__]
        base = module._BaseDataLoaderIter
        self._wrap_init(data.DataLoader)
        self._wrap_iterator(base)
        self._backs.append(self._watch.install(torch, module))

    def _wrap_init(self, cls: Any) -> None:
        original = cls.__init__
        signature = inspect.signature(original)
        state, overrides = self._state, self.overrides

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            if not state.active or "loader" in state.faults.off:
                original(this, *args, **kwargs)
                return
            sites: list[str] = []
            own: dict[str, Any] = {}
            other = False
            try:
                sites = state.user_frames(caller(1))
                bound = signature.bind(this, *args, **kwargs)
                own = overrides.own_of(bound.arguments)
                if (overrides.wanted or overrides.watched) and overrides.is_target(
                    sites, signature, (this, *args), kwargs, first=not self.records
                ):
                    overrides.meet(own["batch_size"], bound.arguments, sites[0] if sites else "")
                    other = overrides.left_alone
                    overrides.apply(bound.arguments)
                    args, kwargs = bound.args[1:], bound.kwargs
            except TypeError:
                pass  # the original raises the script's own error
            except Exception as error:
                state.faults.note("loader", error)
            original(this, *args, **kwargs)
            try:
                self.built_any = True
                record = LoaderStats(this, sites)
                record.own, record.is_other = own, other
                this.__dict__["_autotune_record"] = record
                record.expected = record.chain in self._trained - self._evaluated
                self.records = [r for r in self.records if r.in_use or r is self.train]
                self.records.append(record)
            except Exception as error:
                state.faults.note("loader", error)

        self._undo.assign(cls, "__init__", init)
        getstate = getattr(cls, "__getstate__", None)

        def without_record(this: Any) -> Any:
            held = getstate(this) if getstate is not None else dict(this.__dict__)
            if isinstance(held, dict):
                return {k: v for k, v in held.items() if not str(k).startswith("_autotune_")}
            return held

        self._undo.assign(cls, "__getstate__", without_record)

    def _wrap_iterator(self, base: Any) -> None:
        fetches = self._phase_from_fetch()
        wrapped = {**self._starting(base, fetches), "__next__": self._advancing(base.__next__, fetches)}
        for name, wrapper in wrapped.items():
            self._backs.append(self._undo.replace(base, name, wrapper))

    def _phase_from_fetch(self) -> Callable[[LoaderStats, int, bool], None]:
        """Return a function that infers training or evaluation from a fetch."""
        state = self._state

        def fetches(record: LoaderStats, now: int, trains: bool) -> None:
            if not trains:
                # An evaluation, possibly by another model; its time and samples are not training.
                state.evaluates(now, by_loader=True)
            elif record.confirmed or record.expected:
                state.fetched_elsewhere = False
                state.trains(now)
            else:
                # Some scripts never call `backward`, so that no loader is known to train.
                state.fetched_elsewhere = self.train is not None
                if state.fetched_elsewhere and record.batches:
                    # Fetched again, without a backward pass on the previous batch.
                    state.evaluates(now)
                else:
                    state.may_evaluate(now)

        return fetches

    def _starting(
        self, base: Any, fetches: Callable[[LoaderStats, int, bool], None]
    ) -> dict[str, Callable[..., None]]:
        """Return the wrapped methods that create and reset iterators, by name."""
        state = self._state
        original_init, original_reset = base.__init__, base._reset
        clock = time.perf_counter_ns

        def starts(record: LoaderStats | None) -> None:
            """Record the start of a loader, whose cost belongs to its purpose."""
            if state.here():
                state.calm.leave()
            if record is not None and state.here():
                if self.on_started is not None:
                    self.on_started()
                fetches(record, clock(), self._grad_enabled())

        @functools.wraps(original_init)
        def init(this: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            record = getattr(loader, "_autotune_record", None)
            starts(record)
            if record is not None and self.on_pass is not None and state.here():
                self.on_pass(record)
            before = None
            if record is not None and state.active and self.looks_closely:
                before = self._before_a_pass(record, loader)
            original_init(this, loader, *args, **kwargs)
            if record is not None and state.active:
                this._autotune_record = record
                self._passed(record, another=record.iterator is None)
                record.ahead = 0
                record.iterator = weakref.ref(this)
                record.workers = 0
                record.pins = bool(getattr(loader, "pin_memory", False))
                record.count_workers()
                record.eager_order = settles_at_once(this)
                if before is not None and record.eager_order:
                    self._note_fetch_state(record, self._watch.order_made(*before))
                if record.kept is None:
                    self._keep(record, loader)
                record.method = start_method(this)
                record.in_order = getattr(this, "_in_order", None)
                if record.confirmed or record.expected:
                    state.mark |= LOADER

        @functools.wraps(original_reset)
        def reset(this: Any, *args: Any, **kwargs: Any) -> None:
            starts(getattr(this, "_autotune_record", None))
            original_reset(this, *args, **kwargs)
            record = getattr(this, "_autotune_record", None)
            if record is not None and state.active:
                # Starting workers also resets them.
                if not (kwargs.get("first_iter") or args[1:2] == (True,)):
                    self._passed(record, another=False)
                record.ahead = 0
                # A short epoch may end before any query.
                record.count_workers()
                record.method = start_method(this)
                record.in_order = getattr(this, "_in_order", None)
            if record is not None and (record.confirmed or record.expected):
                state.mark |= LOADER

        return {"__init__": init, "_reset": reset}

    def _advancing(
        self, original_next: Callable[[Any], Any], fetches: Callable[[LoaderStats, int, bool], None]
    ) -> Callable[[Any], Any]:
        """Return the wrapped fetch of a batch; most fetches take its short path."""
        state = self._state
        clock, cpu, ident = time.perf_counter_ns, time.thread_time_ns, threading.get_ident
        off, calm = state.faults.off, state.calm

        @functools.wraps(original_next)
        def advance(this: Any) -> Any:
            calmly = calm.iterator == id(this) and self._grad_enabled() and ident() == calm.main
            if calm.stage == FETCH and calmly:
                # The most frequent case; only the wait is recorded.
                calm.stage = FETCHING
                begin = clock()
                try:
                    batch = original_next(this)
                except BaseException:
                    spent = clock() - begin
                    calm.leave()
                    this._autotune_record.wait_ns += spent
                    raise
                spent = clock() - begin
                try:
                    part = batch if calm.place is WHOLE else batch[calm.place]
                    is_alike = part.shape[calm.dimension] == calm.samples
                except Exception:  # of another kind; the full path handles it
                    is_alike = False
                if is_alike and calm.stage == FETCHING:
                    calm.wait_ns = spent
                    calm.stage = CALL
                else:
                    calm.leave()
                    self._fetched_unlike(this, batch, spent)
                return batch
            if calm.stage != OFF and state.here():
                calm.leave()
            record: LoaderStats | None = getattr(this, "_autotune_record", None)
            if self._gone or record is None or not state.here() or "loader" in off:
                self.in_thread = self.in_thread or (record is not None and state.active and not state.here())
                return original_next(this)
            if record.usual is not None and self._is_usual(record, this):
                state.fetched_elsewhere = False
                begin = clock()
                try:
                    batch = original_next(this)
                finally:
                    spent = clock() - begin
                    record.wait_ns += spent
                if batch is None:
                    return batch
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
            # The first fetch of an iterator draws the order of the epoch, in the process itself.
            inside = not this._num_workers
            probe = inside and record.probes < _PROBES and this._num_yielded > 0
            before = None
            if probe:
                try:
                    before = self._watch.random_state()
                    record.probes += 1
                except Exception as error:
                    state.faults.note("loader", error)
                    probe = False
            examines = self.is_measured and (
                record.fetches < LOOKED_AT or not this._num_yielded or record.left == 1
            )
            if examines:
                self._check_data(record, this, before=True)
            trains = self._grad_enabled()
            # Reading the CPU time is a system call.
            timed = inside and (record.fetches < TIMED or not record.fetches % TIMED_EACH)
            cpu_begin = cpu() if timed else 0
            self._watch.take_spent_ns()
            begin = clock()
            fetches(record, begin, trains)
            device = state.device_clock if trains else None
            if device is not None:
                device.fetch_begins()
            try:
                batch = original_next(this)
            finally:
                spent = clock() - begin - self._watch.take_spent_ns()
                if device is not None:
                    device.fetch_ends()
                if trains:
                    record.wait_ns += spent
            if batch is None:
                return batch  # from a collate function that found no samples, and is not used
            try:
                record.fetch_ns += spent
                if timed:
                    record.timed_ns += spent
                    record.fetch_cpu_ns += cpu() - cpu_begin
                if inside:
                    record.in_process += 1
                    if probe and before != self._watch.random_state():
                        record.random = True
                self._count(record, batch, trains)
                record.left = self._left(record, this)
                record.ahead += 1
                record.usual = self._usual(record)
            except Exception as error:
                state.faults.note("loader", error)
            if examines:
                self._check_data(record, this, before=False)
                self._check_order(record, this)
            return batch

        return advance

    def _fetched_unlike(self, iterator: Any, batch: Any, spent_ns: int) -> None:
        """Count a batch that differs from earlier ones, or in whose fetch other events occurred."""
        record: LoaderStats = iterator._autotune_record
        record.wait_ns += spent_ns
        if batch is None:
            return
        try:
            record.fetch_ns += spent_ns
            self._count(record, batch, trains=True)
            record.left = self._left(record, iterator)
            record.ahead += 1
            record.usual = self._usual(record)
        except Exception as error:
            self._state.faults.note("loader", error)

    def let_go(self) -> None:
        """Remove the hooks on iterators; loaders built later still get their changes."""
        self._gone = True
        for record in self._fetched:
            record.batches = 0
        self._fetched.clear()
        while self._backs:
            self._backs.pop()()

    def _before_a_pass(self, record: LoaderStats, loader: Any) -> tuple[Any, StateSnapshot] | None:
        """Search for open files before the first fetch, and record the state of the sampler.

        Returns:
            The sampler and its state; None if no later check is needed.
        """
        try:
            if record.chain not in self._handles:
                self._handles[record.chain] = shared_handle(loader.dataset, loader.collate_fn)
            record.shared_handle = record.shared_handle or self._handles[record.chain]
            self._watch.pass_begins(loader)
            sampler = loader._index_sampler
            before = None if record.iterator is not None else self._watch.order_begins(sampler)
            return None if before is None else (sampler, before)
        except Exception as error:
            self._state.faults.note("fetch_watch", error)
            return None

    def _check_data(self, record: LoaderStats, iterator: Any, *, before: bool) -> None:
        """Check whether state read by a fetch has changed since the last one, as workers have copies."""
        try:
            state = record.read_by_fetch(iterator)
            held = state.snapshot()
            if not before:
                record.settings, record.settings_at = held, record.fetches
                self._note_fetch_state(record, self._watch.state_of(iterator._dataset))
                record.random = record.random or self._watch.has_drawn(iterator._dataset)
                record.shares = record.shares or self._watch.shares_of(iterator._dataset)
                record.shared_handle = record.shared_handle or self._watch.handle_of(iterator._dataset)
            elif record.settings_at == record.fetches and record.changed != INSIDE:
                key = state.changed(record.settings, held)
                if key is not None:
                    record.note_change(INSIDE if iterator._num_yielded else BETWEEN, state.text(key))
        except Exception as error:
            self._state.faults.note("loader_facts", error)

    def _check_order(self, record: LoaderStats, iterator: Any) -> None:
        """Check whether the sampler's state changes with the indices of a batch, as workers draw ahead."""
        if not self.looks_closely or iterator._num_yielded > 2:
            return
        sampler, dataset = iterator._index_sampler, iterator._dataset
        if iterator._num_yielded == 1:
            record.order = self._watch.order_begins(sampler, dataset)
        elif record.order is not None:
            found = self._watch.order_made(sampler, record.order, dataset, by="indices")
            record.order = None
            self._note_fetch_state(record, found)

    def _note_fetch_state(self, record: LoaderStats, found: FetchState | None) -> None:
        if found is not None:
            self._states[record.chain] = found

    # Facts

    def facts(self) -> LoaderFacts | None:
        """Return the facts about the training loader; None without one."""
        record = self.train
        if record is None:
            return None
        loader = record.loader()
        if loader is not None:
            self._keep(record, loader)
        if record.kept is None:
            return None
        in_process = record.in_process > 0
        loaders, passes = self._read_at.get(record.chain, (0, 0))
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
            changed_at=record.changed_at,
            sizes=tuple(sizes) if len(sizes := self._sizes.get(record.chain, ())) > 1 else (),
            takes_one=record.takes_one,
            eager_order=record.eager_order,
            rebuilt=1 < loaders == passes,
            fetch_state=self._states.get(record.chain),
            shares=record.shares,
        )

    def _passed(self, record: LoaderStats, *, another: bool) -> None:
        """Record the start of a pass, possibly over another loader of the same place."""
        loaders, passes = self._read_at.get(record.chain, (0, 0))
        self._read_at[record.chain] = (loaders + another, passes + 1)

    def _keep(self, record: LoaderStats, loader: Any) -> None:
        try:
            record.kept = described(loader, self._torch)
        except Exception as error:
            self._state.faults.note("loader_facts", error)

    def _sent(self, record: LoaderStats) -> Sent:
        found = self._pickled_from.get(record.chain)
        if found is None and self.looks_closely:
            loader = record.loader()
            iterator = record.iterator() if record.iterator is not None else None
            if loader is not None:
                what = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
            elif iterator is not None:
                what = (iterator._dataset, iterator._collate_fn, getattr(iterator, "_worker_init_fn", None))
            else:
                return Sent()
            self._pickled_from[record.chain] = found = try_sending(what, self._torch)
        return found or Sent()
