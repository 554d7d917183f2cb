"""DataLoader worker processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import (
    LOADER,
    as_count,
    dealt,
    dealt_otherwise,
    flag_variants,
    joined,
    loader_of,
    no_loader,
    per_rank,
    sentence,
)
from autotune.knobs.frameworks import ARGUMENTS, fits_by_keras
from autotune.knobs.traits import Prior
from autotune.model.change import Constant, Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.traits import ActsAt, MemoryUse
    from autotune.model.config import Value
    from autotune.model.facts import Facts, FetchState, LoaderFacts

_LADDER: Final = (0, 1, 2, 4, 8, 16, 32)
_WORKER_BYTES: Final = 128 << 20
"""Memory that one more worker may add, rounded up: 17 to 82 MB of proportional set size were measured."""
_MORE_STEPS_FRAC: Final = 0.01
"""Steps that a pass may have more or fewer: about what the last batch of a pass is of a hundred."""
_WAITS_BELOW_FRAC: Final = 0.5
_POOLS: Final = frozenset({"ThreadPoolExecutor", "ProcessPoolExecutor", "ThreadPool", "Pool"})
"""Classes of `LoaderFacts.shared_handle` that have threads of the training process."""
_NEEDS_WORKERS: Final = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


class NumWorkers(Knob):
    """DataLoader worker processes: they hide input latency, and use CPU and memory.

    Not limited to the number of cores where the loader waits for storage or a network. Measured with a 2 ms
    read per sample: 16 workers on 2 cores gave 5.4 times the samples of none.

    Effect: EXACT; NUMERIC where the dataset draws random numbers (each worker has another seed), where
    workers share a stream, and with Keras. NUMERIC too where a sampler of the script draws its order per
    iterator. TRAINING where a fetch changes the dataset or the collate function: each worker has a copy of
    it. Unit: processes. Source: torch.utils.data docs, "Multi-process data loading".
    """

    name: ClassVar[str] = "num_workers"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "processes"
    family: ClassVar[str] = "loader"
    withdraws_with: ClassVar[Sequence[str]] = ("persistent_workers", "prefetch_factor")
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "dataloader_num_workers"),
        flag_variants(
            "num-workers",
            "workers",
            "dataloader-num-workers",
            "n-workers",
            "nworkers",
            "num-data-workers",
            "data-workers",
        ),
        Constant(("num_workers", "n_workers", "workers", "num_data_workers", "dataloader_num_workers")),
        Keyword(LOADER, "num_workers"),
    )
    rank: ClassVar[int] = 20
    prior: ClassVar[Prior] = Prior(spread=0.2, is_of_loading=True)
    acts_at: ClassVar[ActsAt] = "construction"
    memory: ClassVar[MemoryUse] = "monotone"
    feeds: ClassVar[bool] = True

    def own(self, facts: Facts) -> Value | None:
        return workers_of(None, facts)

    def domain(self, facts: Facts) -> Sequence[Value]:
        limit = worker_limit(facts)
        return joined((n for n in _LADDER if n <= limit and _keeps_steps(n, facts)), self.own(facts))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        per_device = facts.host.cpus // max(1, len(facts.host.devices))
        if wanted == "asis":
            return self.own(facts)
        if wanted in ("cores_per_gpu", "cores_per_gpu_max16"):
            return max(1, per_device if wanted == "cores_per_gpu" else min(16, per_device))
        count = as_count(wanted, self.own(facts), least=0)
        return count if count is None or count == self.own(facts) or _keeps_steps(count, facts) else None

    def refuse(self, facts: Facts) -> str | None:
        loader = loader_of(facts)
        if loader is None:
            return no_loader(facts)
        return refuse_workers(loader)

    def effect_for(self, facts: Facts) -> Effect:
        if dealt_otherwise(facts):
            return Effect.TRAINING
        return Effect.NUMERIC if self.changes_rng_streams(facts) else self.effect

    def raised(self, facts: Facts) -> str:
        loader = loader_of(facts)
        if other := dealt_otherwise(facts):
            return other
        if loader is None or not self.changes_rng_streams(facts):
            return ""
        if loader.random:
            return "Fetching a sample draws random numbers, and another worker would draw them."
        if loader.kind == "iterable":
            return "Workers split the stream, so the order of the samples changes."
        return "The order of the samples is drawn again when workers load them."

    def changes_rng_streams(self, facts: Facts) -> bool:
        loader = loader_of(facts)
        if loader is None:
            return False
        # Keras asks for one iterator more than it reads; workers draw the order of that one too.
        unread = loader.shuffles and fits_by_keras(facts)
        deals = loader.random or loader.fetch_state is not None
        return unread or deals or loader.eager_order or loader.kind == "iterable"

    def arguments(self, value: Value, spelling: Keyword) -> Mapping[str, Value | None]:
        if spelling.target != ARGUMENTS or value != 0:
            return super().arguments(value, spelling)
        # What only workers have is an error without any.
        return {
            spelling.name: value,
            "dataloader_prefetch_factor": None,
            "dataloader_persistent_workers": False,
        }

    def patch(self, value: Value, patches: Patches) -> None:
        patches.loader.override("num_workers", value)
        if value == 0:
            for keyword in _NEEDS_WORKERS:
                patches.loader.override(keyword, None)

    def withdraw(self, patches: Patches) -> bool:
        return patches.loader.give_back("num_workers")

    def seen(self, patches: Patches) -> Value | None:
        return patches.loader.observed("num_workers")


def refuse_workers(loader: LoaderFacts) -> str | None:
    """Return why a loader with workers would change the training, as a whole sentence, or None."""
    if loader.kind == "iterable" and not loader.shards:
        return "The iterable dataset is not split among workers: each worker would repeat all of it."
    if loader.cuda_tensors:
        return "The dataset holds tensors on an accelerator, which workers cannot share."
    if loader.num_workers:
        return None
    if loader.shares and loader.shares[0] != sum(loader.shares[1:]):
        return (
            f"The dataset yields {loader.shares[0]} samples in a pass, and {sum(loader.shares[1:])} where "
            "two workers share it out."
        )
    if loader.shared_handle in _POOLS:
        return (
            f"The dataset holds a running {loader.shared_handle}, whose threads a forked worker does not "
            "have: it would wait for them forever."
        )
    if loader.shared_handle:
        return (
            f"The dataset holds an open {loader.shared_handle}: workers would share its position and"
            " read each other's data."
        )
    if loader.changed == "inside":
        what = loader.changed_at or "the dataset"
        return f"The script changes {what} inside a pass, and workers have copies of their own."
    held = loader.fetch_state
    if held is not None and held.sure and not held.apart:
        return _two_orders(held) if held.by == "sampler" else dealt(held)
    return None


def _keeps_steps(count: int, facts: Facts) -> bool:
    """Return whether a pass over a stream keeps about its number of batches with so many workers.

    The last batch of each worker is the rest of its share.
    """
    loader = loader_of(facts)
    if loader is None or loader.kind != "iterable" or not loader.batch_size or count < 2:
        return True
    total = loader.shares[0] if loader.shares else loader.dataset_length
    if not total:
        return True
    batch = loader.batch_size
    shares = (
        loader.shares[1:]
        if len(loader.shares) == count + 1
        else [len(range(n, total, count)) for n in range(count)]
    )
    own, shared = (
        sum(n // batch if loader.drop_last else math.ceil(n / batch) for n in parts)
        for parts in ((total,), shares)
    )
    return abs(shared - own) <= _MORE_STEPS_FRAC * own


def _two_orders(held: FetchState) -> str:
    return f"{sentence(held.what)} for every order of samples, and a loader that starts workers requests two."


def worker_limit(facts: Facts) -> int:
    """Return the most workers of a process worth trying: by memory if the loader waits, else by cores."""
    by_memory = per_rank(facts.host.memory_bytes // 4 // _WORKER_BYTES, facts)
    loader = loader_of(facts)
    busy = None if loader is None else loader.fetch_cpu_frac
    if busy is not None and busy < _WAITS_BELOW_FRAC:
        return min(32, by_memory)
    given = 0 if loader is None else 2 * loader.num_workers
    return min(max(per_rank(facts.host.cpus, facts) + 2, given), by_memory)


def workers_of(config_value: Value | None, facts: Facts) -> int | None:
    """Return the workers under a config, or else the script's own; None if unknown."""
    value = facts.value("num_workers") if config_value is None else config_value
    if value is None and (loader := loader_of(facts)) is not None:
        return loader.num_workers
    return int(value) if isinstance(value, int) else None
