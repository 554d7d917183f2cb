"""Observed value of each knob in this process, computed from its state and not from the requested value."""

from __future__ import annotations

import itertools
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Knob
from autotune.model.change import Env, Flag, Keyword
from autotune.model.environment_variables import contains_setting
from autotune.model.measurement import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.trial.actuators.patches import TrialPatches
    from autotune.trial.runtime.state import RuntimeState


DELIVERED = "Delivered; its effect is not read."
"""Message for user-declared knobs, whose effect only the script can observe."""


class Readings:
    """Status of every requested knob, and the values of all observable knobs."""

    def __init__(self, changes: Sequence[Change], knobs: Mapping[str, Knob], state: RuntimeState) -> None:
        self._changes = changes
        self._knobs = knobs
        self._state = state
        self.patches: TrialPatches | None = None
        self.delivered: dict[tuple[str, str], Value] = {}
        """(target, keyword) -> value in the wrapped callable's actual call."""
        self.requested: dict[str, Value] = {}
        """Values requested by the search, for names read through `autotune.sdk.value`."""
        self.handed: dict[str, Value] = {}
        """All values returned by it, including the script's own if no other was requested."""
        self.doubt: Callable[[str], str] = _no_doubt
        """Returns why a value taken under a name has no effect, as a sentence; may be empty."""

    def found(self, name: str) -> Value | None:
        """Return the knob's value in the running process; None if it cannot be read (yet)."""
        knob = self._knobs.get(name)
        if knob is None or self.patches is None:
            return None
        try:
            return knob.seen(self.patches)
        except Exception as error:
            self._state.faults.note(f"seen:{name}", error)
            return None

    def values(self) -> dict[str, Value]:
        """Return the values of all observable knobs, including those that the script set itself."""
        pairs = ((name, self.found(name)) for name in self._knobs)
        taken = {name: value for name, value in self.handed.items() if name not in self._knobs}
        return {**{name: value for name, value in pairs if value is not None}, **taken}

    def compute(self) -> tuple[Reading, ...]:
        """Return one reading per requested knob, then the others."""
        requested = tuple(self._of(change) for change in self._changes)
        names = {reading.knob for reading in requested}
        rest = (
            Reading(knob=name, wanted=None, found=value, status="asis")
            for name, value in self.values().items()
            if name not in names
        )
        return (*requested, *rest)

    def _of(self, change: Change) -> Reading:
        knob = self._knobs.get(change.knob)
        readable = knob is not None and type(knob).seen is not Knob.seen
        found = self.found(change.knob) if readable else self._delivered(change)
        if found is not None and same(found, change.value):
            note = "" if readable else DELIVERED
            return Reading(knob=change.knob, wanted=change.value, found=found, status="applied", reason=note)
        reason = self._state.refusals.get(change.knob, "")
        if found is None and not reason and self._state.faults.off:
            reason = (
                f"Observing the script failed at {', '.join(sorted(self._state.faults.off))}; see faults.log."
            )
        if found is None and not reason:
            return Reading(
                knob=change.knob,
                wanted=change.value,
                found=None,
                status="not_reached",
                reason=f"The run did not reach the place where {change.knob} takes effect.",
            )
        spelling = change.spelling
        if (
            not reason
            and isinstance(spelling, Env)
            and not contains_setting(os.environ, spelling.name, change.delivered)
        ):
            reason = f"The script sets {spelling.name} itself: requested {change.value}, found {found}."
        reason = reason or f"Requested {change.value}, found {found}{_multiple(change, found)}."
        return Reading(knob=change.knob, wanted=change.value, found=found, status="refused", reason=reason)

    def _delivered(self, change: Change) -> Value | None:
        spelling = change.spelling
        if change.knob in self.requested:
            reason = self.doubt(change.knob)
            if reason:
                self._state.refusals[change.knob] = reason
            return None if reason else self.requested[change.knob]
        if isinstance(spelling, Env):
            return change.value if contains_setting(os.environ, spelling.name, change.delivered) else None
        if isinstance(spelling, Flag):
            return change.value if self._in_argv(spelling.names[0], change.delivered) else None
        if isinstance(spelling, Keyword):
            return self.delivered.get((spelling.target, spelling.name))
        return None

    @staticmethod
    def _in_argv(name: str, text: str) -> bool:
        argv = sys.argv[1:]
        if not text:
            return name in argv
        pairs = itertools.pairwise(argv)
        return f"{name}={text}" in argv or any(a == name and b == text for a, b in pairs)


def _multiple(change: Change, found: Value | None) -> str:
    """Return how many times the script's own option is in force, as the end of a sentence; may be empty."""
    spelling, passed = change.spelling, change.delivered
    if not isinstance(spelling, Flag) or not passed.isdecimal() or type(found) is not int:
        return ""
    times, rest = divmod(found, max(1, int(passed)))
    if rest or times < 2:
        return ""
    option = spelling.names[0]
    text = f": the script uses {times} times its {option}, as for one of several loaders"
    if type(change.value) is int and change.value % times == 0:
        text += f". {option} {change.value // times} would be {change.value}; a new search passes that"
    return text


def _no_doubt(_name: str) -> str:
    return ""


def same(found: Any, wanted: Any) -> bool:
    """Return whether two settings are equal: 1 and 1.0 are, True and 1 are not; strings literally."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted or str(found).lower() == str(wanted).lower()
    if isinstance(found, (int, float)) and isinstance(wanted, (int, float)):
        return math.isclose(found, wanted, rel_tol=1e-9)
    return str(found) == str(wanted)
