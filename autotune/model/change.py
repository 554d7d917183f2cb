"""Delivery of one value to a script: data, rendered and applied elsewhere. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from autotune.model.config import Value

_QUOTED: Final = re.compile(
    r"|True|False|true|false|null|None|~|[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|['\"].*|.*\s.*", re.DOTALL
)
"""Texts that are shown in quotes, as they would read as another value."""


@dataclass(frozen=True, slots=True)
class Flag:
    """An option on the command line that the script itself already has.

    Args:
        names: Possible spellings among the script's own options, best first
            (``--batch-size``, ``--batch_size``). A spelling that the script lacks is not used. In a `Change`,
            the spelling in use comes first, then the option's other spellings, so that a value on the user's
            command line can be replaced in any spelling.
    """

    names: tuple[str, ...]

    @property
    def how(self) -> str:
        return "flag"

    @property
    def text(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Env:
    """An environment variable of the training process."""

    name: str

    @property
    def how(self) -> str:
        return "env"

    @property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword argument of a callable named by dotted path.

    Args:
        target: Public path of the callable, ``torch.utils.data.DataLoader``.
        name: The keyword.
        defining_module: The module whose import makes the target wrappable; the part of
            ``target`` before the last dot where empty.
    """

    target: str
    name: str
    defining_module: str = ""

    @property
    def how(self) -> str:
        return "keyword"

    @property
    def text(self) -> str:
        return f"{self.target}:{self.name}"


@dataclass(frozen=True, slots=True)
class Patch:
    """Reversible change by autotune's code in the training process; the knob's own `patch()`."""

    @property
    def how(self) -> str:
        return "patch"

    @property
    def text(self) -> str:
        return "in-process patch"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value written in the user's own source, replaced as the file is compiled; the file itself stays.

    Args:
        names: What such a value is called, best first, whatever its case. In a `Change` the whole name of the
            one that is meant, as `autotune.source.constants` has it.
        file: Of a `Change`: as it lies relative to the folder of the script.
        line: Where it is written.
        was: What is written there.
    """

    names: tuple[str, ...]
    file: str = ""
    line: int = 0
    was: Value = 0

    @property
    def how(self) -> str:
        return "constant"

    @property
    def text(self) -> str:
        if not self.file:
            return self.names[0]
        return f"{self.names[0]}={_notation(self.was)} at {self.file}:{self.line}"


def _notation(value: Value) -> str:
    """Return a value as text; a word is quoted only if it would read as a number or a switch."""
    return repr(value) if isinstance(value, str) and _QUOTED.fullmatch(value) else str(value)


@dataclass(frozen=True, slots=True)
class Launcher:
    """The number of processes that the command's launcher starts: ``torchrun --nproc-per-node``."""

    @property
    def how(self) -> str:
        return "launcher"

    @property
    def text(self) -> str:
        return "number of processes"


Spelling = Flag | Env | Keyword | Patch | Constant | Launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob, one value, one delivery.

    Args:
        knob: Name of the knob.
        value: The requested value.
        spelling: Its delivery. The first name of a `Flag` here is the script's own.
        delivered: The text passed for `Flag` and `Env` (``"64"``), and the new text of a `Constant` if it
            differs from the value (``"float16"``); empty for a switch option and other deliveries.
        site: ``file.py:124`` of the call that a keyword or patch relies on, if known; for an option or a
            constant, where the value must show in the process (`InputFacts.place`).
    """

    knob: str
    value: Value
    spelling: Spelling
    delivered: str = ""
    site: str = ""

    @property
    def literal(self) -> Value:
        """Return the text written in place of a constant."""
        if not self.delivered or not isinstance(self.spelling, Constant):
            return self.value
        return self.delivered == "True" if isinstance(self.spelling.was, bool) else self.delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A knob that is not varied for this script, with the reason as a sentence."""

    knob: str
    reason: str
