"""What each knob of a configuration brings, and how that is known: from pairs, or from single runs. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.ablation import ablated, knob_gains, without_idle
from autotune.core.measurement import Estimate
from autotune.core.rates import screened
from autotune.report.effects import parts
from autotune.report.summary import in_order, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.answer import Recommendation
    from autotune.core.config import Config
    from autotune.core.study import Study

_LEAST_SHARE = 0.01
_SCREEN_NOISE = 0.03
"""Two single runs of a config differ by this much by themselves."""
_TOP_REASONS = 3


def contributions(study: Study, config: Config) -> dict[str, Estimate]:
    """Knob -> how much faster this config is with it than without, largest first.

    Measured, not modelled. Where the config was taken apart, that says it, in pairs. Else single runs
    of screening on both sides (n = 1, no interval), as far as they differ by more than their noise: the
    runs that confirm the config are not mixed with the ones that chose it.
    """
    if config in (ablated(study), without_idle(study)):
        return {knob: gain for knob, gain in knob_gains(study).items() if knob in config}
    ranked = screened(study)
    mine = ranked.get(config)
    found: dict[str, Estimate] = {}
    for knob in config:
        # Without its only knob a config is the baseline.
        without = ranked.get(config.without(knob))
        if mine and without and abs(math.log(mine / without)) > _SCREEN_NOISE:
            found[knob] = Estimate(value=mine / without, low=0.0, high=math.inf, n=1, unit="ratio")
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one knob brings within a configuration, or several that were never changed apart.

    Args:
        knobs: Those that people look for first in front.
        ratio: How many times as fast with them as without.
        low, high: The interval; None where a single run on each side cannot give one.
        pairs: That measured it; 0 where none did.
        how: ``pairs``, ``single runs`` (one with it, one without) or ``estimated`` from all single runs.
    """

    knobs: tuple[str, ...]
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    how: str


def shares(study: Study, config: Config) -> list[Share]:
    """What each knob of a configuration brings, largest first.

    Where the configuration was taken apart, pairs say it, and nothing else is mixed in. Else it is what all
    single runs of the search let one expect, as far as that is clear; knobs of which they say nothing clear
    are left out.
    """
    measured = contributions(study, config)
    found = [
        Share(
            knobs=(knob,),
            ratio=gain.value,
            low=gain.low if gain.n > 1 else None,
            high=gain.high if gain.n > 1 else None,
            pairs=gain.n if gain.n > 1 else 0,
            how="pairs" if gain.n > 1 else "single runs",
        )
        for knob, gain in measured.items()
    ]
    if any(share.pairs for share in found):
        return found
    weighed = parts(study, config)
    judged = {knob for part in weighed for knob in part.knobs}
    estimated = [
        Share(
            knobs=tuple(knob for knob, _ in in_order(dict.fromkeys(part.knobs, 0))),
            ratio=part.ratio,
            low=part.low,
            high=part.high,
            pairs=0,
            how="estimated",
        )
        for part in weighed
        if part.is_clear
    ]
    rest = [share for share in found if share.knobs[0] not in judged]
    return sorted([*estimated, *rest], key=lambda share: -share.ratio)


def share_text(share: Share) -> str:
    """``+58 %`` where pairs measured it, ``about +58 %`` where single runs let one expect it."""
    return f"{'' if share.pairs else 'about '}{100 * (share.ratio - 1.0):+.0f} %"


def share_of(found: Sequence[Share], knob: str) -> tuple[Share, str] | None:
    """The share that a knob has a part in, and the same in words; None where there is none."""
    share = next((one for one in found if knob in one.knobs), None)
    if share is None:
        return None
    others = " and ".join(name for name in share.knobs if name != knob)
    return share, share_text(share) + (f" with {others}" if others else "")


def gains_text(study: Study, best: Recommendation) -> str:
    """What brings it, largest first, and how that is known; empty where nothing is.

    ``precision +58 % (each taken out, 3 pairs)``, or ``num_workers with threads about +59 % (estimated from
    single runs)``.
    """
    found = [share for share in shares(study, best.config) if share.ratio >= 1.0 + _LEAST_SHARE]
    if len(best.config) < 2 or not found:
        return ""
    kinds = {share.how for share in found}
    if "pairs" in kinds:
        how = f"each taken out, {plural(max(share.pairs for share in found), 'pair')}"
    elif kinds == {"single runs"}:
        how = "in single runs"
    else:
        how = "estimated from single runs"
    if "pairs" not in kinds and best.over_run is not None:
        how += ", compiling included"
    said = ", ".join(f"{' with '.join(share.knobs)} {share_text(share)}" for share in found[:_TOP_REASONS])
    return f"{said} ({how})"
