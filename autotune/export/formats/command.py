"""The command line and the variables of a pick, quoted for shells and for readers of dotenv files. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from autotune.export.formats.content import Exported, Left, why_left
from autotune.model.change import Env, Flag
from autotune.model.environment_variables import with_setting
from autotune.space.launch_command import with_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.export.formats.content import TunedValues
    from autotune.model.change import Change

_PLAIN: Final = re.compile(r"[\w@%+=:,./-]*", re.ASCII)
"""Texts that shells, dotenv readers and readers without quotes (containers, unit files) parse alike."""


def command_line(
    tuned: TunedValues, start: Sequence[str], args: Sequence[str], environ: Mapping[str, str]
) -> Exported:
    """Return the command that trains with the pick's options and variables.

    Args:
        tuned: The pick.
        start: Words that start the script: ``python train.py``.
        args: Arguments of the script, into which the options are inserted.
        environ: The variables at hand: lists in them are kept.
    """
    included = [change for change in tuned.changes if isinstance(change.spelling, (Flag, Env))]
    variables, notes = _variables(included, environ)
    words = [*start, *with_flags(args, included)]
    prefix = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return Exported(
        text=" ".join([*prefix, shlex.join(words)]) + "\n",
        data={"argv": words, "env": variables},
        included=tuple(change.knob for change in included),
        left=tuple(
            Left(knob=c.knob, value=c.value, reason=why_left(c, "a command line"))
            for c in tuned.changes
            if c not in included
        ),
        notes=notes,
    )


def environment_file(tuned: TunedValues, environ: Mapping[str, str], *, export: bool) -> Exported:
    """Return the pick's variables as lines.

    Args:
        tuned: The pick.
        environ: The variables at hand: lists in them are kept.
        export: ``export NAME=value`` for a shell, quoted by its rules; otherwise ``NAME=value`` in a
            notation that shells and dotenv readers parse alike.
    """
    left: list[Left] = []
    included: list[Change] = []
    for change in tuned.changes:
        if not isinstance(change.spelling, Env):
            reason = why_left(change, "an environment")
            left.append(Left(knob=change.knob, value=change.value, reason=reason))
        elif export or _is_quotable(with_setting(environ, change.spelling.name, change.delivered)):
            included.append(change)
        else:
            reason = "shells and dotenv readers do not agree on a quoting of this value (--form export)"
            left.append(Left(knob=change.knob, value=change.value, reason=reason))
    variables, notes = _variables(included, environ)
    word = "export " if export else ""
    lines = [
        f"{word}{name}={shlex.quote(value) if export else _quoted(value)}\n"
        for name, value in variables.items()
    ]
    return Exported(
        text="".join(lines),
        data={"env": variables},
        included=tuple(change.knob for change in included),
        left=tuple(left),
        notes=notes,
    )


def _variables(
    included: Sequence[Change], environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    variables: dict[str, str] = {}
    notes: list[str] = []
    for change in included:
        if isinstance(change.spelling, Env):
            found = with_setting({**environ, **variables}, change.spelling.name, change.delivered)
            joined = [name for name, value in found.items() if value != change.delivered]
            notes += [f"{name} is joined with its value in this shell" for name in joined]
            variables |= found
    return variables, tuple(dict.fromkeys(notes))


def _is_quotable(variables: Mapping[str, str]) -> bool:
    """Return whether values need no quotes, or single quotes, in which no reader replaces anything."""
    return all(
        _PLAIN.fullmatch(value) or (value.isprintable() and not {"'", "\\"} & set(value))
        for value in variables.values()
    )


def _quoted(value: str) -> str:
    return value if value and _PLAIN.fullmatch(value) else f"'{value}'"
