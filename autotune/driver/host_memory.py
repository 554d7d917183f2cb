"""What trials may take of this machine's memory, so that the machine itself never runs short of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.inspection.host import host_facts

if TYPE_CHECKING:
    from autotune.core.study import StudySpec

HOST_MEMORY_SHARE = 0.9
"""Of the memory that is free when the search begins; below Ray's own threshold of 0.95."""


def free_memory() -> int:
    """Bytes that trials may take together on this machine as it is now."""
    return int(HOST_MEMORY_SHARE * _available_bytes(host_facts().memory_bytes))


def trial_limit(spec: StudySpec, free_bytes: int) -> int:
    """Bytes that a trial's process tree may take: its share where several run at once.

    The user's own bound holds too where training is on the CPU.

    Args:
        spec: Of the search.
        free_bytes: From `free_memory`.
    """
    share = free_bytes // slots(spec)
    if spec.max_memory_bytes is None or host_facts().has_cuda:
        return share
    return min(share, spec.max_memory_bytes)


def slots(spec: StudySpec) -> int:
    """How many trials may run on this machine at once; of a cluster nobody here knows who gets where."""
    if spec.driver != "ray" or spec.ray_address:
        return 1
    return spec.concurrency or max(1, len(host_facts().devices))


def _available_bytes(total: int) -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return total
    for line in lines:
        if line.startswith("MemAvailable:"):
            return min(total, int(line.split()[1]) * 1024)
    return total
