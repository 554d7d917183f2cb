"""Observation of the first fetches of each loader, for state that they change.

Without workers these run in the training process; forked workers observe their own fetches and report through
a pipe. If a fetch changes more than a generator, a forked child checks whether a sample depends on earlier
fetches: a cache of unchanging samples does not count.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from autotune.model.facts import FetchState
from autotune.trial.hooks.data.datasets import shares_out, source_of
from autotune.trial.hooks.data.held_state import (
    GENERATOR,
    OBJECT,
    SEQUENTIAL,
    VALUE,
    Piece,
    StateSnapshot,
    described,
)
from autotune.trial.hooks.data.loader_facts import is_settled
from autotune.trial.hooks.data.object_walk import Node
from autotune.trial.hooks.data.stream_state import StreamState, carried
from autotune.trial.records.forked_probe import answer_of, descriptors, is_read_from
from autotune.trial.records.objects import CachedFunction, length_of
from autotune.trial.records.sample_digests import digest, seed_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_FIRST: Final = 4
"""Number of fetches in a child that replaces a non-forked worker."""
_LAST_LOOK: Final = 64
_MOST_LOOKS: Final = 24
"""Largest number of observed fetches per dataset; each costs two snapshots of some milliseconds."""
_ALL_LOOKS: Final = 96
"""The same over all datasets: some scripts build a new one for each pass."""
_LIMIT_S: Final = 5.0
"""Limit for a stuck child; one takes `_HISTORY_S`, a few fetches and the fork of the process."""
_TRY_S: Final = 20.0
"""Limit for a child with the first fetches, which ends itself after some seconds, or later under load."""
_SLOWEST_S: Final = 0.25
"""Longest fetch time of a sample that is fetched again."""
_CANDIDATES: Final = 6
_KEEPS: Final = (dict, set, CachedFunction)
"""Types of caches that can be emptied for a test."""
_HISTORY: Final = 64
_HISTORY_S: Final = 1.0
"""Time for fetches before a repeated one, as the effect of a counter on samples may be slow."""


class FetchWatch:
    """Changes made by fetches, by dataset.

    Args:
        state: State of the training process.
        undo: Removes the hook.
    """

    def __init__(self, state: RuntimeState, undo: Undo) -> None:
        self.state = state
        self._undo = undo
        self.is_on = False
        """In the baseline only, as the result is a fact of the script."""
        self.is_measuring = False
        """The window is open: an observation would be measured as part of a step."""
        self.torch: Any = None
        self.looks: dict[int, int] = {}
        self.pure: set[str] = set()
        """Paths of caches."""
        self.begins: dict[int, Callable[[int], Any]] = {}
        """Initialization of each worker (`worker_init_fn`), by dataset."""
        self.at_first: dict[int, dict[str, str]] = {}
        """Paths and kinds of state before the first observed fetch."""
        self.opened: dict[int, frozenset[int]] = {}
        """Descriptors open at that time; a file opened by a fetch is opened in each worker."""
        self.found: dict[int, FetchState] = {}
        self.handles: dict[int, str] = {}
        self.shares: dict[int, tuple[int, ...]] = {}
        """Samples of a pass over a stream and of each of two workers; empty if unknown."""
        self.alike: set[int] = set()
        """Streams whose passes do not depend on earlier passes."""
        self.draws: set[int] = set()
        """Datasets with a worker's fetch that used a generator seeded by the loader."""
        self.spent_ns = 0
        """Observation time in fetches of the training process, since `take_spent_ns`."""
        self._all_looks = 0
        self.repeated: set[int] = set()
        """Datasets with an index that was fetched again, in a child."""
        self.orders: dict[int, FetchState] = {}
        """State of samplers, by dataset, as reported by children."""
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._pipe: tuple[int, int] | None = None
        self._made: list[dict[str, Any]] | None = None
        """Reports of a child that fetches in place of a worker."""
        self._reports: dict[int, dict[int, dict[str, Any]]] = {}

    def install(self, torch: Any, loaders: Any) -> Callable[[], None]:
        """Hook the construction of fetchers; there is one per pass and worker.

        Args:
            torch: The module.
            loaders: ``torch.utils.data.dataloader``.

        Returns:
            Function that removes the hook.
        """
        self.torch = torch
        kinds = loaders._DatasetKind
        original = kinds.create_fetcher

        def create_fetcher(
            kind: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any
        ) -> Any:
            if not self._is_watching():
                return original(kind, dataset, auto_collation, collate_fn, drop_last)
            # An iterable dataset may change when its iterator is created.
            watched = self._watched(dataset, collate_fn, indexed=kind == kinds.Map)
            fetcher = original(kind, dataset, auto_collation, collate_fn, drop_last)
            if watched is not None:
                watched.attach(fetcher)
            return fetcher

        return self._undo.replace(kinds, "create_fetcher", staticmethod(create_fetcher))

    def _is_watching(self) -> bool:
        return self.is_on and not self.is_measuring and "fetch_watch" not in self.state.faults.off

    def _watched(self, dataset: Any, collate_fn: Any, *, indexed: bool) -> _Watched | None:
        self._meet(dataset)
        observed = self.looks.get(id(dataset), 0)
        if id(dataset) in self.found or observed >= _MOST_LOOKS or self._all_looks >= _ALL_LOOKS:
            return None
        try:
            return _Watched(self, dataset, collate_fn, indexed=indexed)
        except Exception as error:
            self.state.faults.note("fetch_watch", error)
            return None

    def _meet(self, dataset: Any) -> None:
        """Drop the records of an id when its dataset is deleted, as ids are reused."""
        key = id(dataset)
        with contextlib.suppress(TypeError):  # a list has no weak references
            if key not in self._alive:
                self._alive[key] = weakref.ref(dataset, lambda _: self._forget(key))

    def _forget(self, dataset: int) -> None:
        for known in (
            self._alive,
            self.looks,
            self.begins,
            self.at_first,
            self.opened,
            self.found,
            self.handles,
            self.shares,
            self.orders,
            self._reports,
        ):
            known.pop(dataset, None)
        self.draws.discard(dataset)
        self.alike.discard(dataset)
        self.repeated.discard(dataset)

    @property
    def may_fork(self) -> bool:
        """Whether this is the training process, or a child that fetches in place of a worker."""
        return self.state.active or self._made is not None

    def take_spent_ns(self) -> int:
        """Return the observation time since the last call, and reset it."""
        spent, self.spent_ns = self.spent_ns, 0
        return spent

    # Workers

    def pass_begins(self, loader: Any) -> None:
        """Prepare a loader's iteration; its workers report through a pipe that they inherit."""
        dataset, begin = loader.dataset, loader.worker_init_fn
        self._meet(dataset)
        if begin is not None:
            self.begins[id(dataset)] = begin
        if not loader.num_workers:
            return
        if not _is_forked(loader):
            self._fetch_in_child(loader)
            return
        # Workers cannot count jointly, so those of the first passes observe and later ones do not.
        self.note_looks(id(dataset), _MOST_LOOKS // 3)
        if self.is_on and self._pipe is None:
            with contextlib.suppress(OSError):
                self._pipe = os.pipe()
                os.set_blocking(self._pipe[0], False)
                os.set_blocking(self._pipe[1], False)

    def _fetch_in_child(self, loader: Any) -> None:
        """Make the first fetches in children, as non-forked workers run without the hooks."""
        dataset = id(loader.dataset)
        if self._is_watching() and dataset not in self.looks:
            self.note_looks(dataset, _FIRST)
            self.try_fetches(loader, _FIRST)

    def try_fetches(self, loader: Any, most: int) -> None:
        """Make the first fetches in two children, to detect changes that workers would make.

        Args:
            loader: About to be iterated over.
            most: Fetches of each child.
        """
        self._meet(loader.dataset)
        # Only the initialization of workers can make them differ.
        for number in (0, 1) if loader.worker_init_fn is not None else (0,):
            found = answer_of(lambda n=number: self._first_fetches(loader, n, most), limit_s=_TRY_S)
            for report in found or ():
                self._note_report(report)

    def _first_fetches(self, loader: Any, number: int, most: int) -> list[dict[str, Any]]:
        """Return the reports of a worker; runs in the child."""
        self._made, self.is_on, until_s = [], True, time.monotonic() + _HISTORY_S
        for known in (self.looks, self.found, self.at_first, self.opened, self.handles):
            known.clear()
        begin_worker(self.torch, loader.dataset, number, loader.worker_init_fn)
        order = self._order_of(loader)
        made = self.torch.utils.data.dataloader._DatasetKind.create_fetcher(
            loader._dataset_kind,
            loader.dataset,
            loader._auto_collation,
            loader.collate_fn,
            loader.drop_last,
        )
        with contextlib.suppress(StopIteration):
            for index in itertools.islice(order, most):
                made.fetch(index)
                if time.monotonic() > until_s:
                    break
        for handle in self.handles.values():
            self._send(id(loader.dataset), handle=handle)
        return self._made

    def _order_of(self, loader: Any) -> Iterator[Any]:
        """Yield the indices of a pass, and report whether the sampler has state; runs in the child."""
        sampler, dataset = loader._index_sampler, loader.dataset
        before = self.order_begins(sampler)
        order = iter(sampler)
        if before is not None and is_settled(sampler, order):
            self._report_order(dataset, self.order_made(sampler, before))
        first = next(order, None)
        before = self.order_begins(sampler, dataset)
        second = next(order, None)
        if before is not None:
            self._report_order(dataset, self.order_made(sampler, before, dataset, by="indices"))
        return itertools.chain((i for i in (first, second) if i is not None), order)

    def _report_order(self, dataset: Any, held: FetchState | None) -> None:
        if held is not None:
            self._send(id(dataset), order=held.what, by=held.by)

    def note_looks(self, dataset: int, count: int) -> None:
        """Count observed fetches of a dataset."""
        self.looks[dataset] = self.looks.get(dataset, 0) + count
        self._all_looks += count

    def report(self, dataset: int, held: FetchState, start: list[Any]) -> None:
        """Record a result, from here or from a worker in the training process."""
        if self.state.active:
            self.found[dataset] = held
            return
        begun = hashlib.sha256(repr(start).encode()).hexdigest()
        self._send(dataset, start=begun, what=held.what[:500], by=held.by, sure=held.sure)

    def report_draws(self, dataset: int) -> None:
        """Record, in a worker, that a fetch used a generator seeded by the loader."""
        if dataset not in self.draws and not self.state.active:
            self.draws.add(dataset)
            self._send(dataset, draws=True)

    def _send(self, dataset: int, **found: object) -> None:
        info = self.torch.utils.data.get_worker_info()
        if info is None:
            return
        line = {"dataset": dataset, "worker": info.id, **found}
        if self._made is not None:
            self._made.append(line)
        if self._made is not None or self._pipe is None:
            return
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], json.dumps(line).encode() + b"\n")

    def state_of(self, dataset: Any) -> FetchState | None:
        """Return the state that its fetches have changed; None without any."""
        self._read_reports()
        if id(dataset) in self.orders:
            return self.orders[id(dataset)]
        reports = list(self._reports.get(id(dataset), {}).values())
        if not reports:
            return self.found.get(id(dataset))
        first = reports[0]
        starts = {report["start"] for report in reports}
        apart = 1 < len(reports) == len(starts) and GENERATOR in str(first["what"])
        sure = any(report["sure"] for report in reports)
        return FetchState(what=first["what"], by=first["by"], sure=sure, apart=apart)

    def has_drawn(self, dataset: Any) -> bool:
        """Return whether workers reported use of the generators that the loader seeds in each of them."""
        return id(dataset) in self.draws

    def random_state(self) -> Any:
        """Return the state of the generators that a loader seeds in each worker."""
        numpy = sys.modules.get("numpy.random")
        state: Any = None if numpy is None else numpy.get_state()
        # Generators other than the Mersenne twister return their state as a dict.
        drawn = repr(state) if isinstance(state, dict) else state and (int(state[2]), int(state[1][0]))
        # Not through NumPy, as PyTorch works without it.
        return random.getstate(), self.torch.get_rng_state().tolist(), drawn

    def handle_of(self, dataset: Any) -> str:
        """Return a file, open before the fetches, whose position they moved; empty without one."""
        return self.handles.get(id(dataset), "")

    def shares_of(self, dataset: Any) -> tuple[int, ...]:
        """Return the samples of a pass over a stream and of each of two workers; empty if unknown."""
        return self.shares.get(id(dataset), ())

    def _read_reports(self) -> None:
        text = b""
        while self._pipe is not None:
            try:
                part = os.read(self._pipe[0], 1 << 16)
            except OSError:  # no further data now
                break
            text += part
        for line in text.splitlines():
            with contextlib.suppress(ValueError, KeyError):
                self._note_report(json.loads(line))

    def _note_report(self, report: dict[str, Any]) -> None:
        dataset = report["dataset"]
        if "draws" in report:
            self.draws.add(dataset)
        elif "handle" in report:
            self.handles.setdefault(dataset, report["handle"])
        elif "order" in report:
            self.orders.setdefault(dataset, FetchState(what=report["order"], by=report["by"], sure=True))
        else:
            self._reports.setdefault(dataset, {}).setdefault(report["worker"], report)

    # Samplers

    def order_begins(self, sampler: Any, dataset: Any = None) -> StateSnapshot | None:
        """Return the state of a sampler before its iteration; None if it is not observed.

        Args:
            sampler: The sampler.
            dataset: Objects reachable from it are no state of the sampler.
        """
        if not self._is_watching():
            return None
        try:
            return StateSnapshot({"dataset": dataset, "sampler": sampler}, self.torch)
        except Exception as error:
            self.state.faults.note("fetch_watch", error)
            return None

    def order_made(
        self, sampler: Any, before: StateSnapshot, dataset: Any = None, *, by: str = "sampler"
    ) -> FetchState | None:
        """Return the state that a sampler changed for an order, or for indices, without generators."""
        try:
            after = StateSnapshot({"dataset": dataset, "sampler": sampler}, self.torch)
            moved = [p for p in after.moved_since(before) if p.kind != GENERATOR and p.node.root == "sampler"]
            if not moved:
                return None
            what = described(moved[0], after.codes, self.state.place)
            return FetchState(what=what, by=by, sure=True)
        except Exception as error:
            self.state.faults.note("fetch_watch", error)
            return None


class _Watched:
    """One fetcher whose first fetches are observed."""

    def __init__(self, watch: FetchWatch, dataset: Any, collate_fn: Any, *, indexed: bool) -> None:
        self._watch = watch
        self._dataset = dataset
        self._roots = {"dataset": dataset, "collate_fn": collate_fn}
        self._indexed = indexed
        # Not the fetcher itself, which references this: a dataset's lifetime must not change.
        self._fetcher: Callable[[], Any] = _nothing
        self._count = 0
        self._random: Any = None
        """In a worker: state of its seeded generators before a fetch."""
        self._first = self._snapshot()
        self._next: StateSnapshot | None = self._first
        kinds = {path: piece.kind for path, piece in self._first.pieces.items()}
        self._at_first = watch.at_first.setdefault(id(dataset), kinds)
        self._opened = watch.opened.setdefault(id(dataset), frozenset(descriptors()))
        begin = watch.begins.get(id(dataset))
        self._stream = StreamState(
            dataset,
            self._snapshot,
            lambda number: begin_worker(watch.torch, dataset, number, begin),
            watch.torch,
        )
        if not indexed and id(dataset) not in watch.looks:
            self._compare_shares()
            if self._is_carried():
                self._compare_passes(self._first)

    def _snapshot(self) -> StateSnapshot:
        return StateSnapshot(self._roots, self._watch.torch)

    def attach(self, fetcher: Any) -> None:
        """Wrap the fetcher's `fetch`."""
        self._fetcher = weakref.ref(fetcher)
        fetcher.fetch = self._fetch

    def _detach(self) -> None:
        vars(self._fetcher() or self).pop("fetch", None)
        self._next = None

    def _original(self, index: Any) -> Any:
        fetcher = self._fetcher()
        try:
            return type(fetcher).fetch(fetcher, index)
        except StopIteration:
            self._pass_ends()
            raise

    def _pass_ends(self) -> None:
        """Handle the end of a pass, where a stream may store the next start; copies in workers are lost."""
        try:
            if self._indexed or self._watch.is_measuring or id(self._dataset) in self._watch.found:
                return
            after = self._snapshot()
            moved = self._of_stream(after.moved_since(self._first))
            if moved:
                self._compare_passes(after, moved)
            self._compare_shares()
        except Exception as error:
            self._watch.state.faults.note("fetch_watch", error)

    def _is_carried(self) -> bool:
        """Return whether a pass may leave state to the next: a position, or a number set by its code."""
        names = carried(self._first.codes)
        return any(
            piece.kind in SEQUENTIAL or (piece.kind == VALUE and piece.node.name in names)
            for piece in self._first.pieces.values()
            if piece.node.root == "dataset"
        )

    def _compare_passes(self, seen: StateSnapshot, moved: Sequence[Piece] = ()) -> None:
        """Report a stream whose passes depend, or may depend, on earlier ones.

        Args:
            seen: A snapshot with the code of a pass.
            moved: State changed by the first pass; empty before it, when only certain results are reported.
        """
        watch, dataset = self._watch, id(self._dataset)
        # No pass that a child reads uses the collate function.
        by_pass = all(piece.node.root == "dataset" for piece in moved)
        if by_pass and moved and dataset in watch.alike:
            return
        depends = self._stream.depends(None) if by_pass else None
        if depends is False:
            watch.alike.add(dataset)
        elif moved or depends:
            pieces = self._of_stream([seen.pieces[p] for p in self._stream.moved if p in seen.pieces])
            found = [*moved, *pieces, Piece(VALUE, None, Node("dataset", self._dataset, root="dataset"))][0]
            held = FetchState(
                what=described(found, seen.codes, watch.state.place), by=found.node.root, sure=depends is True
            )
            watch.report(dataset, held, self._first.tokens([piece.node.path for piece in moved]))

    def _compare_shares(self) -> None:
        watch, dataset = self._watch, self._dataset
        if watch.state.active and not watch.shares.get(id(dataset)):
            shared = shares_out(dataset, source_of(type(dataset)))
            watch.shares[id(dataset)] = self._stream.shares() if shared else ()

    def _of_stream(self, moved: Sequence[Piece]) -> list[Piece]:
        """Return the changes without state that each pass, and so each worker, creates itself."""
        return [piece for piece in moved if self._is_old(piece) and piece.kind != OBJECT]

    def _fetch(self, index: Any) -> Any:
        self._count += 1
        watch = self._watch
        if watch.is_measuring:
            self._detach()
            return self._original(index)
        # The first ones, and later ones at growing distances.
        if self._count > 2 and self._count & (self._count - 1):
            return self._original(index)
        begin_ns = time.perf_counter_ns()
        before, positions = self._before()
        fetch_ns = time.perf_counter_ns()
        data = self._original(index)
        fetched_ns = time.perf_counter_ns()
        try:
            if before is not None:
                self._judge(before, positions, index, (fetched_ns - fetch_ns) / 1e9)
        except Exception as error:
            watch.state.faults.note("fetch_watch", error)
            self._detach()
        if self._count >= _LAST_LOOK and self._indexed:
            self._detach()
        watch.spent_ns += time.perf_counter_ns() - begin_ns - (fetched_ns - fetch_ns)
        return data

    def _before(self) -> tuple[StateSnapshot | None, dict[int, tuple[int, int]]]:
        try:
            before, self._next = self._next or self._snapshot(), None
            self._random = None if self._watch.state.active else self._watch.random_state()
            return before, _positions(self._opened)
        except Exception as error:
            self._watch.state.faults.note("fetch_watch", error)
            self._detach()
            return None, {}

    def _judge(
        self, before: StateSnapshot, positions: dict[int, tuple[int, int]], index: Any, took_s: float
    ) -> None:
        watch, dataset = self._watch, id(self._dataset)
        if self._random is not None and self._random != watch.random_state():
            watch.report_draws(dataset)
        watch.note_looks(dataset, 1)
        for descriptor, place in _positions(positions).items():
            if place[0] == positions[descriptor][0] and place[1] != positions[descriptor][1]:
                watch.handles.setdefault(dataset, _file_name(descriptor))
        after = self._snapshot()
        moved = [piece for piece in after.moved_since(before) if piece.node.path not in watch.pure]
        if not self._indexed:
            moved = self._of_stream(moved)
        if not moved:
            self._check_repeats(index, took_s)
            return
        lazily = not self._is_old(moved[0])
        depends: bool | None = True
        if moved[0].kind != GENERATOR and not self._indexed:
            by_pass = all(piece.node.root == "dataset" for piece in moved)
            depends = (dataset not in watch.alike and self._stream.depends(_HISTORY)) if by_pass else None
        elif moved[0].kind != GENERATOR:
            depends = self._depends(index, took_s, moved, made_once=all(_is_made(p, before) for p in moved))
        if depends is False:
            watch.pure |= {piece.node.path for piece in moved}
            return
        held = FetchState(
            what=described(moved[0], after.codes, watch.state.place),
            by=moved[0].node.root,
            sure=depends is True and not lazily,
            apart=watch.state.active and self._begins_apart(moved),
        )
        watch.report(dataset, held, self._first.tokens([piece.node.path for piece in moved]))
        self._detach()

    def _check_repeats(self, index: Any, took_s: float) -> None:
        """Report samples that depend on earlier fetches, once per dataset, if no state was seen to change.

        Large arrays, private memory maps and objects of libraries hold state that no snapshot contains.
        """
        watch, dataset = self._watch, id(self._dataset)
        if dataset in watch.repeated or not self._indexed or not watch.may_fork:
            return
        watch.repeated.add(dataset)
        several = isinstance(index, (list, tuple))
        if took_s / (len(index) if several else 1) > _SLOWEST_S:
            return
        ends = ([index[0]], [index[-1]]) if several else (index, index)
        repeats = answer_of(lambda: self._repeats(*ends), limit_s=_LIMIT_S)
        if not repeats or len(set(repeats)) == 1:
            return
        # Unlike the time and the system's entropy, state has the same effect in another child.
        if repeats != answer_of(lambda: self._repeats(*ends), limit_s=_LIMIT_S):
            return
        what = "your dataset returns another sample when it reads an index again"
        watch.report(dataset, FetchState(what=what, by="dataset", sure=True), repeats)
        self._detach()

    def _repeats(self, index: Any, other: Any) -> list[str]:
        """Return a sample, the same once more, and once more after another one; runs in a child."""
        self._prepared()
        found: list[str] = []
        for one in (index, index, other, index):
            seed_all(self._watch.torch, 2)
            found.append(digest(self._original(one), self._watch.torch))
        return [*found[:2], found[3]]

    def _is_old(self, piece: Piece) -> bool:
        """Return whether a piece existed before the first fetch."""
        return self._at_first.get(piece.node.path) == piece.kind

    def _begins_apart(self, moved: Sequence[Piece]) -> bool:
        """Return whether workers would start with different generators, by starting two in children."""
        begin = self._watch.begins.get(id(self._dataset))
        if begin is None or any(piece.kind != GENERATOR for piece in moved):
            return False
        paths = [piece.node.path for piece in moved]
        starts = [answer_of(lambda n=n, b=begin: self._begun(n, b, paths), limit_s=_LIMIT_S) for n in (0, 1)]
        return all(starts) and all(one != other for one, other in zip(*starts, strict=True))

    def _begun(self, number: int, begin: Callable[[int], Any], paths: Sequence[str]) -> list[Any]:
        """Return the state of these generators after the start of this worker; runs in a child."""
        begin_worker(self._watch.torch, self._dataset, number, begin)
        return self._snapshot().tokens(paths)

    # Whether a sample depends on what was fetched before it

    def _depends(self, index: Any, took_s: float, moved: Sequence[Piece], *, made_once: bool) -> bool | None:
        """Return whether a sample depends on earlier fetches, by fetches in children of this process.

        Args:
            index: The last index fetched.
            took_s: Duration of that fetch.
            moved: State that it changed.
            made_once: The state did not exist before, as a file opened by the first fetch.

        Returns:
            None if it cannot be determined, or if the samples are equal and each fetch still changes state.
        """
        several = isinstance(index, (list, tuple))
        indices: Sequence[Any] = index if several else (index,)
        length = length_of(self._dataset, None)
        whole = self._indexed and all(type(i) is int for i in indices) and bool(indices)
        if not whole or not length or took_s / len(indices) > _SLOWEST_S:
            return None
        spread = (int(indices[0]) + k * (length // (_CANDIDATES + 1) + 1) for k in range(1, _CANDIDATES + 1))
        fresh = [i % length for i in spread if i % length not in indices]
        for candidate in fresh:
            chosen = [candidate] if several else candidate
            alone = answer_of(lambda a=chosen: self._alone(a), limit_s=_LIMIT_S)
            if alone is None:
                return None
            sample, changes = alone
            if not changes:
                continue  # known already
            others = [[i] if several else i for i in fresh if i != candidate][:2]
            repeated = answer_of(lambda a=chosen: self._alone(a), limit_s=_LIMIT_S)
            later = answer_of(lambda a=chosen, o=others: self._later(a, o), limit_s=_LIMIT_S)
            if repeated is None or later is None or repeated[0] != sample:
                return None
            if later[0] != sample:
                return True
            return None if later[1] else False
        if made_once and fresh:
            return False
        # All known already, such as the words of a text: the containers are emptied instead.
        kept = [piece.node.value for piece in moved]
        if not fresh or not all(isinstance(value, _KEEPS) for value in kept):
            return None
        fetched = [[i] if several else i for i in fresh]
        whole, anew = (answer_of(lambda k=k: self._samples(fetched, k), limit_s=_LIMIT_S) for k in ((), kept))
        return False if whole is not None and whole == anew else None

    def _samples(self, indices: Sequence[Any], emptied: Sequence[Any]) -> list[str]:
        """Return samples fetched with these containers emptied; runs in a child."""
        self._prepared()
        for container in emptied:
            getattr(container, "cache_clear" if isinstance(container, CachedFunction) else "clear")()
        seed_all(self._watch.torch, 2)
        return [digest(self._original(one), self._watch.torch) for one in indices]

    def _alone(self, index: Any) -> tuple[str, bool]:
        """Return a sample, and whether its fetch changed state; runs in a child."""
        before = self._prepared()
        seed_all(self._watch.torch, 2)
        sample = digest(self._original(index), self._watch.torch)
        return sample, bool(self._snapshot().moved_since(before))

    def _later(self, index: Any, others: Sequence[Any]) -> tuple[str, bool]:
        """Return the same sample after others and itself, and whether its fetch changes state again.

        Runs in a child. State that each fetch overwrites, such as a transform's last draw, does not change
        then.
        """
        self._prepared()
        seed_all(self._watch.torch, 1)
        until_s = time.monotonic() + _HISTORY_S
        for number in range(_HISTORY):
            if number >= len(others) and time.monotonic() > until_s:
                break
            self._original(others[number % len(others)] if others else index)
        self._original(index)
        seed_all(self._watch.torch, 2)
        sample = digest(self._original(index), self._watch.torch)
        before = self._snapshot()
        seed_all(self._watch.torch, 2)
        self._original(index)
        return sample, bool(self._snapshot().moved_since(before))

    def _prepared(self) -> StateSnapshot:
        # Like a worker, as the parent's threads do not exist here.
        self._watch.torch.set_num_threads(1)
        return self._snapshot()


def _is_forked(loader: Any) -> bool:
    context: Any = loader.multiprocessing_context or multiprocessing
    return context.get_start_method() == "fork"


def begin_worker(torch: Any, dataset: Any, number: int, begin: Callable[[int], Any] | None) -> None:
    """Start as one of two workers; runs in a child."""
    workers, seed = torch.utils.data._utils.worker, 10 + number
    workers._worker_info = workers.WorkerInfo(id=number, num_workers=2, seed=seed, dataset=dataset)
    seed_all(torch, seed)
    if begin is not None:
        begin(number)


def _nothing() -> None:
    return


def _is_made(piece: Piece, before: StateSnapshot) -> bool:
    """Return whether a piece replaced None, or is a new attribute."""
    old = before.pieces[piece.node.path]
    return old.token == repr(None) or (piece.kind == OBJECT == old.kind and piece.token[0] == old.token[0])


def _positions(known: Any) -> dict[int, tuple[int, int]]:
    """Return the files read through these descriptors, with their positions."""
    found: dict[int, tuple[int, int]] = {}
    for descriptor in known:
        with contextlib.suppress(OSError):
            if is_read_from(descriptor):
                found[descriptor] = (os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
    return found


def _file_name(descriptor: int) -> str:
    try:
        return f"file ({os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))})"
    except OSError:
        return "file"
