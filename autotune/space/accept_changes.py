"""Permitted changes of a file: those that a knob of this installation declares itself. Pure.

A best.yaml may come from any source. Its contents are compared with the registry, with this machine and with
the script about to run; all others are refused. The texts to be passed are created again here, so that a file
determines values of knobs and nothing else (docs/decisions/0113).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError
from autotune.knobs.declared import SDK_VALUE, DeclaredKnob, declared_knob, refuse_powerful
from autotune.knobs.vocabulary import is_value
from autotune.model.change import Change, Constant, Env, Flag, Keyword, Launcher, Spelling
from autotune.model.effect import Effect
from autotune.model.study import DeclaredSpec
from autotune.source.constants import key_of
from autotune.space.choose_delivery import constant_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.base import Knob
    from autotune.model.config import Value
    from autotune.model.facts import Facts, ScriptFlag

_NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_OUTDATED: Final = "The file was edited, or another version of autotune wrote it: search again."


def accepted(
    changes: Sequence[Change],
    facts: Facts,
    knobs: Mapping[str, Knob],
    *,
    allow: Collection[str] = (),
    has_script: bool = True,
) -> tuple[Change, ...]:
    """Return the changes as this installation would make them itself.

    Args:
        changes: As the file names them.
        facts: Of this machine, and of the script that is about to run.
        knobs: By name; the registry's, and those that a search of this account has declared.
        allow: Names of other knobs whose change is taken as the file has it.
        has_script: False where a change is only written down and the script is not here.

    Raises:
        UsageError: A change is none that these knobs make; it names the change and the reason.
    """
    found: list[Change] = []
    for change in changes:
        knob = knobs.get(change.knob)
        if knob is None:
            taken = _undeclared(change, facts, change.knob in allow, has_script=has_script)
            hint = f"If you trust this setting: --allow {change.knob}"
        else:
            taken, hint = _declared(knob, change, facts, has_script=has_script), _OUTDATED
        if isinstance(taken, str):
            raise UsageError(f"{change.knob}={change.value} is not applied: {taken}", hint=hint)
        found.append(taken)
    return tuple(found)


def _declared(knob: Knob, change: Change, facts: Facts, *, has_script: bool) -> Change | str:
    """Return the change by the knob's own delivery, or a clause why there is none."""
    if not _is_known(knob, change.value):
        return f"{knob.name} has no value {change.value!r}."
    way = next((w for w in knob.spellings if _matches(w, change.spelling, facts, has_script)), None)
    if way is None:
        return f"{_named(change.spelling)} is not a delivery that {knob.name} has for this script."
    match way:
        case Flag():
            option = facts.script.flag(*way.names) if has_script else None
            if has_script and option is None:
                return f"The script has no option {change.spelling.text}."
            return _by_flag(knob, change, option)
        case Env():
            text = knob.environment(change.value, way, facts)
            if text is None:
                return f"{way.name} cannot set this value on this machine."
            return _made(change, way, text)
        case Constant():
            if has_script and not _is_written(change.spelling, facts):
                return f"The script has no constant {change.spelling.text}."
            # `way` is a constant, so the file's delivery is one.
            assert isinstance(change.spelling, Constant)
            text = constant_text(knob, change.value, change.spelling.was)
            if text is None:
                return f"{_named(change.spelling)} cannot have this value."
            return _made(change, change.spelling, text)
        case Launcher() if knob.resolve(change.value, facts) is None:
            return f"{change.value} processes are more than this machine has CPUs."
        case _:
            return _made(change, way, "")


def _undeclared(change: Change, facts: Facts, allowed: bool, *, has_script: bool) -> Change | str:
    """Return the same for an undeclared knob: an option of the script itself, or an allowed change."""
    spelling = change.spelling
    if isinstance(spelling, Keyword) and spelling.target == SDK_VALUE:
        return change  # the script asks for it by its name
    if allowed and (reason := refuse_powerful(spelling, (change.value, change.delivered))):
        return reason
    if isinstance(spelling, Flag) and has_script:
        option = facts.script.flag(spelling.names[0])
        if option is None:
            return f"The script has no option {spelling.text}."
        if allowed or _is_bounded(change, option):
            spec = DeclaredSpec(
                name=change.knob, effect=Effect.TRAINING, values=(change.value,), spelling=spelling
            )
            return _by_flag(declared_knob(spec), change, option)
    elif allowed and isinstance(spelling, (Flag, Env, Keyword)):
        return change
    return f"No knob here is called {change.knob}, and by it the file would set {_named(spelling)}."


def _is_known(knob: Knob, value: Value) -> bool:
    return knob.holds(value) if isinstance(knob, DeclaredKnob) else is_value(knob, value)


def _matches(way: Spelling, given: Spelling, facts: Facts, has_script: bool) -> bool:
    """Return whether a file means this delivery of a knob."""
    if isinstance(way, Flag) and isinstance(given, Flag):
        option = facts.script.flag(*way.names) if has_script else None
        return given.names[0] in (way.names if option is None else option.names)
    if isinstance(way, Keyword) and isinstance(given, Keyword):
        return way.text == given.text
    if isinstance(way, Constant) and isinstance(given, Constant):
        return key_of(given.names[0]) in {key_of(name) for name in way.names}
    return way == given


def _by_flag(knob: Knob, change: Change, option: ScriptFlag | None) -> Change | str:
    """Return the change by the script's option; without the script, by the names in the file."""
    if option is None:
        plain = change.delivered in ("", knob.deliver(change.value)) or _NUMBER.fullmatch(change.delivered)
        return change if plain else f"{change.delivered!r} is not a text for this value."
    written = knob.option(change.value, option)
    if written is None or written[1] != change.delivered:
        # One factor for all loaders that an option sizes: its number is not that of the training loader.
        if option.kind not in ("int", "float") or not _NUMBER.fullmatch(change.delivered):
            return f"The option {option.names[0]} has no text {change.delivered!r} for this value."
        written = change.spelling.text, change.delivered
    name, text = written
    return _made(change, Flag((name, *(n for n in option.names if n != name))), text)


def _made(change: Change, spelling: Spelling, text: str) -> Change:
    return Change(knob=change.knob, value=change.value, spelling=spelling, delivered=text, site=change.site)


def _is_written(given: Spelling, facts: Facts) -> bool:
    """Return whether the script's own files assign the file's value to this constant."""
    return isinstance(given, Constant) and any(
        (c.name, c.file) == (given.names[0], given.file)
        and type(c.value) is type(given.was)
        and c.value == given.was
        for c in facts.script.constants
    )


def _is_bounded(change: Change, option: ScriptFlag) -> bool:
    """Return whether the option takes a number, a switch or one of a few words: no free text."""
    return not isinstance(change.value, str) or change.delivered in option.choices


def _named(spelling: Spelling) -> str:
    match spelling:
        case Flag():
            return f"the option {spelling.text}"
        case Env():
            return f"the variable {spelling.name}"
        case Keyword():
            return f"the argument {spelling.text}"
        case Constant():
            return f"the constant {spelling.text}"
        case Launcher():
            return f"the launcher's {spelling.text}"
        case _:
            return "a patch in the process"
