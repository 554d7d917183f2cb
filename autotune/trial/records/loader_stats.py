"""What is known of one DataLoader object, and of a batch of it. Standard library only."""

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
    """A batch that a backward pass is over, as a part of an optimizer step."""

    samples: int
    full: int
    """Samples of a batch that is no rest."""
    left: int | None
    """Batches that follow it in this pass over the loader; None where that is not known."""
    drop_last: bool


class LoaderStats:
    """One DataLoader object."""

    def __init__(self, loader: Any, sites: list[str]) -> None:
        self.loader = weakref.ref(loader)
        self.sites = sites
        self.chain = "<".join(sites)
        """Two user frames, for factories that build several loaders at one line."""
        self.confirmed = False
        self.expected = False
        """Built where one that trained was built before: a loader made anew for every epoch."""
        self.own: dict[str, Any] = {}
        """Keywords that the script builds it with, without what was changed."""
        self.is_other = False
        """Its batches are of another size than those of the loaders that a search has seen."""
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
        self.shares: tuple[int, ...] = ()
        """Of a stream: samples of a pass, and of each of two workers."""
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
        self.eager_order = False
        """What gives the order of its last iterator is no generator, and not torch's."""
        self.method = ""
        """How the workers of its last iterator were started."""
        self.in_order: bool | None = None
        self.left: int | None = None
        """Batches that are left in this pass over it; None where its length is not known."""
        self.ahead = 0
        """Batches of this pass that no backward pass was over yet."""
        self.order: Any = None
        """State of its sampler after the first batch of a pass."""
        self.settings: dict[tuple[int, str], Any] = {}
        """What a fetch reads, after the last one that was looked at."""
        self.settings_at = 0
        """How many fetches there were then."""
        self.usual: int | None = None
        """Samples of a whole batch, 0 for any number, where fetches have no more to tell than that there was
        one; else None."""
        self.place: Any = WHOLE
        self.dimension = 0
        """Where a batch of it shows how many samples it has: in the tensor at this place of it, `WHOLE` for
        a batch that is one itself."""
        self._fetch_state: weakref.ref[FetchReads] | None = None
        self.changed = self.changed_at = ""
        """`BETWEEN` or `INSIDE`: when the script changes what a fetch reads; and what and where."""

    def read_by_fetch(self, iterator: Any) -> FetchReads:
        """What a fetch reads, by the objects of the first call."""
        found = None if self._fetch_state is None else self._fetch_state()
        if found is None:
            names = ("_dataset", "_collate_fn", "_worker_init_fn")
            found = FetchReads(*(attribute_of(iterator, name) for name in names))
            self._fetch_state = weakref.ref(found)
        # It holds the data set, which must not outlive its other owners.
        for owner in (iterator, self.loader()):
            if owner is not None:
                owner.__dict__["_autotune_reads"] = found
        return found

    def note_change(self, when: str, text: str) -> None:
        """The script changes what a fetch reads; inside of a pass is the stronger one."""
        if self.changed != INSIDE and (when == INSIDE or not self.changed):
            self.changed, self.changed_at = when, text

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

    def count_workers(self) -> int:
        """Look how many are alive for its last iterator, and tell the most that were."""
        iterator = self.iterator() if self.iterator is not None else None
        workers = getattr(iterator, "_workers", None)
        if workers is not None and not getattr(iterator, "_shutdown", False):
            self.workers = max(self.workers, sum(1 for worker in workers if worker.is_alive()))
        return self.workers
