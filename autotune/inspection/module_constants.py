"""Constants in the user's source with names that knobs use. Parsed, never run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.inspection.sources import sources
from autotune.knobs.registry import builtin
from autotune.model.change import Constant
from autotune.model.facts import ScriptConstant
from autotune.source.constants import key_of, named_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value


def knobs_by_key() -> dict[str, str]:
    """Return key of a replaceable constant -> knob."""
    spellings = ((name, spelling) for name, knob in builtin().items() for spelling in knob.spellings)
    return {
        key_of(name): knob
        for knob, spelling in spellings
        if isinstance(spelling, Constant)
        for name in spelling.names
    }


def named_by_user(sets: Sequence[str], path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Convert values for a constant of the script (``CONFIG.batch_size=16,32``) to values for its knob.

    Args:
        sets: In the syntax of ``--set``.
        path: Path of the script.

    Returns:
        The same with the names of knobs in place of those of constants, and these constants.
    """
    known = {constant.name for constant in script_constants(path)} - set(builtin())
    texts, chosen = list[str](), list[str]()
    for text in sets:
        name, equals, values = text.partition("=")
        is_constant = bool(equals) and name.strip() in known
        chosen += [name.strip()] if is_constant else []
        texts.append(f"{knobs_by_key()[key_of(name.strip())]}={values}" if is_constant else text)
    return tuple(texts), tuple(chosen)


def script_constants(path: str, chosen: Sequence[str] = ()) -> tuple[ScriptConstant, ...]:
    """Return the constants of a script and of its own modules that a knob may replace.

    Args:
        path: Path of the script. One that is unreadable, or not Python, has none.
        chosen: Names that the user has selected.
    """
    script, keys, knobs = Path(path), knobs_by_key(), builtin()
    return tuple(
        ScriptConstant(
            name=found.name,
            file=os.path.relpath(file, script.parent),
            line=found.node.lineno,
            value=found.value,
            times=found.times,
            is_chosen=found.name in chosen,
        )
        for file, tree in sources(script)
        for found in named_values(tree, is_script=file == script)
        if found.key in keys and _is_setting(found.value, ordinal=knobs[keys[found.key]].ordinal)
    )


def _is_setting(value: Value, *, ordinal: bool) -> bool:
    """Return whether a knob's value may be written so: integers for numbers, else a word or a switch."""
    if ordinal:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, (bool, str))
