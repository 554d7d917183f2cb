"""Memory limits of trials that keep the machine from running out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.inspection.host import host_facts, memory_limit_bytes, memory_room_bytes

if TYPE_CHECKING:
    from autotune.model.study import StudySpec

HOST_MEMORY_SHARE = 0.9
"""Share of the free memory; below Ray's own threshold of 0.95."""


def free_memory() -> int:
    """Return the bytes that all trials together may use on this machine now."""
    return int(HOST_MEMORY_SHARE * memory_room_bytes())


def free_for(spec: StudySpec) -> int:
    """Return the same for the trials of a search; 0 if they run on other machines."""
    return 0 if joins_cluster(spec) else free_memory()


def trial_limit(spec: StudySpec, free_bytes: int) -> int:
    """Return the memory limit of a trial's process tree, its share under concurrency; 0 for none.

    The user's own limit also applies if training is on the CPU.

    Args:
        spec: Specification of the search.
        free_bytes: From `free_for`.
    """
    share = free_bytes // slots(spec)
    if spec.max_memory_bytes is None or host_facts().has_cuda:
        return share
    return min(share or spec.max_memory_bytes, spec.max_memory_bytes)


def node_limit(limit_bytes: int, trials: int) -> int:
    """Return the same for the cluster node of this process.

    Args:
        limit_bytes: Limit of the search; 0 for none.
        trials: Number of concurrent trials there.
    """
    share = int(HOST_MEMORY_SHARE * memory_limit_bytes()) // max(1, trials)
    return min(limit_bytes or share, share)


def slots(spec: StudySpec) -> int:
    """Return the number of concurrent trials on this machine; on a cluster each node counts its own."""
    if spec.driver != "ray" or joins_cluster(spec):
        return 1
    return spec.concurrency or max(1, len(host_facts().devices))


def joins_cluster(spec: StudySpec) -> bool:
    """Return whether a cluster schedules the trials."""
    return spec.driver == "ray" and bool(spec.ray_address)
