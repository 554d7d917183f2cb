"""Picks as shown in a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.answer.answer import Answer, Recommendation


def picks(answer: Answer) -> dict[str, Recommendation]:
    """Return the picks by name, as in best.yaml."""
    named = {
        "best": answer.best,
        "safe": answer.safe,
        "fastest": answer.fastest,
        "likely": answer.likely,
    }
    return {name: pick for name, pick in named.items() if pick is not None}


def shown_picks(answer: Answer | None) -> dict[str, Recommendation]:
    """Return the picks that change something, each configuration once; best first."""
    found: dict[str, Recommendation] = {}
    for name, pick in picks(answer).items() if answer is not None else ():
        if not pick.config.is_baseline and all(pick.config != other.config for other in found.values()):
            found[name] = pick
    return found


def effect_word(pick: Recommendation) -> str:
    """Return the effect of a pick on the training, in words."""
    return {
        "exact": "leaves the arithmetic unchanged",
        "numeric": "differs by rounding only",
        "training": "changes the training",
    }[pick.effect.value]
