"""Search space files, ``autotune.space/v1``: which knobs a search varies, and over which values.

A file selects and narrows knobs; conditions and ties live in the knobs. Three options narrow
further: ``--set NAME=VALUES``, ``--fix NAME=VALUE``, ``--knob NAME``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from autotune.core.config import Value
from autotune.core.study import SpaceRequest
from autotune.edge.yaml import MAX_BYTES, Items, Lines, load, scalar
from autotune.errors import InvalidSpace, UnknownKnob, UsageError, did_you_mean
from autotune.knobs.registry import builtin

SCHEMA: Final = "autotune.space/v1"
AUTO: Final = "auto"
"""In place of a list: the knob's own values for the script at hand."""

_MAX_VALUES: Final = 1000
_MAX_EXTENDS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NOT_YET: Final = {
    "declare": "declaring knobs of your own in a space file is not supported by this version",
    "objectives": "objectives are not set in a space file by this version",
    "constraints": "constraints are not set in a space file by this version; use --max-memory",
}


def _plain(value: object) -> object:
    if isinstance(value, (bool, int, float, str)):
        return value
    message = "a value has to be text, a number, true or false"
    raise ValueError(message)


PlainValue = Annotated[Value, BeforeValidator(_plain)]


class Range(BaseModel):
    """Whole numbers from `low` to `high`, both included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: int
    high: int
    step: int = Field(default=1, ge=1)

    def values(self) -> tuple[int, ...]:
        """Every number of the range, ascending."""
        return tuple(range(self.low, self.high + 1, self.step))


class SpaceFile(BaseModel):
    """One search space file as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["autotune.space/v1"] = Field(alias="schema")
    name: str = Field(
        default="", pattern=r"^[A-Za-z0-9_-]*$", description="Shown in results; the file's name where absent."
    )
    description: str = Field(default="", description="When to use it, in one line.")
    extends: str = Field(default="", description="A preset's name, or a path relative to this file.")
    knobs: dict[str, list[PlainValue] | Literal["auto"] | Range | None] = Field(
        default_factory=dict,
        description="By expected gain: values, auto, a range, or null to drop an inherited knob.",
    )
    allowed_only: dict[str, list[PlainValue]] = Field(
        default_factory=dict, description="Knobs that change training; ignored unless allowed by name."
    )
    start: list[dict[str, PlainValue]] | None = Field(
        default=None, description="Configurations to try first."
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A search space file that exists."""

    name: str
    path: Path
    origin: str


@dataclass(slots=True)
class _Space:
    """A file with everything it inherits."""

    name: str
    source: str
    description: str = ""
    knobs: dict[str, tuple[Value, ...]] = field(default_factory=dict[str, tuple[Value, ...]])
    starts: tuple[Mapping[str, Value], ...] = ()
    notes: list[str] = field(default_factory=list[str])


def load_space(
    name_or_path: str,
    *,
    cwd: str,
    sets: Sequence[str] = (),
    fixes: Sequence[str] = (),
    only: Sequence[str] = (),
) -> SpaceRequest:
    """What the user asked to vary.

    Args:
        name_or_path: A preset's name, or a file (anything with a slash or ending in .yaml).
        cwd: Where relative paths and ``./search_spaces`` are looked up.
        sets: ``num_workers=2,4``: narrow a knob, or add it.
        fixes: ``precision=bf16``: pin a knob.
        only: Names: vary these alone, and those of `sets` and `fixes`.

    Raises:
        InvalidSpace: No such file, or it is malformed; with the line.
        UnknownKnob: A name that is no knob.
        UsageError: `sets` or `fixes` contradict themselves.
    """
    space = _inherited(locate(name_or_path, cwd=cwd), chain=())
    knobs, narrowed, fixed = dict(space.knobs), _sets(sets), _fixes(fixes)
    both = sorted(set(narrowed) & set(fixed))
    if both:
        raise UsageError(f"{both[0]} is both set and fixed", hint="Leave one of --set and --fix out.")
    if only:
        for name in only:
            _check_knob(name, "--knob")
        knobs = {name: knobs.get(name, ()) for name in dict.fromkeys(only)}
    knobs |= narrowed
    return SpaceRequest(
        name=space.name,
        knobs={name: values for name, values in knobs.items() if name not in fixed},
        starts=space.starts,
        fixed=fixed,
        source=space.source,
        notes=tuple(space.notes),
    )


def read_space(path: Path) -> SpaceFile:
    """One file as it is written, validated, without what it inherits.

    Raises:
        InvalidSpace: It cannot be read, or is malformed; with the line.
        UnknownKnob: It names a knob that does not exist.
    """
    source = _shown(path)
    data = load(_text(path), source=source)
    if not isinstance(data, Lines):
        raise InvalidSpace(f"{source} holds no mapping", hint=f"Begin it with: schema: {SCHEMA}")
    _check_keys(data, source)
    _check_schema(data, source)
    try:
        file = SpaceFile.model_validate(data)
    except ValidationError as error:
        raise _first_error(error, data, source) from None
    _check_names(file, data, source)
    return file


def find_spaces(*, cwd: str) -> tuple[Found, ...]:
    """Every space that a name reaches from here; a nearer one hides a farther one of its name."""
    found: dict[str, Found] = {}
    for folder, origin in _folders(cwd):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, Found(path.stem, path, origin))
    return tuple(found.values())


def locate(name_or_path: str, *, cwd: str) -> Path:
    """The file that a name or a path means.

    Raises:
        InvalidSpace: There is none.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(cwd, Path(name_or_path).expanduser())
        if not path.is_file():
            raise InvalidSpace(f"there is no file {name_or_path}", hint="Presets are named without .yaml.")
        return path
    if _NAME.fullmatch(name_or_path):
        for folder, _ in _folders(cwd):
            path = folder / f"{name_or_path}.yaml"
            if path.is_file():
                return path
    known = [space.name for space in find_spaces(cwd=cwd)]
    hint = did_you_mean(name_or_path, known) or f"Known are: {', '.join(known)}."
    raise InvalidSpace(f'there is no search space "{name_or_path}"', hint=hint)


def _folders(cwd: str) -> Iterator[tuple[Path, str]]:
    """Where names are looked up, nearest first."""
    package = Path(__file__).resolve().parents[1]
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    yield Path(cwd, "search_spaces"), "here"
    yield config / "autotune" / "search_spaces", "yours"
    yield package / "search_spaces", "built-in"
    yield package.parent / "search_spaces", "built-in"


def _shown(path: Path) -> str:
    return path.name


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSpace(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InvalidSpace(f"{path} is larger than {MAX_BYTES >> 20} MiB", hint="A space has some kilobytes.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSpace(f"{path} is not UTF-8 text") from error


def _inherited(path: Path, *, chain: tuple[Path, ...]) -> _Space:
    resolved = path.resolve()
    if resolved in chain or len(chain) >= _MAX_EXTENDS:
        names = " -> ".join(p.name for p in (*chain, resolved))
        raise InvalidSpace(f"{_shown(path)} extends itself or too many others: {names}")
    file = read_space(path)
    space = _Space(name="", source="")
    if file.extends:
        parent = (
            locate(file.extends, cwd=str(path.parent))
            if _is_path(file.extends)
            else _named(file.extends, path)
        )
        space = _inherited(parent, chain=(*chain, resolved))
    space.name, space.source = file.name or path.stem, _shown(path)
    space.description = file.description or space.description
    for knob, entry in file.knobs.items():
        if entry is None:
            space.knobs.pop(knob, None)
        else:
            space.knobs[knob] = _values(entry)
    if file.start is not None:
        space.starts = tuple(dict(start) for start in file.start)
    for knob in file.allowed_only:
        space.notes.append(
            f"{space.source}: {knob} changes training and is left out unless it is allowed by name."
        )
    return space


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def _named(name: str, child: Path) -> Path:
    """The preset a file extends, looked up from where the file lies; never the file itself."""
    for folder, _ in (*_folders(str(child.parent)), (child.parent, "beside")):
        path = folder / f"{name}.yaml"
        if _NAME.fullmatch(name) and path.is_file() and path.resolve() != child.resolve():
            return path
    known = [space.name for space in find_spaces(cwd=str(child.parent))]
    hint = did_you_mean(name, known) or f"Known are: {', '.join(known)}."
    raise InvalidSpace(f'{_shown(child)}: extends "{name}", which does not exist', hint=hint)


def _values(entry: list[Value] | str | Range) -> tuple[Value, ...]:
    if isinstance(entry, Range):
        return tuple(entry.values())
    return () if isinstance(entry, str) else tuple(entry)


def _check_keys(data: Lines, source: str) -> None:
    known = [f.alias or name for name, f in SpaceFile.model_fields.items()]
    for key, line in data.lines.items():
        if key in _NOT_YET:
            raise InvalidSpace(f"{source}:{line}: {_NOT_YET[key]}", hint=f"Remove {key}.")
        if key not in known:
            hint = did_you_mean(key, known) or f"Known are: {', '.join(known)}."
            raise InvalidSpace(f'{source}:{line}: unknown key "{key}"', hint=hint)


def _check_schema(data: Lines, source: str) -> None:
    schema = data.get("schema")
    if schema == SCHEMA:
        return
    where = f"{source}:{data.lines['schema']}" if "schema" in data.lines else source
    found = "no schema is given" if schema is None else f'schema "{schema}" is not known'
    raise InvalidSpace(f"{where}: {found}", hint=f"Write: schema: {SCHEMA}")


def _check_names(file: SpaceFile, data: Lines, source: str) -> None:
    for knob, entry in file.knobs.items():
        where = f"{source}:{_line(data, ('knobs', knob))}"
        _check_knob(knob, where)
        if (
            isinstance(entry, Range)
            and not 0 < len(range(entry.low, entry.high + 1, entry.step)) <= _MAX_VALUES
        ):
            raise InvalidSpace(f"{where}: {knob} has to have 1 to {_MAX_VALUES} values from low to high")
        if isinstance(entry, list) and len(entry) > _MAX_VALUES:
            raise InvalidSpace(f"{where}: {knob} has more than {_MAX_VALUES} values")
    for index, start in enumerate(file.start or ()):
        for knob in start:
            _check_knob(knob, f"{source}:{_line(data, ('start', index, knob))}")


def _check_knob(name: str, where: str) -> None:
    known = builtin()
    if name not in known:
        hint = did_you_mean(name, known) or "`autotune inspect --knobs` lists them all."
        raise UnknownKnob(f'{where}: there is no knob "{name}"', hint=hint)


def _line(data: Any, path: Sequence[str | int]) -> int:
    """The line of the deepest part of a path that exists."""
    lines: list[int] = [getattr(data, "line", 1), *(line for _, line, _ in _steps(data, path))]
    return lines[-1]


def _steps(data: Any, path: Sequence[str | int]) -> Iterator[tuple[str | int, int, Any]]:
    """Parts of a path that name something in the file, with line and value; others are skipped.

    pydantic's locations hold names of types beside those of keys.
    """
    here = data
    for part in path:
        found = _step(here, part)
        if found is not None:
            line, here = found
            yield part, line, here


def _step(data: Any, part: str | int) -> tuple[int, Any] | None:
    """Line and value of one part, where it exists."""
    if isinstance(data, Lines) and isinstance(part, str) and part in data:
        return data.lines[part], data[part]
    if isinstance(data, Items) and isinstance(part, int) and part < len(data):
        return data.lines[part], data[part]
    return None


def _first_error(error: ValidationError, data: Lines, source: str) -> InvalidSpace:
    first = error.errors(include_url=False)[0]
    path = list(first["loc"])
    shown = ".".join(str(part) for part, _, _ in _steps(data, path))
    message = first["msg"].removeprefix("Value error, ")
    if path[:1] == ["knobs"]:
        message = "an entry is a list of values, auto, {low, high, step} or null"
    return InvalidSpace(f"{source}:{_line(data, path)}: {shown or 'the file'}: {message}")


def _sets(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, value_text = _pair(text, "--set", found)
        found[name] = tuple(_value(part, "--set", text) for part in value_text.split(","))
    return found


def _fixes(texts: Sequence[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for text in texts:
        name, value_text = _pair(text, "--fix", found)
        if "," in value_text:
            raise UsageError(f'--fix "{text}" gives several values', hint=f'Say --set "{text}".')
        found[name] = _value(value_text, "--fix", text)
    return found


def _pair(text: str, option: str, earlier: Mapping[str, object]) -> tuple[str, str]:
    name, equals, value_text = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError(f'{option} "{text}" has no value', hint=f"Write: {option} num_workers=4")
    _check_knob(name, option)
    if name in earlier:
        raise UsageError(f"{option} names {name} twice", hint=f"Give its values in one {option}.")
    return name, value_text


def _value(text: str, option: str, whole: str) -> Value:
    value = scalar(text.strip())
    if value is None:
        raise UsageError(f'{option} "{whole}" has an empty value', hint=f"Write: {option} num_workers=4")
    return value
