"""best.yaml read and checked, and compared with the machine at hand."""

from __future__ import annotations

import ast
import keyword
import os
import re
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autotune.errors import UnknownKnob, UsageError, did_you_mean
from autotune.export.parts import MINOR, SCHEMA, BestConfig, ChangePart, Part, PickPart
from autotune.model.change import Change, Constant, Env, Flag, Keyword, Launcher, Patch
from autotune.model.distributed_launch import MOST_RANKS, is_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.model.change import Spelling
    from autotune.model.config import Value
    from autotune.model.facts import HostFacts


_MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OVERRIDE = r"[A-Za-z_]\w*([./@][A-Za-z_]\w*)*(?<!\.py)"
"""A word of Hydra or OmegaConf without its value: ``train.batch_size``."""
_OPTION = re.compile(rf"-[\w@%+:.,/-]+|{_OVERRIDE}")
_OTHER_OPTION = re.compile(rf"-\S+|{_OVERRIDE}")
_CONSTANT = re.compile(r"(?P<name>[\w.()=-]+)=(?P<was>'.*'|\".*\"|\S+) at (?P<file>.+):(?P<line>\d{1,9})")


def read_best(path: str | os.PathLike[str]) -> BestConfig:
    """Read and check a best.yaml.

    Raises:
        UsageError: It is missing, unreadable, or not of this schema.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            text = file.read(_MAX_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read {os.fspath(path)}: {reason}", hint="a search writes it: autotune search train.py"
        ) from error
    return parse(text, source=str(os.fspath(path)))


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a pipe without a writer is empty instead of blocking."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def parse(text: str, *, source: str) -> BestConfig:
    """Return the content of a best.yaml given as text; see `read_best`."""
    from autotune.config_files.yaml import load

    data = load(text, source=source, error=UsageError, max_bytes=_MAX_BYTES)
    if not isinstance(data, dict):
        raise UsageError(f"{source} is no best.yaml: it is not a mapping", hint="a search writes it")
    is_newer = _check_schema(data, source)
    return _validate(data, source, is_newer=is_newer)


def core_changes(pick: PickPart) -> tuple[Change, ...]:
    """Return the pick's changes as the launcher requires them.

    Raises:
        UsageError: A name is invalid. Names are written into commands and programs verbatim.
    """
    return tuple(_core_change(change) for change in pick.changes)


def differences(
    best: BestConfig, host: HostFacts, *, torch: str | None, script_sha256: str
) -> dict[str, str]:
    """Return the parts of the fingerprint that differ here: ``gpu``, ``torch``, ``script`` -> a sentence.

    Args:
        best: The file.
        host: This machine.
        torch: Version on this machine; None if unknown (another interpreter).
        script_sha256: Hash of the script about to run.
    """
    found: dict[str, str] = {}
    then, here = best.environment, sorted(device.name for device in host.devices)
    if sorted(then.gpu) != here:
        found["gpu"] = f"the device is {_names(here)}, the search ran on {_names(then.gpu)}"
    if torch is not None and then.torch and torch != then.torch:
        found["torch"] = f"torch is {torch or 'missing'}, the search ran with {then.torch}"
    if then.script_sha256 and script_sha256 != then.script_sha256:
        now, searched = (sha256[:8] for sha256 in (script_sha256, then.script_sha256))
        found["script"] = (
            "the script is not the one that was searched "
            f"(its SHA-256 begins {now}, that of the search {searched})"
        )
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "the CPU"


def _literal(text: str) -> Value | None:
    """Return the value that `Constant.text` shows; None if the text shows none."""
    from autotune.config_files.yaml import scalar

    if text in ("True", "False"):
        return text == "True"
    if text[0] not in "'\"":
        return scalar(text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, str) else None


def _core_change(part: ChangePart) -> Change:
    if part.how == "flag":
        others = all(_OTHER_OPTION.fullmatch(name) for name in part.also)
        _check_name(part, "option", is_one=_OPTION.fullmatch(part.spelling) is not None and others)
        spelling: Spelling = Flag((part.spelling, *part.also))
    elif part.how == "env":
        _check_name(part, "variable of an environment", is_one=_VARIABLE.fullmatch(part.spelling) is not None)
        spelling = Env(part.spelling)
    elif part.how == "keyword":
        target, _, name = part.spelling.rpartition(":")
        _check_name(part, "keyword argument", is_one=name.isidentifier() and not keyword.iskeyword(name))
        spelling = Keyword(target, name, part.defining_module)
    elif part.how == "constant":
        found = _CONSTANT.fullmatch(part.spelling)
        _check_name(part, "constant of a file", is_one=found is not None)
        assert found is not None
        was = _literal(found["was"])
        _check_name(part, "constant of a file", is_one=was is not None)
        assert was is not None
        spelling = Constant((found["name"],), file=found["file"], line=int(found["line"]), was=was)
    else:
        _check_known(part)
        spelling = Launcher() if part.how == "launcher" else Patch()
    return Change(
        knob=part.knob, value=part.value, spelling=spelling, delivered=part.delivered, site=part.site
    )


def _check_known(part: ChangePart) -> None:
    """Refuse a change inside the process unless a built-in or installed knob makes it."""
    from autotune.knobs.registry import builtin

    if part.knob not in (known := builtin()):
        hint = did_you_mean(part.knob, known) or "if a package provides this knob, install it here too"
        raise UnknownKnob(f'there is no knob "{part.knob}", which this pick changes', hint=hint)


def _check_name(part: ChangePart, what: str, *, is_one: bool) -> None:
    if not is_one:
        given = _short(" ".join([part.spelling, *part.also]))
        raise UsageError(
            f"the change of {part.knob} has the spelling {given}, which names no {what}",
            hint="correct it in best.yaml, or search again",
        )


def _check_schema(data: Mapping[str, Any], source: str) -> bool:
    """Return whether the file has a newer minor version; refuse another major one."""
    given = data.get("schema")
    match = re.fullmatch(r"autotune\.config/v(\d+)(?:\.(\d+))?", given) if isinstance(given, str) else None
    if match is None:
        near = next((key for key in data if did_you_mean(key, ["schema"])), None) if given is None else None
        hint = f'is "{near}" meant to be schema?' if near else "is this a file that autotune search wrote?"
        raise UsageError(f"{source}: schema is {given!r}, not {SCHEMA}", hint=hint)
    if match[1] != "1":
        raise UsageError(
            f"{source}: schema {given} is not one that this version reads ({SCHEMA})",
            hint="install the autotune that wrote it, or search again",
        )
    return int(match[2] or 0) > MINOR


def _validate(data: dict[str, Any], source: str, *, is_newer: bool) -> BestConfig:
    try:
        best = BestConfig.model_validate(data)
    except ValidationError as error:
        best = _without_unknown(data, error.errors(), source, is_newer=is_newer)
    _check_names(best, data, source)
    _check_launcher(best, source)
    return best


def _without_unknown(
    data: dict[str, Any], faults: Sequence[Any], source: str, *, is_newer: bool
) -> BestConfig:
    """Return the file without keys of a newer minor version; refuse it for any other fault."""
    unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    if is_newer and len(unknown) == len(faults):
        for location in unknown:
            _drop(data, location)
        return BestConfig.model_validate(data)
    # A misspelt key is missing as well: the unknown key is the more helpful of the two faults.
    raise _schema_error(next((f for f in faults if f["type"] == "extra_forbidden"), faults[0]), data, source)


def _check_names(best: BestConfig, data: dict[str, Any], source: str) -> None:
    """Refuse a misspelt knob of a pick, whose value would otherwise be ignored."""
    from autotune.config_files.yaml import line_at
    from autotune.knobs.registry import builtin

    changed = {change.knob for pick in best.picks.values() for change in pick.changes}
    known = {*builtin(), *best.baseline.knobs, *changed}
    for name, pick in best.picks.items():
        for knob in pick.knobs:
            if knob not in known and (hint := did_you_mean(knob, known)):
                where = f"{source}:{line_at(data, ('picks', name, 'knobs', knob))}"
                raise UnknownKnob(f'{where}: there is no knob "{knob}"', hint=hint)


def _check_launcher(best: BestConfig, source: str) -> None:
    """Refuse a launcher that no search writes: the file may come from an untrusted source."""
    launcher = best.study.launcher
    if launcher and not is_launcher(launcher):
        raise UsageError(
            f"{source}: study.launcher {_short(launcher)} is not a launcher of up to {MOST_RANKS} processes",
            hint="correct it in the file: torchrun --nproc-per-node 2",
        )


def _schema_error(fault: Any, data: dict[str, Any], source: str) -> UsageError:
    """Return the error for one fault, with its place and a hint."""
    from autotune.config_files.validation_errors import choices_of, wanted
    from autotune.config_files.yaml import line_at, steps

    location, kind = list(fault["loc"]), fault["type"]
    path = [part for part, _, _ in steps(data, location)]
    where = f"{source}:{line_at(data, location)}"
    if kind == "extra_forbidden":
        shown = ".".join(map(str, path))
        hint = did_you_mean(str(location[-1]), _field_names()) or "remove it"
        return UsageError(f'{where}: unknown key "{shown}"', hint=hint)
    if kind == "missing":
        shown = ".".join(map(str, (*path, location[-1])))
        return UsageError(
            f"{where}: {shown} is missing", hint="restore it from the file that the search wrote"
        )
    shown, found = ".".join(map(str, path)) or "the file", f"found {_short(fault.get('input'))}"
    if path[-2:-1] == ["knobs"]:
        # pydantic reports a fault for each type that the value may have.
        return UsageError(f"{where}: {shown}: expected text, a number, true or false", hint=found)
    guess = did_you_mean(str(fault.get("input")), choices_of(fault))
    return UsageError(f"{where}: {shown}: {wanted(fault)}", hint=f"{found}. {guess}" if guess else found)


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
