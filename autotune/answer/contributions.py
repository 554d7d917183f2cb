"""Contribution of each change of a recommended configuration to its speedup. Pure; standard library only.

All outputs (terminal, best.yaml, JSON, MLflow, report) show the contributions computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from autotune.compare.ablation import FEWEST_CYCLES, ablated, knob_gains, variants, without_idle
from autotune.compare.value_effects import parts
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.answer.answer import Recommendation
    from autotune.model.config import Config
    from autotune.model.study import Study

Source = Literal["pairs", "estimated"]

MOST_WIDE: Final = 1.5
"""Factor from the estimate beyond which an interval is too wide to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Speedup of a configuration with one of its changes over the configuration without it.

    Args:
        knobs: One; several if they were never changed separately.
        ratio: With its interval; n counts pairs of fresh runs, 0 if estimated from single runs.
    """

    knobs: tuple[str, ...]
    ratio: Estimate

    @property
    def source(self) -> Source:
        """``pairs`` of runs with and without it, or ``estimated`` from all single runs."""
        return "pairs" if self.ratio.n else "estimated"

    @property
    def log(self) -> float:
        """Ln of the ratio."""
        return math.log(self.ratio.value)

    @property
    def half_width(self) -> float:
        """Half the interval's width in ln ratio."""
        return math.log(self.ratio.high / self.ratio.low) / 2.0

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 1 and is no wider than `MOST_WIDE` allows."""
        return not self.ratio.low <= 1.0 <= self.ratio.high and self.half_width <= math.log(MOST_WIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """Contributions to one configuration; each of its knobs occurs exactly once.

    Args:
        parts: Known contributions, largest first.
        not_separated: Knobs whose contribution cannot be separated from that of others.
    """

    parts: tuple[Contribution, ...] = ()
    not_separated: tuple[str, ...] = ()

    def of(self, knob: str) -> Contribution | None:
        """Return the contribution that includes a knob, or None if it is unknown."""
        return next((part for part in self.parts if knob in part.knobs), None)


def contributions(study: Study, pick: Recommendation) -> Contributions:
    """Return the contribution of each change of a pick, as far as consistent with the pick's speedup.

    Ablation pairs take precedence over the fit of single runs. If all contributions are known and their
    product agrees with the speedup within both intervals, all are returned. Otherwise only certain ones are,
    most certain first, as long as their product does not exceed the speedup.
    """
    config, total = pick.config, pick.speedup
    if pick.pick == "likely":  # not confirmed: no speedup to split
        return Contributions(not_separated=tuple(config))
    if len(config) < 2:
        alone = (Contribution(knobs=tuple(config), ratio=total),)
        return Contributions(parts=alone if config else ())
    found: list[Contribution] = []
    # Training-changing picks are judged by time to equal loss, which no ablation measures.
    if pick.effect is not Effect.TRAINING and total.value > 1.0 and total.low > 0.0:
        found = _measured(study, config, total)
        found += _estimated(study, config, total, known={knob for part in found for knob in part.knobs})
        found = _consistent(found, config, total)
    named = {knob for part in found for knob in part.knobs}
    return Contributions(
        parts=tuple(sorted(found, key=lambda part: (-part.ratio.value, part.knobs))),
        not_separated=tuple(knob for knob in config if knob not in named),
    )


def _measured(study: Study, config: Config, total: Estimate) -> list[Contribution]:
    """Return contributions from ablation pairs, without those too noisy next to this speedup."""
    winner = ablated(study)
    if winner is None or config not in (winner, without_idle(study)):
        return []
    smaller = variants(study, winner)
    found: list[Contribution] = []
    named: set[str] = set()
    for knob, gain in knob_gains(study).items():
        if knob not in config or gain.n < FEWEST_CYCLES or not 0.0 < gain.low <= gain.high < math.inf:
            continue
        # Knobs that depend on this one were removed together with it.
        left = [k for k in config if k != knob and winner.get(k) != smaller[knob].get(k)]
        part = Contribution(knobs=(knob, *(k for k in left if k not in named)), ratio=gain)
        if 2.0 * part.half_width <= max(math.log(total.value), abs(part.log)) and knob not in named:
            found.append(part)
            named.update(part.knobs)
    return found


def _estimated(study: Study, config: Config, total: Estimate, *, known: set[str]) -> list[Contribution]:
    """Return the certain contributions by the fit of undisturbed single runs.

    An estimate above the speedup is clipped to the speedup if its interval contains that, else left out.
    """
    made = [
        Contribution(knobs=knobs, ratio=ratio)
        for knobs, ratio in parts(study, config).items()
        if known.isdisjoint(knobs)
    ]
    most = math.log(total.value)
    return [
        replace(part, ratio=replace(part.ratio, value=min(part.ratio.value, total.value)))
        for part in made
        if part.is_certain and part.log >= -most and part.ratio.low <= total.value
    ]


def _consistent(found: Sequence[Contribution], config: Config, total: Estimate) -> list[Contribution]:
    """Return all if they multiply to the speedup; else the certain ones that do not exceed it."""
    if sum(len(part.knobs) for part in found) == len(config) and abs(_excess(found, total)) <= 1.0:
        return list(found)
    accepted: list[Contribution] = []
    certain = [part for part in found if part.is_certain]
    for part in sorted(certain, key=lambda p: (p.source != "pairs", -abs(p.log) / max(p.half_width, 1e-9))):
        if _excess([*accepted, part], total) <= 1.0:
            accepted.append(part)
    return accepted


def _excess(found: Iterable[Contribution], total: Estimate) -> float:
    """Return the ln excess of the product over the speedup, relative to what both intervals allow."""
    some = list(found)
    excess = math.fsum(part.log for part in some) - math.log(total.value)
    allowed = math.hypot(math.log(total.value / total.low), *(part.half_width for part in some))
    return excess / max(allowed, 1e-9)
