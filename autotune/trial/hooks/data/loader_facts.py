"""Facts about a DataLoader: its arguments, and properties of its dataset."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import inspect
import multiprocessing
import sys
from typing import Any

from autotune.model.facts import LoaderFacts
from autotune.trial.hooks.data.datasets import holds_cuda, looks_random, shares_out, source_of
from autotune.trial.records.objects import attribute_of, length_of


def described(loader: Any, torch: Any) -> LoaderFacts:
    """Return the facts about a loader as it was built, without observations of its fetches."""
    dataset = getattr(loader, "dataset", None)
    iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    sampler = getattr(loader, "batch_sampler", None)
    custom = sampler is not None and type(sampler) is not torch.utils.data.BatchSampler
    batch_size = getattr(loader, "batch_size", None)
    if batch_size is None and not custom:
        batch_size = getattr(sampler, "batch_size", None)
    source = source_of(type(dataset))
    counted = getattr(loader, "_IterableDataset_len_called", None)
    length = length_of(loader, None)
    if iterable:
        # Torch warns if a dataset yields more samples than its length.
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
        shards=iterable and shares_out(dataset, source),
        length=length,
        dataset_length=length_of(dataset, None),
        cuda_tensors=holds_cuda(dataset, torch),
        random=looks_random(dataset, source),
        shuffles=not iterable and _draws_order(loader, torch),
        mp_context=_configured_method(loader),
        is_split=not iterable and _is_split(loader, torch),
    )


def _is_split(loader: Any, torch: Any) -> bool:
    """Return whether `DistributedSampler` deals samples to the processes in turn, or Accelerate batches.

    Their parts then form the same effective batch, whatever their number is.
    """
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", getattr(loader, "sampler", None))
    return isinstance(sampler, torch.utils.data.DistributedSampler) or (
        type(batches).__name__ == "BatchSamplerShard" and not getattr(batches, "split_batches", True)
    )


def batch_size_of(loader: Any, torch: Any) -> int | None:
    """Return the loader's number of samples in a full batch; None if it has none."""
    size = getattr(loader, "batch_size", None)
    sampler = getattr(loader, "batch_sampler", None)
    if size is None and type(sampler) is torch.utils.data.BatchSampler:
        size = getattr(sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def ratio_of(found: int, loader: Any, torch: Any) -> float:
    """Return the counted samples in the first batch per sample of the loader: 2 for two views of each."""
    size = batch_size_of(loader, torch)
    if not size or not found or found == size:
        return 1.0
    whole = (length_of(getattr(loader, "batch_sampler", None), 0) or 0) > 1
    return found / size if whole or found % size == 0 else 1.0


def _draws_order(loader: Any, torch: Any) -> bool:
    """Return whether samples are reshuffled in every epoch, as far as known."""
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches) is not torch.utils.data.BatchSampler:
        return True
    return not isinstance(getattr(batches, "sampler", sampler), torch.utils.data.SequentialSampler)


def settles_at_once(iterator: Any) -> bool:
    """Return whether code of the script computed the order of this iterator before its first batch.

    A generator runs no code before the first batch, so that calling it twice is harmless.
    """
    order = getattr(iterator, "_sampler_iter", None)
    return order is not None and is_settled(getattr(iterator, "_index_sampler", None), order)


def is_settled(sampler: Any, order: Any) -> bool:
    """Return whether a sampler of the script computed its whole order when its iterator was created."""
    if inspect.isgenerator(order):
        return False
    return str(attribute_of(type(sampler), "__module__")).partition(".")[0] not in ("torch", "builtins")


def start_method(iterator: Any) -> str:
    """Return the start method of an iterator's workers; empty without workers."""
    workers = getattr(iterator, "_workers", None)
    popen = getattr(workers[0], "_popen", None) if workers else None
    return str(getattr(popen, "method", ""))


def _configured_method(loader: Any) -> str:
    """Return the start method that a loader would use, without fixing it for the whole process."""
    context = getattr(loader, "multiprocessing_context", None)
    name = getattr(context, "_name", None) or multiprocessing.get_start_method(allow_none=True)
    return name or ("forkserver" if sys.version_info >= (3, 14) else "fork")


def collates_itself(loader: Any) -> bool:
    """Return whether a collate function other than torch's makes the loader's batches."""
    function = attribute_of(loader, "collate_fn")
    return not str(attribute_of(function, "__module__")).startswith("torch.")
