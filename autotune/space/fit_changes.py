"""Selection of a file's changes that fit this script, without a search. Pure.

A file that was written or edited by hand, or that is applied to a changed script, contains changes without a
run. The script's first steps are run once; changes that a search would not try after them are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.model.change import Change, Flag, Refusal
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.space.choose_delivery import by_flag, choose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.base import Knob
    from autotune.model.facts import Facts


def fitting(
    changes: Sequence[Change], facts: Facts, knobs: Mapping[str, Knob], *, effect: Effect
) -> tuple[tuple[Change, ...], tuple[Refusal, ...]]:
    """Return the changes that a search of this script could make, and why the others are not among them.

    Args:
        changes: As the file has them. One whose way is refused takes another way of its knob.
        facts: Of the script, with those of a run.
        knobs: By name; changes of others stay.
        effect: That the file claims: TRAINING allows what may train something else.
    """
    refused: dict[str, str] = {}
    kept: dict[str, Change] = {}
    for change in changes:
        knob = knobs.get(change.knob)
        found = change if knob is None else _fitted(knob, change, facts, knobs, effect)
        if isinstance(found, Change):
            kept[change.knob] = found
        else:
            refused[change.knob] = found
    for name in list(refused):
        for other in knobs[name].withdraws_with:
            if kept.pop(other, None) is not None:
                refused[other] = f"It goes with {name}."
    return tuple(kept.values()), tuple(Refusal(knob=name, reason=reason) for name, reason in refused.items())


def _fitted(
    knob: Knob, change: Change, facts: Facts, knobs: Mapping[str, Knob], effect: Effect
) -> Change | str:
    """Return the change, by another delivery if necessary, or why there is none."""
    if knob.refuse(facts) is not None or knob.refuse_spelling(change.spelling, facts) is not None:
        found, refusals = choose(Config({knob.name: change.value}), facts, knobs)
        if not found:
            return refusals[0].reason if refusals else change
        change = found[0]
    elif isinstance(change.spelling, Flag) and facts.script.flag(*change.spelling.names) is not None:
        # The text in the file may be that of another value, or of a loader that the option sizes otherwise.
        found = by_flag(change.spelling, knob, change.value, facts)
        if isinstance(found, str):
            return f"It cannot be {change.value}: {found}."
        change = found
    allowed = Effect.TRAINING in (knob.effect, effect)
    if not allowed and knob.effect_for(facts) is Effect.TRAINING:
        why = knob.raised(facts) or "It may train something else here."
        return f"{why} Only a file with the effect TRAINING allows that."
    return change
