"""Choice of the cluster node on which each trial of a search runs.

Trials are comparable on equal machines only, so a search has one node: its first. Pairs run nowhere else.
Screening may use further nodes of the same hardware, each after a run of the unchanged script that shows the
same speed there. Pure; `autotune.driver.backends.ray_tune` reads the cluster.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOLERANCE = 0.05
"""Largest relative difference in the throughput of the unchanged script between two nodes of one search."""


LOSS_S = 20.0
"""Time after a lost trial in which its node gets no other. Ray lists a dead node as alive until five checks
of its health have failed, one every 3 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One living node that can hold a trial.

    Args:
        id: Ray's id; a node that returns has another one.
        name: For people: its address.
        hardware: Accelerators, CPUs and memory in words; equal for equal machines.
        slots: Trials that it can run at a time.
        is_own: Whether the driver runs there.
    """

    id: str
    name: str
    hardware: str
    slots: int = 1
    is_own: bool = False


@dataclass(slots=True)
class NodePlacement:
    """Nodes of one search.

    Args:
        nodes: Returns the living nodes that can hold a trial.
        limit: Largest number of concurrent trials; 0 for as many as fit.
        now_s: Monotonic clock.
    """

    nodes: Callable[[], Sequence[ClusterNode]]
    limit: int = 0
    now_s: Callable[[], float] = time.monotonic
    _home: ClusterNode | None = None
    _equal: dict[str, ClusterNode] = field(default_factory=dict[str, ClusterNode])
    _verified: set[str] = field(default_factory=set[str])
    _refused: set[str] = field(default_factory=set[str])
    _running: Counter[str] = field(default_factory=Counter[str])
    _lost_s: dict[str, float] = field(default_factory=dict[str, float])

    def refresh(self) -> str:
        """Read the cluster, and choose the first node where there is none.

        A first node that is lost is replaced by an equal one that has been verified.

        Returns:
            A sentence for people where that left nodes out or replaced the first one; else empty.
        """
        now_s = self.now_s()
        living = {n.id: n for n in self.nodes() if now_s - self._lost_s.get(n.id, -math.inf) >= LOSS_S}
        before = self._home
        if before is None:
            slots = Counter[str]()
            for node in living.values():
                slots[node.hardware] += node.slots
            most = self.limit or max(slots.values(), default=0)
            self._home = max(
                living.values(),
                key=lambda n: (min(most, slots[n.hardware]), n.is_own, n.slots, n.id),
                default=None,
            )
        elif before.id not in living:
            equal = [n for i, n in living.items() if n.hardware == before.hardware and i not in self._refused]
            self._home = max(equal, key=lambda n: (n.id in self._verified, n.slots, n.id), default=before)
        home = self._home
        if home is None:
            return ""
        self._verified.add(home.id)
        self._equal = {i: n for i, n in living.items() if n.hardware == home.hardware}
        if before is not None:
            return "" if home is before else f"{before.name} is lost; trials run on {home.name}"
        others = len(living) - len(self._equal)
        if not others:
            return ""
        unlike = "1 other node is" if others == 1 else f"{others} other nodes are"
        return f"trials run on {home.name} ({home.hardware}); {unlike} of other hardware and not used"

    @property
    def home(self) -> ClusterNode | None:
        """The node of pairs; None before the first `refresh`, and on a cluster without a fitting node."""
        return self._home

    @property
    def most(self) -> int:
        """Largest number of trials at a time, on all nodes together."""
        fit = max(1, sum(node.slots for node in self._equal.values()))
        return min(fit, self.limit) if self.limit else fit

    def room(self) -> ClusterNode | None:
        """Return a verified node that is free, the first one before others; None while all are in use."""
        if self.limit and self._running.total() >= self.limit:
            return None
        free = [node for node in self._usable() if self._running[node.id] < node.slots]
        if self._home in free:
            return self._home
        return min(free, key=lambda n: (self._running[n.id], n.id), default=None)

    def unverified(self) -> ClusterNode | None:
        """Return a node to verify, as all verified ones are in use; else None."""
        if self.room() is not None or (self.limit and self._running.total() >= self.limit):
            return None
        unknown = [n for i, n in self._equal.items() if i not in self._verified | self._refused]
        return min((n for n in unknown if not self._running[n.id]), key=lambda n: n.id, default=None)

    def begins(self, node: ClusterNode) -> None:
        """Count a trial that was placed there."""
        self._running[node.id] += 1

    def ends(self, node: ClusterNode) -> None:
        """Count the end of a trial there."""
        self._running[node.id] -= 1

    def loses(self, node: ClusterNode) -> None:
        """Place no trial there for a while, as one was lost with its process."""
        self._lost_s[node.id] = self.now_s()

    def judge(self, node: ClusterNode, throughput: float | None, own: float) -> str:
        """Use or refuse a node by its run of the unchanged script.

        Args:
            node: The further node.
            throughput: Of the unchanged script there; None if it failed.
            own: Of the unchanged script on the first node, in the same unit.

        Returns:
            A sentence for people on a node that is refused; else empty.
        """
        if throughput is not None and abs(math.log(throughput / own)) <= math.log1p(TOLERANCE):
            self._verified.add(node.id)
            return ""
        self._refused.add(node.id)
        if throughput is None:
            return f"{node.name} is not used: your script fails there"
        home = "the first node" if self._home is None else self._home.name
        return f"{node.name} is not used: your script runs {throughput / own:.2f} times as fast as on {home}"

    def _usable(self) -> list[ClusterNode]:
        """Return the living nodes that are verified."""
        return [node for i, node in self._equal.items() if i in self._verified]
