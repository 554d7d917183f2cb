"""CPUs of each process of a training: a block of its own of those that the first of them may use."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

AFFINITY: Final = "cpu_affinity"
_CPUS: Final = Path("/sys/devices/system/cpu")


class Affinity:
    """Binds this process to its block of CPUs, before PyTorch starts its threads.

    Args:
        state: Shared state; `RuntimeState.spawned_as` of a rank that the script itself started.
        undo: Restores the CPUs that the process had.
    """

    def __init__(self, state: RuntimeState, undo: Undo) -> None:
        self._state, self._undo = state, undo
        self._before: tuple[int, ...] = ()

    def set(self, mode: str) -> None:
        """Bind to ``block``; ``none`` leaves the process alone."""
        block = self._own_block(_allowed())
        if mode == "none" or not block:
            return
        self._before = _allowed()
        self._undo.call(partial(os.sched_setaffinity, 0), block, undo=self._before)

    def observed(self) -> str | None:
        """Return ``block`` where the process may use the CPUs of its block alone."""
        if not self._before:
            return "none"
        return "block" if _allowed() == tuple(sorted(self._own_block(self._before))) else "none"

    def _own_block(self, cpus: tuple[int, ...]) -> tuple[int, ...]:
        rank, count = self._state.spawned_as or _by_launcher()
        found = blocks(((*_place(cpu), cpu) for cpu in cpus), count) if count else []
        return found[rank] if rank < len(found) else ()


def blocks(cpus: Iterable[tuple[int, int, int]], count: int) -> list[tuple[int, ...]]:
    """Divide CPUs into blocks of neighbours.

    Args:
        cpus: NUMA node, core and number of each CPU.
        count: Number of processes.

    Returns:
        A block for each process; none where there are fewer CPUs than processes.
    """
    ordered = [number for _, _, number in sorted(cpus)]
    size = len(ordered) // count
    return [tuple(ordered[at * size : (at + 1) * size]) for at in range(count)] if size else []


def _by_launcher() -> tuple[int, int]:
    """Return this process's number on its machine and the number of processes; (0, 0) without a launcher."""
    rank, count = (os.environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return (int(rank), int(count)) if rank.isdecimal() and count.isdecimal() else (0, 0)


def _place(cpu: int) -> tuple[int, int]:
    """Return the NUMA node and the core of a CPU; 0 where the kernel does not report it."""
    folder = _CPUS / f"cpu{cpu}"
    node = next((int(p.name[4:]) for p in folder.glob("node[0-9]*")), 0)
    try:
        core = int((folder / "topology" / "core_id").read_text())
    except (OSError, ValueError):
        core = cpu
    return node, core


def _allowed() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
