"""Input and output of an export: values set, values left out with the reason, notes. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from autotune.knobs.registry import builtin
from autotune.model.change import Constant, Env, Flag, Keyword, Spelling
from autotune.model.config import Value
from autotune.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from autotune.model.change import Change


TOGETHER: Final = ("batch_size", "accumulation")
"""Knobs that make a step together: one of them alone would change the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedValues:
    """A pick to be expressed in another format.

    Args:
        changes: Differences from the script, with the measured delivery.
        knobs: Every known value under this pick, the script's own included.
        on_device: The machine of the search has an accelerator.
        launcher: As in `autotune.model.distributed_launch`, or "".
    """

    changes: tuple[Change, ...]
    knobs: Mapping[str, Value] = field(default_factory=dict[str, Value])
    on_device: bool = False
    launcher: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A changed knob that a format cannot express, and the whole reason."""

    knob: str
    value: Value
    reason: str

    @property
    def text(self) -> str:
        return f"{self.knob}={self.value}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A pick in one format. Every change of the pick is either in `included` or in `left`.

    Args:
        text: Content for a file or a shell, without the comments.
        data: `text` as plain data.
        included: Names of the knobs that it sets.
        left: Knobs that it cannot set.
        notes: Sentences on how the format differs from what was measured.
        comment: Marker of a comment line, or "" if the format has none.
    """

    text: str
    data: dict[str, Any]
    included: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    notes: tuple[str, ...] = ()
    comment: str = "#"

    def commented(self, head: Iterable[str], tail: Iterable[str] = ()) -> str:
        """Return the text below comments: `head`, the values left out, `tail`, then the notes."""
        if not self.comment:
            return self.text
        lines = [
            *head,
            *(f"left out: {left.text}" for left in self.left),
            *tail,
            *(f"note: {note}" for note in self.notes),
        ]
        return "".join(f"{self.comment} {one_line(line)}\n" for line in lines) + self.text


def whole(export: Callable[[TunedValues], Exported], tuned: TunedValues) -> Exported:
    """Export a pick; knobs that make one step together are all in the text, or all left out."""
    found = export(tuned)
    lost = [left for left in found.left if left.knob in TOGETHER]
    apart = [change for change in tuned.changes if change.knob in TOGETHER and change.knob in found.included]
    if not lost or not apart:
        return found
    rest = tuple(change for change in tuned.changes if change not in apart)
    reason = f"without {lost[0].knob}={lost[0].value}, which is left out, the training would change"
    kept = (Left(knob=change.knob, value=change.value, reason=reason) for change in apart)
    found = export(replace(tuned, changes=rest))
    return replace(found, left=(*kept, *found.left))


def python_literal(value: Value | None) -> str:
    """Return a value as Python source; texts in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def python_dict(name: str, values: Mapping[str, Value | None]) -> str:
    """Return the source ``name = dict(...)``, one keyword a line."""
    lines = "".join(f"    {key}={python_literal(value)},\n" for key, value in values.items())
    return f"{name} = dict(\n{lines})\n" if lines else f"{name} = dict()\n"


def json_text(data: Mapping[str, Any]) -> str:
    """Return indented JSON that ends in a line break."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def arguments_of(change: Change, targets: Collection[str]) -> Mapping[str, Value | None] | None:
    """Return the arguments for this value of one of these callables; None without such an argument.

    The measured delivery comes first, then the knob's own rows, which reach the running process.
    """
    knob = builtin().get(change.knob)
    ways: Sequence[Spelling] = (change.spelling, *(() if knob is None else knob.spellings))
    row = next((way for way in ways if isinstance(way, Keyword) and way.target in targets), None)
    if row is None:
        return None
    return {row.name: change.value} if knob is None else knob.arguments(change.value, row)


def fields_of(
    change: Change, target: str, tuned: TunedValues, *, or_arguments: bool = True
) -> Mapping[str, Any] | str | None:
    """Return what a framework's configuration contains for a change, or why it contains nothing.

    Args:
        change: The value, with its measured delivery.
        target: Of the framework's arguments.
        tuned: The pick of which it is a part.
        or_arguments: Take the framework's arguments where the knob has no fields of its own.

    Returns:
        None where neither the knob nor an argument of the framework decides.
    """
    knob = builtin().get(change.knob)
    changed = {each.knob: each.value for each in tuned.changes}
    found = None if knob is None else knob.exported(change, target, changed)
    return arguments_of(change, (target,)) if found is None and or_arguments else found


def is_by(change: Change, *targets: str) -> bool:
    """Return whether the value was measured as an argument of one of these callables."""
    return isinstance(change.spelling, Keyword) and change.spelling.target in targets


def way_of(change: Change) -> str:
    """Return the measured delivery of a value, in words."""
    match change.spelling:
        case Flag():
            return f"the script's option {change.spelling.text}"
        case Env():
            return f"the variable {change.spelling.name}"
        case Keyword():
            return f"{change.spelling.text}"
        case Constant():
            return f"the constant {change.spelling.text}"
        case _:
            return "a patch in the process"


def why_left(change: Change, what: str) -> str:
    """Return why `what` cannot express a value, with the place that can."""
    match change.spelling:
        case Flag():
            given = f"{change.spelling.text}={change.delivered}" if change.delivered else change.spelling.text
            return f"{what} has nothing for it; the script has an option, {given} (--as argv)"
        case Env():
            given = f"{change.spelling.name}={change.delivered}"
            return f"{what} has nothing for it; it is a variable of the environment, {given} (--as env)"
        case Keyword():
            return f"{what} has nothing for it; it is an argument, {change.spelling.text}"
        case Constant():
            return f"{what} has nothing for it; it is the constant {change.spelling.text} (--as diff)"
        case _:
            return f"{what} has nothing for it; autotune sets it inside the running process"


def translated(included: Iterable[Change], *targets: str) -> list[str]:
    """Return a note on values that were measured by another delivery than the one exported here."""
    other = [f"{change.knob} ({way_of(change)})" for change in included if not is_by(change, *targets)]
    return [f"measured by another delivery: {', '.join(other)}"] if other else []


def about_accumulation(included: Iterable[Change], *targets: str) -> list[str]:
    """Return a note on the division of the loss, unless this framework's accumulation was measured."""
    parts = [c for c in included if c.knob == "accumulation" and not is_by(c, *targets) and c.value != 1]
    return ["accumulation here divides the loss by the parts, correct for a mean only"] if parts else []
