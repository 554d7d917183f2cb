"""Detection, under `apply`, of changes by the script to state that live workers have a copy of.

A search observes the first passes; a curriculum, or a last epoch without augmentation, comes later. State
read by a fetch is compared at the start and end of a pass. Within a pass, comparisons are spaced so that
their cost is below one thousandth.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.records.fetch_state import FetchReads

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.records.fetch_state import Key
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_EACH_NS: Final = 1_000_000_000
_SHARE: Final = 1000
"""Within a pass, comparisons are `_EACH_NS` apart, or this many times the duration of the last one."""
_ATTRIBUTE: Final = "_autotune_workers"


class _Watched:
    """One loader with workers."""

    def __init__(self, loader: Any) -> None:
        self.state = FetchReads(loader.dataset, loader.collate_fn, loader.worker_init_fn)
        self.started = self.state.snapshot()
        """State read by a fetch at the start of the workers."""
        self.due_ns = time.perf_counter_ns() + _EACH_NS

    def changed(self) -> Key | None:
        """Return the state that differs from that at the start of the workers."""
        begun_ns = time.perf_counter_ns()
        key = self.state.changed(self.started, self.state.snapshot())
        now_ns = time.perf_counter_ns()
        self.due_ns = now_ns + max(_EACH_NS, _SHARE * (now_ns - begun_ns))
        return key


class WorkerWatch:
    """Compares state, and reports changes.

    Args:
        state: State of the process.
        withdraw: Called with the contradicted knob and the reason.
        has_own: Whether the script builds a loader with workers itself, which is not observed.
        refused: Returns why a loader may have no workers, as determined in a search; None if it may.
    """

    def __init__(
        self,
        state: RuntimeState,
        withdraw: Callable[[str, str], None],
        has_own: Callable[[Any], bool],
        refused: Callable[[Any], str | None],
    ) -> None:
        self._has_own = has_own
        self._refused = refused
        self._tried: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        """Loaders tested before their first pass."""
        self._state = state
        self._withdraw = withdraw
        self._done = False

    def install(self, torch: Any, undo: Undo) -> None:
        """Install below the hooks of the loader, which are removed later."""
        cls = torch.utils.data.DataLoader
        base = sys.modules[cls.__module__]._BaseDataLoaderIter
        begin, advance = cls.__iter__, base.__next__
        clock = time.perf_counter_ns

        @functools.wraps(begin)
        def iter_(this: Any) -> Any:
            watched = self._guarded(this)
            iterator = begin(this)
            if watched is not None and hasattr(iterator, "_workers"):
                iterator.__dict__[_ATTRIBUTE] = watched
            return iterator

        @functools.wraps(advance)
        def next_(this: Any) -> Any:
            watched = this.__dict__.get(_ATTRIBUTE)
            if watched is None:
                return advance(this)
            try:
                batch = advance(this)
            except StopIteration:
                self._compare(watched)
                raise
            if clock() > watched.due_ns:
                self._compare(watched)
            return batch

        undo.assign(cls, "__iter__", iter_)
        undo.assign(base, "__next__", next_)

    def _guarded(self, loader: Any) -> _Watched | None:
        try:
            if self._done or not loader.num_workers or not self._state.here() or self._has_own(loader):
                return None
            if loader not in self._tried:
                self._tried[loader] = True
                reason = self._refused(loader)
                if reason:
                    self._done = True
                    self._withdraw("num_workers", reason)
                    return None
            return self._begins(loader)
        except Exception as error:
            self._state.faults.note("worker_watch", error)
            return None

    def _begins(self, loader: Any) -> _Watched:
        """Prepare the start of a pass; workers started for it get the current state."""
        watched: _Watched | None = loader.__dict__.get(_ATTRIBUTE)
        if watched is not None and loader.persistent_workers and loader.__dict__.get("_iterator") is not None:
            key = watched.changed()
            if key is None:
                return watched
            self._withdraw(
                "persistent_workers",
                f"the script changed {watched.state.text(key)} between two passes, and workers that outlive "
                "a pass keep their own",
            )
        # New for each start of workers, so that no replaced object is referenced or compared.
        watched = _Watched(loader)
        if loader.persistent_workers:
            loader.__dict__[_ATTRIBUTE] = watched
        else:
            loader.__dict__.pop(_ATTRIBUTE, None)
        return watched

    def _compare(self, watched: _Watched) -> None:
        """Compare the current state with that of live workers, within a pass or at its end."""
        if self._done or not self._state.here():
            return
        try:
            key = watched.changed()
            if key is not None:
                self._done = True
                what = watched.state.text(key)
                self._withdraw(
                    "num_workers",
                    f"the script changed {what} inside a pass, and workers have copies of their own; "
                    "the next pass has none",
                )
        except Exception as error:
            self._done = True
            self._state.faults.note("worker_watch", error)
