"""Delivery of each value to this script: the first spelling that the script accepts. Pure.

Nothing is delivered here; `autotune.space.launch_command` writes flags and environment, the training process
applies the rest and reads every knob back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.errors import did_you_mean
from autotune.knobs.common import LOADER, constant_of
from autotune.knobs.frameworks import ways
from autotune.model.change import (
    Change,
    Constant,
    Env,
    Flag,
    Keyword,
    Launcher,
    Patch,
    Refusal,
    Spelling,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.knobs.base import Knob
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts

Dead = frozenset[tuple[str, str] | tuple[str, str, "Value"]]
"""Deliveries without effect on this script: ``("batch_size", "flag")``.

A third item restricts it to one value: ``("batch_size", "flag", 64)``.
"""


def choose(
    config: Config, facts: Facts, knobs: Mapping[str, Knob], *, dead: Dead = frozenset()
) -> tuple[tuple[Change, ...], tuple[Refusal, ...]]:
    """Return a delivery for every knob of a config, or the reason why there is none.

    Every knob ends in exactly one of the two lists, but for virtual knobs (`Knob.virtual`):
    other knobs of the same config implement them, so they are in neither.

    Args:
        config: The config.
        facts: Facts of this script and machine; before a run, deliveries are assumed to exist.
        knobs: By name.
        dead: Deliveries that are not tried again.
    """
    changes: list[Change] = []
    refusals: list[Refusal] = []
    for name, value in config.items():
        found = _chosen(name, value, facts, knobs, dead)
        if isinstance(found, Change):
            changes.append(found)
        elif isinstance(found, Refusal):
            refusals.append(found)
    return tuple(changes), tuple(refusals)


def _chosen(
    name: str, value: Value, facts: Facts, knobs: Mapping[str, Knob], dead: Dead
) -> Change | Refusal | None:
    knob = knobs.get(name)
    if knob is None:
        guess = did_you_mean(name, knobs)
        return Refusal(knob=name, reason=f'There is no knob called "{name}". {guess}'.strip())
    reason = knob.refuse(facts)
    if reason is not None:
        return Refusal(knob=name, reason=reason)
    if knob.virtual:
        return None
    found = way(knob, value, facts, dead)
    return found if isinstance(found, Change) else Refusal(knob=name, reason=found)


def way(knob: Knob, value: Value, facts: Facts, dead: Dead = frozenset()) -> Change | str:
    """Return the change by the first spelling that can deliver this value, or why there is none."""
    reasons: list[str] = []
    for spelling in ways(knob.spellings, facts):
        if (knob.name, spelling.how) in dead or (knob.name, spelling.how, value) in dead:
            reasons.append(f"by {_kind(spelling)} it had no effect, or changed more than this knob")
            continue
        refusal = knob.refuse_spelling(spelling, facts)
        found = refusal or _by(spelling, knob, value, facts)
        if isinstance(found, Change):
            return found
        reasons.append(found.rstrip(".") if refusal is None else f"by {_kind(spelling)}: {found.rstrip('.')}")
    distinct = "; ".join(dict.fromkeys(reasons))
    return f"No delivery can set {knob.name} to {value} for this script: {distinct or 'none is known'}."


def _by(spelling: Spelling, knob: Knob, value: Value, facts: Facts) -> Change | str:
    match spelling:
        case Flag():
            return by_flag(spelling, knob, value, facts)
        case Env():
            text = knob.environment(value, spelling, facts)
            if text is None:
                return f"{spelling.name} cannot express {value}"
            return Change(knob=knob.name, value=value, spelling=spelling, delivered=text)
        case Keyword():
            return _by_keyword(spelling, knob, value, facts)
        case Constant():
            return _by_constant(spelling, knob, value, facts)
        case Patch() | Launcher():
            return Change(knob=knob.name, value=value, spelling=spelling)


def by_flag(spelling: Flag, knob: Knob, value: Value, facts: Facts) -> Change | str:
    """Return the change by the script's own option, or why the option cannot make it."""
    option = facts.script.flag(*spelling.names)
    if option is None:
        return f"the script has no option {spelling.names[0]}"
    taken = knob.option_value(value, facts)
    spelled = None if taken is None else knob.option(taken, option)
    if spelled is None:
        return f"its option {option.names[0]} cannot express {value}"
    name, text = spelled
    others = tuple(n for n in option.names if n != name)
    return Change(
        knob=knob.name,
        value=value,
        spelling=Flag((name, *others)),
        delivered=text,
        site=knob.shown_at(facts),
    )


def _by_constant(spelling: Constant, knob: Knob, value: Value, facts: Facts) -> Change | str:
    found = constant_of(spelling, facts.script, knob.own(facts), knob.written)
    if isinstance(found, str):
        return found
    text = constant_text(knob, value, found.value)
    if text is None:
        return f"{found.place} cannot be {value}"
    loader = None if facts.run is None else facts.run.loader
    if loader is not None and loader.mp_context in ("spawn", "forkserver") and loader.num_workers:
        return f"loader workers that are not forked would import the script with {found.value} in it"
    meant = Constant((found.name,), file=found.file, line=found.line, was=found.value)
    return Change(knob=knob.name, value=value, spelling=meant, delivered=text, site=knob.shown_at(facts))


def constant_text(knob: Knob, value: Value, was: Value) -> str | None:
    """Return `Change.delivered` of a constant whose literal is `was`; None if it cannot have this value."""
    literal = knob.written(value, was)
    if literal is None:
        return None
    return "" if literal == value and type(literal) is type(value) else str(literal)


def _by_keyword(spelling: Keyword, knob: Knob, value: Value, facts: Facts) -> Change | str:
    if spelling.target != LOADER or facts.run is None:
        return Change(knob=knob.name, value=value, spelling=spelling)
    if facts.run.loader is None:
        return "no training DataLoader was seen"
    return Change(knob=knob.name, value=value, spelling=spelling, site=facts.run.loader.site)


def _kind(spelling: Spelling) -> str:
    return {
        "flag": "the script's own option",
        "env": "environment variable",
        "keyword": "keyword argument",
        "patch": "in-process patch",
        "constant": "a constant of its source",
        "launcher": "the launcher",
    }[spelling.how]
