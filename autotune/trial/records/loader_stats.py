"""Statistics of one DataLoader object and of a batch of it. Standard library only."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.trial.records.fetch_state import FetchReads
from autotune.trial.records.objects import attribute_of

if TYPE_CHECKING:
    from autotune.model.facts import LoaderFacts
    from autotune.trial.records.batch_structure import How

_RECENT = 16
WHOLE: Final = object()
BETWEEN: Final = "between"
INSIDE: Final = "inside"


class BatchPart(NamedTuple):
    """A batch consumed by a backward pass, as part of an optimizer step."""

    samples: int
    full: int
    """Samples of a full batch."""
    left: int | None
    """Number of batches after it in this pass over the loader; None if unknown."""
    drop_last: bool


class LoaderStats:
    """Statistics of one DataLoader object."""

    def __init__(self, loader: Any, sites: list[str]) -> None:
        self.loader = weakref.ref(loader)
        self.sites = sites
        self.chain = "<".join(sites)
        """Two user frames, to distinguish several loaders built by a factory at one line."""
        self.confirmed = False
        self.expected = False
        """Built where a loader used for training was built before: one per epoch."""
        self.own: dict[str, Any] = {}
        """The script's own keyword arguments, without changes."""
        self.is_other = False
        """The batch size differs from those of the loaders in the search."""
        self.kept: LoaderFacts | None = None
        """Facts at its first iteration; loops often hold only the iterator."""
        self.since = 0
        """Samples, batches and time fetched for training since the last backward pass."""
        self.batches = 0
        self.wait_ns = 0
        self.together = 0
        """Number of consecutive passes in which it was fetched together with the last loader."""
        self.together_at = 0
        """Number of the last pass checked for that."""
        self.weight = 0.0
        """Samples used for training, with exponential decay."""
        self.used_at = 0
        """Number of the last backward pass over one of its batches."""
        self.ratio = 1.0
        """Counted samples per sample of the loader."""
        self.full = 0
        """Samples of a full batch according to the loader; 0 if unknown."""
        self.odd = 0
        """Number of batches of another size whose structure was examined again."""
        self.takes_one = False
        """Batches have one sample, passed through unchanged by the script's collate function."""
        self.shared_handle = ""
        self.shares: tuple[int, ...] = ()
        """For a stream: samples of a pass, and of each of two workers."""
        self.recent: deque[int] = deque(maxlen=_RECENT)
        self.pins = False
        """Batches are in pinned memory."""
        self.fetches = 0
        self.how: How | None = None
        self.iterator: weakref.ref[Any] | None = None
        self.workers = 0
        """Largest number of live workers of its last iterator; finished ones end earlier."""
        self.fetch_ns = 0
        self.timed_ns = 0
        self.fetch_cpu_ns = 0
        """CPU time of `timed_ns` of its fetches."""
        self.in_process = 0
        self.probes = 0
        self.random = False
        self.eager_order = False
        """The sampler of its last iterator is neither a generator nor torch's."""
        self.method = ""
        """Start method of the workers of its last iterator."""
        self.in_order: bool | None = None
        self.left: int | None = None
        """Batches left in this pass over it; None if its length is unknown."""
        self.ahead = 0
        """Batches of this pass not yet consumed by a backward pass."""
        self.order: Any = None
        """State of its sampler after the first batch of a pass."""
        self.settings: dict[tuple[int, str], Any] = {}
        """State read by a fetch, after the last fetch examined."""
        self.settings_at = 0
        """Number of fetches at that time."""
        self.usual: int | None = None
        """Samples of a full batch (0: any number) if fetches are only counted; else None."""
        self.place: Any = WHOLE
        self.dimension = 0
        """Index of the tensor in a batch that shows the number of samples; `WHOLE`: the batch is a tensor."""
        self._fetch_state: weakref.ref[FetchReads] | None = None
        self.changed = self.changed_at = ""
        """`BETWEEN` or `INSIDE`: when the script changes state read by a fetch; the state and the place."""

    def read_by_fetch(self, iterator: Any) -> FetchReads:
        """Return the state read by a fetch, from the objects of the first call."""
        found = None if self._fetch_state is None else self._fetch_state()
        if found is None:
            names = ("_dataset", "_collate_fn", "_worker_init_fn")
            found = FetchReads(*(attribute_of(iterator, name) for name in names))
            self._fetch_state = weakref.ref(found)
        # It references the dataset, which must not outlive its other owners.
        for owner in (iterator, self.loader()):
            if owner is not None:
                owner.__dict__["_autotune_reads"] = found
        return found

    def note_change(self, when: str, text: str) -> None:
        """Record that the script changes state read by a fetch; `INSIDE` overrides `BETWEEN`."""
        if self.changed != INSIDE and (when == INSIDE or not self.changed):
            self.changed, self.changed_at = when, text

    @property
    def alive(self) -> bool:
        """Whether it is referenced or iterated over."""
        return self.loader() is not None or (self.iterator is not None and self.iterator() is not None)

    @property
    def described(self) -> Any:
        """Return the object with its settings: the loader or its facts; None before its use."""
        loader = self.loader()
        return self.kept if loader is None else loader  # a loader may be false, or raise, by its length

    @property
    def in_use(self) -> bool:
        """Whether it is alive, or has batches that were not counted yet."""
        return self.alive or self.batches > 0

    @property
    def site(self) -> str:
        """Innermost user frame that built it."""
        return self.sites[0] if self.sites else ""

    def count_workers(self) -> int:
        """Count the live workers of its last iterator; return the largest count so far."""
        iterator = self.iterator() if self.iterator is not None else None
        workers = getattr(iterator, "_workers", None)
        if workers is not None and not getattr(iterator, "_shutdown", False):
            self.workers = max(self.workers, sum(1 for worker in workers if worker.is_alive()))
        return self.workers
