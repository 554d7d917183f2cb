"""Many configs in one running process: what a visit asks for and what it showed. Standard library only.

A visit is an ordinary trial that goes on. Once its own config is measured, the process switches what can
be switched between two steps, measures that for some tens of steps (a segment), and returns to its own
config every few segments (an anchor). A segment counts as a ratio to the anchors beside it, so what the
process as a whole is faster or slower by cancels out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from autotune.model.config import Config
from autotune.model.measurement import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY = 2
"""Segments between two anchors."""

GRACE_S = 5.0
"""A step that has begun when a visit's time is over may take this much longer."""

DRIFT = 0.01
"""In ln rate: how far a process may have drifted since its last anchor, where none follows."""

_NORMAL = 1.96


class Source(Enum):
    """Whether a figure comes from a process of its own."""

    FRESH = "fresh"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What a process goes on with once its own config is measured.

    Args:
        configs: One segment each, in this order; they differ from the process's own config by what can be
            switched in it.
        window_s: Shortest window of a segment; the longest is twice as long.
        limit_s: Time for all of it, anchors and switches included.
    """

    configs: tuple[Config, ...]
    window_s: float
    limit_s: float

    @property
    def deadline_s(self) -> float:
        """What the process may take beyond the time of its own config."""
        return self.limit_s + GRACE_S

    def parts(self) -> tuple[Config | None, ...]:
        """Segments and anchors in order; an anchor is None."""
        found: list[Config | None] = []
        for count, config in enumerate(self.configs, start=1):
            found.append(config)
            if count % EVERY == 0 or count == len(self.configs):
                found.append(None)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One segment or anchor as it ended.

    Args:
        config: None for an anchor.
        rate: Throughput of its window; None where it has none.
        seconds: From the end of the part before, switch and warm-up included.
        data_wait_frac: As in `Measurement`.
        steps: Inside the window.
        failure: Label of a `FailureKind` where it failed.
    """

    config: Config | None
    rate: Estimate | None
    seconds: float
    data_wait_frac: float = 0.0
    steps: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one segment showed of a config.

    Args:
        config: As in `Visit.configs`.
        ratio: Throughput over that of the process's own config beside it; None where it failed, or where one
            of both is not known at all.
        seconds: As in `Part`.
        data_wait_frac: As in `Measurement`.
        steps: Inside the window.
        failure: Label of a `FailureKind`; it charges this segment and nothing else.
        source: It never had a process of its own.
    """

    config: Config
    ratio: Estimate | None
    seconds: float
    data_wait_frac: float = 0.0
    steps: int = 0
    failure: str = ""
    source: Source = Source.SEGMENT

    @property
    def log_sd(self) -> float:
        """Standard deviation of ln ratio by its interval; infinite without one."""
        return math.inf if self.ratio is None else _log_sd(self.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """How a visit went.

    Args:
        observations: Of the segments that were begun, in order.
        anchors: Throughput of the process's own config: in its own window, then at each anchor.
        seconds: Beyond the process's own measurement.
    """

    observations: tuple[Observation, ...] = ()
    anchors: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """A segment failed, which ended it."""
        return any(o.failure for o in self.observations)


def visited(own: Estimate, parts: Sequence[Part], seconds: float) -> Visited:
    """What the parts of a visit say.

    Args:
        own: Throughput of the process's own config in its own window: the first anchor.
        parts: Those that were begun, in order.
        seconds: Of all of it.
    """
    anchors = [(-1, own), *((i, p.rate) for i, p in enumerate(parts) if p.config is None)]
    known = [(i, rate) for i, rate in anchors if rate is not None and _is_firm(rate)]
    return Visited(
        observations=tuple(_observation(p, i, known) for i, p in enumerate(parts) if p.config is not None),
        anchors=tuple(rate.value for _, rate in known),
        seconds=seconds,
    )


def _observation(part: Part, index: int, anchors: Sequence[tuple[int, Estimate]]) -> Observation:
    assert part.config is not None
    before = [rate for i, rate in anchors if i < index][-1:]
    after = [rate for i, rate in anchors if i > index][:1]
    ratio = None
    if not part.failure and part.rate is not None and _is_firm(part.rate):
        ratio = _ratio(part.rate, [*before, *after], is_between=bool(before and after))
    return Observation(
        config=part.config,
        ratio=ratio,
        seconds=part.seconds,
        data_wait_frac=part.data_wait_frac,
        steps=part.steps,
        failure=part.failure,
    )


def _ratio(rate: Estimate, anchors: Sequence[Estimate], *, is_between: bool) -> Estimate | None:
    """Of a segment to the anchors beside it; None without one."""
    if not anchors or any(anchor.unit != rate.unit for anchor in anchors):
        return None
    logs = [math.log(anchor.value) for anchor in anchors]
    variance = _log_sd(rate) ** 2 + sum(_log_sd(a) ** 2 for a in anchors) / len(anchors) ** 2
    # Between two anchors the process was somewhere between their rates.
    variance += (logs[0] - logs[-1]) ** 2 / 12.0 if is_between else DRIFT**2
    middle, reach = math.log(rate.value) - sum(logs) / len(logs), _NORMAL * math.sqrt(variance)
    return Estimate(
        value=math.exp(middle),
        low=math.exp(middle - reach),
        high=math.exp(middle + reach),
        n=min(rate.n, *(anchor.n for anchor in anchors)),
        unit="ratio",
    )


def _is_firm(rate: Estimate) -> bool:
    return 0.0 < rate.low <= rate.high < math.inf


def _log_sd(estimate: Estimate) -> float:
    if not _is_firm(estimate):
        return math.inf
    return math.log(estimate.high / estimate.low) / (2.0 * _NORMAL)
