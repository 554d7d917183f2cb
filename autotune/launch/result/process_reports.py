"""Reports of a trial process, accumulated."""

from __future__ import annotations

import itertools
import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.protocol.events import (
    Applied,
    Broke,
    Closed,
    Compiling,
    Done,
    Hello,
    Probed,
    ReadBack,
    StepRow,
    Steps,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.model.facts import RunFacts
    from autotune.protocol.events import Event
    from autotune.protocol.rank_log import RankLog


_NEIGHBOUR_LOST = re.compile(
    r"onnection (?:closed|reset|refused)|[Bb]roken pipe|recvValue failed|Dist(?:Network|Store)Error"
    r"|remote process exited|ncclRemoteError|[Tt]imed out (?:after )?waiting|wait timeout"
    r"|collective operation timeout"
)
"""Messages of gloo, NCCL and the store for a lost peer, as of torch 2.13."""


@dataclass
class ProcessReports:
    """All reports of a trial process so far; `take` adds one event."""

    hello: Hello | None = None
    rows: list[StepRow] = field(default_factory=list[StepRow])
    compiles: list[Compiling] = field(default_factory=list[Compiling])
    facts: RunFacts | None = None
    closed: dict[int, Closed] = field(default_factory=dict[int, Closed])
    probed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Results of probes after the segment; empty without any."""
    done: Done | None = None
    broke: Broke | None = None
    applied: set[int] = field(default_factory=set[int])
    """Ranks other than 0 that have read back the requested settings."""
    ranks: tuple[RankLog, ...] = ()
    """Logs of all ranks of a distributed trial, read after its end."""
    beating: bool = False
    """The last event was no step: the script evaluates or writes a checkpoint."""

    def take(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, Steps):
            self.rows.extend(event.rows)
            self.beating = not event.rows
        elif isinstance(event, Closed):
            self.closed[event.trial] = event
        elif isinstance(event, Probed):
            self.probed = event.figures
        elif isinstance(event, Compiling):
            self.compiles.append(event)
        elif isinstance(event, ReadBack):
            self.facts = event.facts
        elif isinstance(event, Hello):
            self.hello = event
        elif isinstance(event, Applied):
            self.applied.add(event.rank)
        elif isinstance(event, Done):
            self.done = event
        elif self.broke is None or (_lost_neighbour(self.broke) and not _lost_neighbour(event)):
            # If one rank fails, the others lose their peer and may report that first.
            self.broke = event if self.done is None or not event.rank else self.broke

    @property
    def steps(self) -> int:
        """Number of optimizer steps reported."""
        reported = [e.steps for e in (self.done, self.broke) if e is not None]
        return max([len(self.rows), *reported])

    @property
    def compiling(self) -> bool:
        """Whether a compile is in progress."""
        return sum(1 if c.began else -1 for c in self.compiles) > 0

    def median_step_s(self) -> float:
        """Return the median period of the last steps; 0 with fewer than two."""
        recent = self.rows[-101:]
        periods = [b.t_ns - a.t_ns for a, b in itertools.pairwise(recent)]
        return statistics.median(periods) / 1e9 if periods else 0.0

    def compile_s_before(self, t_ns: int) -> float:
        """Return the seconds of compiling before a moment; overlapping compiles count once."""
        total, depth, began = 0, 0, 0
        for event in self.compiles:
            t = min(event.t_ns, t_ns)
            if event.began:
                began = t if depth == 0 else began
                depth += 1
            elif depth:
                depth -= 1
                total += t - began if depth == 0 else 0
        return (total + (t_ns - min(began, t_ns) if depth else 0)) / 1e9


def _lost_neighbour(broke: Broke) -> bool:
    """Return whether the process failed because it lost a peer."""
    return lost_neighbour(f"{broke.error} {broke.message} {broke.tail}")


def lost_neighbour(text: str) -> bool:
    """Return whether a message is that of a process that lost a peer."""
    return _NEIGHBOUR_LOST.search(text) is not None
