"""How fast was the machine when? Told apart from what configs do, beside which it is learned; pure.

A neighbour on the host, heat, a disk: a machine is faster for a while and then slower, by 5 to 15 % within
minutes on those that were recorded (`experiments/grids`). Runs that follow one another share that, so what
one reads beside another tells more of the two configs than either reading does. The log rate of a run is its
config's, and an Ornstein-Uhlenbeck process of the time at which it ran, and noise; how large these are is
told by the runs themselves.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.search.models.linear import Process, covariance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOISE = 0.02
"""Of a single run, in ln rate, as long as runs do not show that it is more."""

_SD, _ALIKE_S, _NOISE = (0.04, 0.08, 0.14), (60.0, 300.0), (NOISE, 0.04, 0.07)
"""What is tried: how far the machine changes, over how many seconds it is alike, and noise beside that."""
_MORE_LIKELY = 1.0
"""In ln of likelihood and belief: by so much any of it has to be likelier than a quiet machine."""
_MACHINES = ((0.0, 1.0), *itertools.product(_SD, _ALIKE_S))
_USUAL_SD, _USUAL_NOISE = 0.06, 0.04
"""Half-normal beliefs about them, in ln rate: that much is usual, more has to be shown."""


@dataclass(frozen=True, slots=True)
class Run:
    """Where in the space a run was, and when.

    Args:
        point: Of its config.
        at_s: Seconds since the study began.
    """

    point: object
    at_s: float


@dataclass(frozen=True, slots=True)
class OnMachine:
    """Prior covariance of runs; of a point without a time it is that of its config alone.

    Args:
        configs: Prior covariance of two points.
        sd: Of the machine's changes, in ln rate.
        alike_s: Seconds after which it resembles itself by 1/e.
    """

    configs: Callable[[object, object], float]
    sd: float
    alike_s: float

    def __call__(self, a: object, b: object) -> float:
        both = self.configs(_point(a), _point(b))
        if isinstance(a, Run) and isinstance(b, Run):
            both += self.sd**2 * math.exp(-abs(a.at_s - b.at_s) / self.alike_s)
        return both


def fitted(
    runs: Sequence[tuple[Run, float]],
    beside: Sequence[tuple[object, float, float]],
    kernel: Callable[[object, object], float],
    expected: Callable[[object], float] | None,
) -> tuple[Process, float]:
    """What runs say of configs, with the likeliest machine.

    Args:
        runs: Each with its ln rate.
        beside: What else is known: point, ln rate and its standard deviation.
        kernel: Prior covariance of two points of the space.
        expected: Prior mean of a point of the space, 0 where it is None.

    Returns:
        The process, and the standard deviation of noise of a single run, in ln rate.
    """
    points = [*(run for run, _ in runs), *(point for point, _, _ in beside)]
    values = [*(y for _, y in runs), *(y for _, y, _ in beside)]
    plain = covariance([_point(p) for p in points], kernel)
    alike = {seconds: covariance(points, OnMachine(_nothing, 1.0, seconds)) for seconds in _ALIKE_S}

    def prior(point: object) -> float:
        return 0.0 if expected is None else expected(_point(point))

    # A quiet machine is the first of them.
    best: tuple[float, Process, float] | None = None
    for (sd, alike_s), noise in itertools.product(_MACHINES, _NOISE):
        matrix = plain
        if sd:
            rows = zip(plain, alike[alike_s], strict=True)
            matrix = [[p + sd**2 * s for p, s in zip(*row, strict=True)] for row in rows]
        each = [*(noise for _ in runs), *(given for _, _, given in beside)]
        process = Process.from_covariance(
            matrix, points, values, each, OnMachine(kernel, sd, alike_s), None if expected is None else prior
        )
        likely = process.evidence - 0.5 * ((sd / _USUAL_SD) ** 2 + (noise / _USUAL_NOISE) ** 2)
        likely -= _MORE_LIKELY * (best is not None)
        if best is None or likely > best[0]:
            best = likely, process, noise
    assert best is not None
    return best[1], best[2]


def _point(of: object) -> object:
    return of.point if isinstance(of, Run) else of


def _nothing(_a: object, _b: object) -> float:
    return 0.0
