"""best.yaml read and checked, and compared with the machine at hand."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autotune.core.change import Change, Env, Flag, Keyword, Patch
from autotune.errors import UsageError, did_you_mean
from autotune.export.parts import MINOR, SCHEMA, BestConfig, ChangePart, Part, PickPart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.facts import HostFacts


_MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"-[\w@%+:.,/-]+")
_OTHER_OPTION = re.compile(r"-\S+")


def read_best(path: str | os.PathLike[str]) -> BestConfig:
    """Read and check a best.yaml.

    Raises:
        UsageError: It is missing, unreadable, or not of this schema.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read {os.fspath(path)}: {reason}", hint="a search writes it: autotune search"
        ) from error
    return parse(text, source=str(os.fspath(path)))


def parse(text: str, *, source: str) -> BestConfig:
    """The content of a best.yaml given as text; see `read_best`."""
    from autotune.edge.yaml import load

    data = load(text, source=source, error=UsageError, max_bytes=_MAX_BYTES)
    if not isinstance(data, dict):
        raise UsageError(f"{source} is no best.yaml: it holds no mapping", hint="a search writes it")
    is_newer = _check_schema(data, source)
    return _validate(data, source, is_newer=is_newer)


def core_changes(pick: PickPart) -> tuple[Change, ...]:
    """The pick's changes as the launcher wants them.

    Raises:
        UsageError: A name is none of its kind. Names are written into commands and programs as they are.
    """
    return tuple(_core_change(change) for change in pick.changes)


def differences(
    best: BestConfig, host: HostFacts, *, torch: str | None, script_sha256: str
) -> dict[str, str]:
    """Which parts of the fingerprint differ here: ``gpu``, ``torch``, ``script`` -> a sentence.

    Args:
        best: The file.
        host: This machine.
        torch: Version found here; None where it is not known (another interpreter).
        script_sha256: Of the script about to run.
    """
    found: dict[str, str] = {}
    then, here = best.environment, sorted(device.name for device in host.devices)
    if sorted(then.gpu) != here:
        found["gpu"] = f"the device is {_names(here)}, the search ran on {_names(then.gpu)}"
    if torch is not None and then.torch and torch != then.torch:
        found["torch"] = f"torch is {torch or 'missing'}, the search ran with {then.torch}"
    if then.script_sha256 and script_sha256 != then.script_sha256:
        found["script"] = "the script is not the one that was searched, byte for byte"
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "the CPU"


def _core_change(part: ChangePart) -> Change:
    if part.how == "flag":
        others = all(_OTHER_OPTION.fullmatch(name) for name in part.also)
        _check_name(part, "option", is_one=_OPTION.fullmatch(part.spelling) is not None and others)
        spelling: Flag | Env | Keyword | Patch = Flag((part.spelling, *part.also))
    elif part.how == "env":
        _check_name(part, "variable of an environment", is_one=_VARIABLE.fullmatch(part.spelling) is not None)
        spelling = Env(part.spelling)
    elif part.how == "keyword":
        target, _, name = part.spelling.rpartition(":")
        _check_name(part, "keyword argument", is_one=name.isidentifier() and not keyword.iskeyword(name))
        spelling = Keyword(target, name, part.defining_module)
    else:
        spelling = Patch()
    return Change(
        knob=part.knob, value=part.value, spelling=spelling, delivered=part.delivered, site=part.site
    )


def _check_name(part: ChangePart, what: str, *, is_one: bool) -> None:
    if not is_one:
        given = _short(" ".join([part.spelling, *part.also]))
        raise UsageError(
            f"the change of {part.knob} has the spelling {given}, which names no {what}",
            hint="mend it where the best.yaml lists the changes of this pick, or search again",
        )


def _check_schema(data: Mapping[str, Any], source: str) -> bool:
    """Whether the file is of a newer minor version; another major is refused."""
    given = data.get("schema")
    match = re.fullmatch(r"autotune\.config/v(\d+)(?:\.(\d+))?", given) if isinstance(given, str) else None
    if match is None:
        raise UsageError(
            f"{source}: schema is {given!r}, not {SCHEMA}", hint="is this a file that autotune search wrote?"
        )
    if match[1] != "1":
        raise UsageError(
            f"{source}: schema {given} is not one that this version reads ({SCHEMA})",
            hint="install the autotune that wrote it, or search again",
        )
    return int(match[2] or 0) > MINOR


def _validate(data: dict[str, Any], source: str, *, is_newer: bool) -> BestConfig:
    try:
        return BestConfig.model_validate(data)
    except ValidationError as error:
        faults = error.errors()
    unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    if is_newer and len(unknown) == len(faults):
        for location in unknown:
            _drop(data, location)
        return BestConfig.model_validate(data)
    fault = faults[0]
    where = ".".join(str(part) for part in fault["loc"] if part != "[key]")
    if fault["type"] == "extra_forbidden":
        hint = did_you_mean(str(fault["loc"][-1]), _field_names())
        raise UsageError(f'{source}: unknown key "{where}"', hint=hint)
    raise UsageError(
        f"{source}: {where or 'the file'}: {fault['msg']}", hint=f"found {_short(fault.get('input'))}"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _drop(data: Any, location: tuple[int | str, ...]) -> None:
    for part in location[:-1]:
        data = data[part]
    del data[location[-1]]


def _field_names() -> list[str]:
    names: list[str] = []
    for part in [*Part.__subclasses__()]:
        names += [field.alias or name for name, field in part.model_fields.items()]
    return names
