"""The config closest to a gain if none is claimed, for all renderers. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.compare.amortised_rate import screened
from autotune.compare.comparison import compare
from autotune.compare.disturbances import without_disturbed
from autotune.compare.finalists import finalists
from autotune.model.config import Config
from autotune.model.measurement import Estimate

if TYPE_CHECKING:
    from autotune.model.study import Study

_BASE = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Closest:
    """The config closest to a gain.

    Args:
        ratio: To the baseline; n counts pairs, or single runs if no pair measured it.
        trial: The first trial that measured it.
        is_paired: Whether pairs of fresh runs measured it.
    """

    config: Config
    ratio: Estimate
    trial: int
    is_paired: bool

    @property
    def rests_on(self) -> str:
        """``in 3 pairs`` or ``in one run, not confirmed``."""
        many = "one {}" if self.ratio.n == 1 else f"{self.ratio.n} {{}}s"
        return f"in {many.format('pair')}" if self.is_paired else f"in {many.format('run')}, not confirmed"


def closest(study: Study) -> Closest | None:
    """Return the fastest config by pairs, else by undisturbed single runs; None without one."""
    compared = compare(study)
    if compared:
        top = max(compared, key=lambda c: (c.wins, c.speedup.value))
        return Closest(config=top.config, ratio=top.speedup, trial=top.trial, is_paired=True)
    for view in (without_disturbed(study), study):
        rates = screened(view)
        others = [c for c in rates if not c.is_baseline]
        if others and rates.get(_BASE, 0.0) > 0:
            ahead = [c for c in finalists(view) if c in rates]
            config = ahead[0] if ahead else max(others, key=lambda c: (rates[c], c.canonical()))
            runs = [t for t in view.of(config) if t.measurement is not None]
            value = rates[config] / rates[_BASE]
            # The interval of a single run does not hold for another process.
            ratio = Estimate(value=value, low=0.0, high=math.inf, n=len(runs), unit="ratio")
            return Closest(config=config, ratio=ratio, trial=runs[0].number, is_paired=False)
    return None
