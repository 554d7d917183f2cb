"""What trials may take of a machine's memory, so that the machine itself never runs short of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.inspection.host import host_facts, memory_limit_bytes, memory_room_bytes

if TYPE_CHECKING:
    from autotune.model.study import StudySpec

HOST_MEMORY_SHARE = 0.9
"""Of the memory that is free; below Ray's own threshold of 0.95."""


def free_memory() -> int:
    """Bytes that trials may take together on the machine of this process as it is now."""
    return int(HOST_MEMORY_SHARE * memory_room_bytes())


def free_for(spec: StudySpec) -> int:
    """The same for the trials of a search; 0 where they run on machines that are not this one."""
    return 0 if joins_cluster(spec) else free_memory()


def trial_limit(spec: StudySpec, free_bytes: int) -> int:
    """Bytes that a trial's process tree may take: its share where several run at once; 0 for no limit.

    The user's own bound holds too where training is on the CPU.

    Args:
        spec: Of the search.
        free_bytes: From `free_for`.
    """
    share = free_bytes // slots(spec)
    if spec.max_memory_bytes is None or host_facts().has_cuda:
        return share
    return min(share or spec.max_memory_bytes, spec.max_memory_bytes)


def node_limit(limit_bytes: int, trials: int) -> int:
    """The same on the node of a cluster that runs this process.

    Args:
        limit_bytes: What the search allows; 0 for no limit.
        trials: How many may run there at once.
    """
    share = int(HOST_MEMORY_SHARE * memory_limit_bytes()) // max(1, trials)
    return min(limit_bytes or share, share)


def slots(spec: StudySpec) -> int:
    """How many trials may run on this machine at once; of a cluster each node counts its own."""
    if spec.driver != "ray" or joins_cluster(spec):
        return 1
    return spec.concurrency or max(1, len(host_facts().devices))


def joins_cluster(spec: StudySpec) -> bool:
    """Trials run wherever a cluster puts them."""
    return spec.driver == "ray" and bool(spec.ray_address)
