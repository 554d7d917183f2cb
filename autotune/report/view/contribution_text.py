"""Text of the contributions of a pick's changes, as computed by `autotune.answer.contributions`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.answer.contributions import contributions
from autotune.model.config import in_order
from autotune.report.view.summary import plural

if TYPE_CHECKING:
    from autotune.answer.answer import Recommendation
    from autotune.answer.contributions import Contribution, Contributions
    from autotune.model.study import Study


def gain_text(part: Contribution) -> str:
    """Return ``+58 %`` if pairs measured it, ``about +58 %`` if it is estimated from single runs."""
    return f"{'about ' if part.source == 'estimated' else ''}{100 * (part.ratio.value - 1.0):+.0f} %"


def interval_text(part: Contribution) -> str:
    """Return the interval in percent: ``[+50, +66]``."""
    return f"[{100 * (part.ratio.low - 1):+.0f}, {100 * (part.ratio.high - 1):+.0f}]"


def range_text(part: Contribution) -> str:
    """Return the range in percent, as in ``(+50 to +66)``; empty if pairs measured it."""
    if part.source == "pairs":
        return ""
    return f" ({100 * (part.ratio.low - 1):+.0f} to {100 * (part.ratio.high - 1):+.0f})"


def knob_text(found: Contributions, knob: str) -> str:
    """Return ``+58 % with threads``, or ``not separated``; empty for an unchanged knob."""
    part = found.of(knob)
    if part is None:
        return "not separated" if knob in found.not_separated else ""
    return gain_text(part) + _with([name for name in _ordered(part.knobs) if name != knob])


def gains_text(study: Study, best: Recommendation) -> str:
    """Return every change with its contribution, largest first, then those not separated.

    ``precision +58 %, measured without each, 3 pairs; threads about +20 % (+9 to +32), estimated from single
    runs; not separated: malloc, wait_policy``. Empty for a single change, whose contribution is the speedup.
    """
    if len(best.config) < 2:
        return ""
    found = contributions(study, best)
    parts_text: list[str] = []
    for source in ("pairs", "estimated"):
        some = [part for part in found.parts if part.source == source]
        if some:
            listed = ", ".join(f"{_named(part)} {gain_text(part)}{range_text(part)}" for part in some)
            parts_text.append(f"{listed}, {_how(some, best)}")
    if found.not_separated:
        parts_text.append(f"not separated: {', '.join(_ordered(found.not_separated))}")
    return "; ".join(parts_text)


def _how(some: list[Contribution], best: Recommendation) -> str:
    if some[0].source == "pairs":
        return f"measured without each, {plural(max(part.ratio.n for part in some), 'pair')}"
    included = ", compiling included" if best.over_run is not None else ""
    return f"estimated from single runs{included}"


def _named(part: Contribution) -> str:
    """Return ``num_workers with threads and malloc``."""
    first, *others = _ordered(part.knobs)
    return first + _with(others)


def _with(others: list[str]) -> str:
    return f" with {' and '.join(others)}" if others else ""


def _ordered(knobs: tuple[str, ...]) -> list[str]:
    """Return the knobs, those of most interest first."""
    return [knob for knob, _ in in_order(dict.fromkeys(knobs, 0))]
