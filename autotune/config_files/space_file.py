"""One search space file: its structure, and all its errors, by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from autotune.config_files.memory import memory_bytes
from autotune.config_files.validation_errors import wanted
from autotune.config_files.yaml import MAX_BYTES, LocatedDict, LocatedList, line_at, load, steps
from autotune.errors import InvalidSpace, UnknownKnob, UsageError, did_you_mean
from autotune.knobs.declared import SDK_VALUE, declared_knob, refuse_powerful
from autotune.knobs.registry import builtin, needs_permission
from autotune.knobs.vocabulary import meaningless, words
from autotune.model.change import Env, Flag, Keyword
from autotune.model.config import Value
from autotune.model.effect import Effect
from autotune.model.study import DeclaredSpec
from autotune.text.redact import is_secret_name, redact

if TYPE_CHECKING:
    from autotune.knobs.base import Knob

SCHEMA: Final = "autotune.space/v1"
AUTO: Final = "auto"
"""In place of a list: the knob's own values for the script at hand."""

_MAX_VALUES: Final = 1000
_NOT_YET: Final = {"objectives": "objectives are not set in a space file by this version"}
_WAYS: Final = ("flag", "env", "keyword")
_SDK: Final = (SDK_VALUE, "autotune.value")
_EFFECTS: Final = ("EXACT", "NUMERIC", "TRAINING")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_OURS: Final = frozenset(
    {
        *("TMPDIR", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"),
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    }
)
"""Variables that each trial gets from us: caches and folders of its own, the devices that it has."""
_SPELLED: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "flag": (re.compile(r"--?[A-Za-z0-9][A-Za-z0-9_.-]*"), 'an option of the script: "--fused-loss"'),
    "env": (re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), "a variable of the environment: NCCL_ALGO"),
    "keyword": (
        re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+:[A-Za-z_]\w*", re.ASCII),
        "a callable's path and its keyword: torch.optim.AdamW:foreach",
    ),
}


def _plain(value: object) -> object:
    if isinstance(value, (bool, int, float, str)):
        return value
    message = "a value has to be text, a number, true or false"
    raise ValueError(message)


def _amount(value: object) -> object:
    if isinstance(value, str):
        try:
            memory_bytes(value, total_bytes=1)
        except UsageError as error:
            raise ValueError(error.message) from None
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        message = "a number is a share of the memory, above 0 and at most 1; an amount is text: 6GiB"
        raise ValueError(message)
    return float(value)


PlainValue = Annotated[Value, BeforeValidator(_plain)]
PlainValues = Annotated[list[PlainValue], Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Range(_Part):
    """Whole numbers from `low` to `high`, both included."""

    # A number too long for one is text, which pydantic would make a number of again.
    low: int = Field(strict=True)
    high: int = Field(strict=True)
    step: int = Field(default=1, ge=1, strict=True)

    def values(self) -> tuple[int, ...]:
        """Every number of the range, ascending; of one that is too long, one more than are allowed."""
        return tuple(range(self.low, self.high + 1, self.step)[: _MAX_VALUES + 1])


class DeclareEntry(_Part):
    """A knob of the user's own: an option of the script, a variable, or a keyword argument."""

    name: str = Field(description="Lower case letters, digits and _; no built-in knob's.")
    effect: Literal["EXACT", "NUMERIC", "TRAINING"] = Field(
        description="What it does to the training: nothing, other rounding, something else. No default."
    )
    values: list[PlainValue] | Range = Field(description="Values to try, passed as written.")
    flag: str = Field(default="", description="An option that the script has.")
    env: str = Field(default="", description="A variable of the environment.")
    keyword: str = Field(default="", description="path.of.callable:keyword")
    help: str = Field(default="", description="Description in one line.")

    def spec(self) -> DeclaredSpec:
        """Return the same as data for the study."""
        values = self.values.values() if isinstance(self.values, Range) else tuple(self.values)
        target, _, keyword = self.keyword.rpartition(":")
        target = SDK_VALUE if target in _SDK else target
        spelling = (
            Flag((self.flag,)) if self.flag else Env(self.env) if self.env else Keyword(target, keyword)
        )
        return DeclaredSpec(
            name=self.name, effect=Effect[self.effect], values=values, spelling=spelling, help=self.help
        )


class MemoryConstraint(_Part):
    """An upper bound on peak memory."""

    at_most: Annotated[float | str, BeforeValidator(_amount)] = Field(
        description="A share of the device's memory (0.92), or an amount (6GiB)."
    )

    def bound(self) -> tuple[int | None, float | None]:
        """Bytes, or a share; one of them."""
        if not isinstance(self.at_most, str):
            return None, float(self.at_most)
        text = "".join(self.at_most.split())
        return (None, float(text[:-1]) / 100) if text.endswith("%") else (memory_bytes(text), None)


class Constraints(_Part):
    """Constraints on recommended configurations."""

    peak_memory: MemoryConstraint


class SpaceFile(_Part):
    """Contents of one search space file."""

    schema_: Literal["autotune.space/v1"] = Field(alias="schema")
    name: str = Field(
        default="", pattern=r"^[A-Za-z0-9_-]*$", description="Shown in results; the file's name where absent."
    )
    description: str = Field(default="", description="When to use it, in one line.")
    extends: str = Field(default="", description="A preset's name, or a path relative to this file.")
    knobs: dict[str, PlainValues | Literal["auto"] | Range | None] = Field(
        default_factory=dict,
        description="By expected gain: values, auto, a range, or null to drop an inherited knob.",
    )
    allowed_only: dict[str, PlainValues | Literal["auto"] | Range | None] = Field(
        default_factory=dict,
        description="Knobs that change the training; --allow lets them in.",
    )
    declare: list[DeclareEntry] = Field(
        default_factory=list[DeclareEntry], description="Knobs of your own, searched like the others."
    )
    constraints: Constraints | None = Field(default=None, description="Bounds; the same as --max-memory.")
    start: list[dict[str, PlainValue]] | None = Field(
        default=None, description="Configurations to try first."
    )


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was read.

    Args:
        source: Its name, for messages.
        data: With the line of every key; None where it is not a mapping.
        file: None where its shape is wrong.
        problems: What is wrong with its shape.
    """

    source: str
    data: LocatedDict | None
    file: SpaceFile | None
    problems: tuple[UsageError, ...]

    def place(self, *path: str | int) -> str:
        """``mine.yaml:12``, for the deepest part of this path that exists."""
        return f"{self.source}:{line_at(self.data, path)}"

    @property
    def parent(self) -> str:
        """Name of the file that it extends, empty for none."""
        named = None if self.data is None else self.data.get("extends")
        return named if isinstance(named, str) else ""


def read(path: Path) -> Written:
    """Return the file, and all errors of its structure; names of knobs are checked by `name_problems`."""
    source = path.name
    try:
        data = load(_text(path), source=source)
        if not isinstance(data, LocatedDict):
            raise InvalidSpace(f"{source} is not a mapping", hint=f"Begin it with: schema: {SCHEMA}")
    except UsageError as error:
        return Written(source, None, None, (error,))
    problems = [*_key_problems(data, source), *_schema_problems(data, source)]
    file: SpaceFile | None = None
    try:
        file = SpaceFile.model_validate(data)
    except ValidationError as error:
        problems += _shape_problems(error, data, source)
    return Written(source, data, None if problems else file, tuple(sorted(problems, key=_by_line)))


def name_problems(written: Written, inherited: Mapping[str, DeclaredSpec]) -> list[UsageError]:
    """Return errors for unknown or misplaced knobs, and for invalid declarations.

    Args:
        written: The file.
        inherited: Knobs that the files it extends declare.
    """
    data = written.data
    if data is None:
        return []
    found = [*_declare_problems(written, data)]
    declared = {**inherited, **declared_in(written)}
    names = {*declared, *_declared_names(data)}
    for section in ("knobs", "allowed_only"):
        entries = data.get(section)
        for knob, entry in entries.items() if isinstance(entries, LocatedDict) else ():
            where = written.place(section, knob)
            found += _unknown(knob, where, names) or _entry_problems(entry, knob, where, declared)
            if section == "allowed_only" and entry is not None:
                found += _permission_problems(knob, where, declared)
    starts = data.get("start")
    for index, start in enumerate(starts if isinstance(starts, LocatedList) else ()):
        for knob, value in start.items() if isinstance(start, LocatedDict) else ():
            where = written.place("start", index, knob)
            found += _unknown(knob, where, names) or _value_problems([value], knob, where, declared)
    return sorted(found, key=_by_line)


def declared_in(written: Written) -> dict[str, DeclaredSpec]:
    """Return the knobs that a valid file declares."""
    return {} if written.file is None else {entry.name: entry.spec() for entry in written.file.declare}


def is_locked(name: str, declared: Mapping[str, DeclaredSpec]) -> bool:
    """Return whether a knob takes part only if it is allowed by name."""
    spec, knob = declared.get(name), builtin().get(name)
    if spec is not None:
        return spec.effect is Effect.TRAINING
    return knob is not None and needs_permission(knob)


def values_of(entry: Sequence[Value] | str | Range) -> tuple[Value, ...]:
    """Return an entry's values; empty for the knob's own."""
    if isinstance(entry, Range):
        return tuple(entry.values())
    return () if isinstance(entry, str) else tuple(entry)


def undeclared(spec: DeclaredSpec, values: Sequence[Value]) -> list[Value]:
    """Return the values that a declaration does not contain."""
    knob = declared_knob(spec)
    return [v for v in values if v != "asis" and not knob.holds(v)]


def unknown_knob(name: str, where: str, known: Sequence[str]) -> UnknownKnob:
    """Return the error for an unknown knob."""
    hint = did_you_mean(name, known) or "`autotune inspect --knobs` lists them all."
    return UnknownKnob(f'{where}: there is no knob "{name}"', hint=hint)


# The file ------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSpace(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InvalidSpace(f"{path} is larger than {MAX_BYTES >> 10} KiB", hint="A space has some kilobytes.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSpace(f"{path} is not UTF-8 text") from error


def _by_line(error: UsageError) -> int:
    match = re.match(r"[^:]*:(\d+):", error.message)
    return int(match[1]) if match else 0


# Shape ---------------------------------------------------------------------------------------


def _fields(model: type[BaseModel]) -> list[str]:
    return [f.alias or name for name, f in model.model_fields.items()]


def _key_problems(data: LocatedDict, source: str) -> Iterator[UsageError]:
    known = _fields(SpaceFile)
    for key, line in data.lines.items():
        if key in _NOT_YET:
            yield InvalidSpace(f"{source}:{line}: {_NOT_YET[key]}", hint=f"Remove {key}.")
        elif key not in known:
            hint = did_you_mean(key, known) or f"Known are: {', '.join(known)}."
            yield InvalidSpace(f'{source}:{line}: unknown key "{key}"', hint=hint)


def _schema_problems(data: LocatedDict, source: str) -> Iterator[UsageError]:
    schema = data.get("schema")
    if schema == SCHEMA:
        return
    where = f"{source}:{data.lines['schema']}" if "schema" in data.lines else source
    found = "no schema is given" if schema is None else f'schema "{schema}" is not known'
    yield InvalidSpace(f"{where}: {found}", hint=f"Write: schema: {SCHEMA}")


_DEPTHS: Final[Mapping[str | int, int]] = {"knobs": 2, "allowed_only": 2, "declare": 3}
"""Number of path parts that identify one entry; errors further down are reported once."""


def _shape_problems(error: ValidationError, data: LocatedDict, source: str) -> Iterator[UsageError]:
    """Yield one problem per place, although each possible form of an entry reports its own."""
    reported: set[tuple[object, ...]] = set()
    for fault in error.errors(include_url=False):
        location = list(fault["loc"])
        if location[:1] == ["schema"] or (fault["type"] == "extra_forbidden" and len(location) == 1):
            continue
        path: list[str | int] = [part for part, _, _ in steps(data, location)]
        missing = location[-1] if fault["type"] == "missing" else ""
        depth = _DEPTHS.get(path[0], len(path)) if path else 0
        key = (*path[:depth], "" if depth == _DEPTHS["knobs"] else missing)
        if key not in reported:
            reported.add(key)
            yield _shape_problem(fault, path, f"{source}:{line_at(data, location)}")


def _shape_problem(fault: Any, path: Sequence[str | int], where: str) -> InvalidSpace:
    location, kind = list(fault["loc"]), fault["type"]
    shown = ".".join(str(part) for part in path) or "the file"
    section = path[0] if path else ""
    message, hint = wanted(fault), ""
    if section in ("knobs", "allowed_only") and kind == "too_short":
        message, hint = "it has no values", "auto: chosen by the knob; ~: removes an inherited knob."
    elif section in ("knobs", "allowed_only"):
        message = "an entry is a list of values, auto, {low, high, step} or null"
        hint = "low, high and step are whole numbers, step 1 or more." if _is_range(fault["input"]) else ""
    elif kind == "missing":
        message = f"{location[-1]} is missing"
        if location[-1] == "effect":
            hint = "EXACT, NUMERIC or TRAINING: how the knob changes the training."
    elif kind == "extra_forbidden":
        known = _fields(DeclareEntry if section == "declare" else Constraints)
        message = f'unknown key "{location[-1]}"'
        hint = did_you_mean(str(location[-1]), known) or f"Known are: {', '.join(known)}."
    elif location[-1:] == ["effect"]:
        message = f"effect has to be one of {', '.join(_EFFECTS)}"
        hint = did_you_mean(str(fault["input"]).upper(), _EFFECTS)
    elif section == "declare" and "values" in path:
        message = "values are a list, or {low, high, step}"
    elif section == "constraints":
        hint = "Write: constraints: {peak_memory: {at_most: 80%}}"
    return InvalidSpace(f"{where}: {shown}: {message}", hint=hint)


def _is_range(given: object) -> bool:
    return not isinstance(given, (list, str))


# Names ---------------------------------------------------------------------------------------


def _declared_names(data: LocatedDict) -> list[str]:
    entries = data.get("declare")
    names = [
        e.get("name")
        for e in (entries if isinstance(entries, LocatedList) else ())
        if isinstance(e, LocatedDict)
    ]
    return [name for name in names if isinstance(name, str)]


def _unknown(knob: str, where: str, declared: set[str]) -> list[UsageError]:
    known = [*builtin(), *declared]
    return [] if knob in known else [unknown_knob(knob, where, known)]


def _entry_problems(
    entry: object, knob: str, where: str, declared: Mapping[str, DeclaredSpec]
) -> list[UsageError]:
    if isinstance(entry, LocatedDict) and not 0 < _length(entry) <= _MAX_VALUES:
        return [InvalidSpace(f"{where}: {knob} has to have 1 to {_MAX_VALUES} values from low to high")]
    if isinstance(entry, LocatedList) and len(entry) > _MAX_VALUES:
        return [InvalidSpace(f"{where}: {knob} has more than {_MAX_VALUES} values")]
    values = (
        entry if isinstance(entry, LocatedList) else _numbers(entry) if isinstance(entry, LocatedDict) else ()
    )
    own = builtin().get(knob)
    if own is not None and own.derived and values:
        text = f"{where}: {knob} follows from other knobs and takes no values of its own"
        return [InvalidSpace(text, hint=f"Write {knob}: auto, and give values to what it follows from.")]
    return _value_problems(values, knob, where, declared)


def _value_problems(
    values: Sequence[object], knob: str, where: str, declared: Mapping[str, DeclaredSpec]
) -> list[UsageError]:
    """Return the first value that is invalid for a knob, whatever the script and the machine."""
    plain = [v for v in values if isinstance(v, (bool, int, float, str))]
    if knob in declared:
        lost = undeclared(declared[knob], plain)
        text = f"{where}: {knob} is declared without the value {lost[0]}" if lost else ""
        return [InvalidSpace(text, hint=_holds(declared[knob]))] if text else []
    own = builtin().get(knob)
    unknown = None if own is None else meaningless(own, plain)
    if own is None or unknown is None:
        return []
    return [InvalidSpace(f"{where}: {knob} has no value {unknown}", hint=known_values(own, unknown))]


def known_values(knob: Knob, value: Value) -> str:
    """Return the intended value for an unknown one, else the knob's values."""
    known = words(knob)
    if not known:
        return f"Its values are numbers ({knob.unit}), asis, or auto in place of the list."
    return did_you_mean(str(value), known) or f"Known are: {', '.join(known)}."


def _numbers(entry: LocatedDict) -> Sequence[int]:
    """Every number of a range; none where its shape is wrong."""
    low, high, step = entry.get("low"), entry.get("high"), entry.get("step", 1)
    if not isinstance(low, int) or not isinstance(high, int) or not isinstance(step, int) or step < 1:
        return ()
    return range(low, high + 1, step)


def _length(entry: LocatedDict) -> int:
    """Return the number of values in a range; 1 for other entries, which the schema rejects."""
    low, high, step = entry.get("low"), entry.get("high"), entry.get("step", 1)
    if not isinstance(low, int) or not isinstance(high, int) or not isinstance(step, int) or step < 1:
        return 1
    # Not len() of it: that fails above sys.maxsize.
    return max(0, (high - low) // step + 1)


def _holds(spec: DeclaredSpec) -> str:
    return f"Declared are: {', '.join(str(v) for v in spec.values)}."


def _permission_problems(knob: str, where: str, declared: Mapping[str, DeclaredSpec]) -> Iterator[UsageError]:
    if (knob in builtin() or knob in declared) and not is_locked(knob, declared):
        yield InvalidSpace(
            f"{where}: {knob} needs no permission", hint="allowed_only is for TRAINING; put it under knobs."
        )


# Declarations --------------------------------------------------------------------------------


def _declare_problems(written: Written, data: LocatedDict) -> Iterator[UsageError]:
    entries = data.get("declare")
    seen: dict[str, str] = {}
    for index, entry in enumerate(entries if isinstance(entries, LocatedList) else ()):
        if not isinstance(entry, LocatedDict):
            continue
        for field, text, hint in _entry_faults(entry):
            where = written.place("declare", index, field)
            yield InvalidSpace(f"{where}: declare.{index}: {text}", hint=hint)
        name, where = entry.get("name"), written.place("declare", index, "name")
        if isinstance(name, str) and name in seen:
            yield InvalidSpace(f"{where}: {name} is declared twice, first at {seen[name]}")
        elif isinstance(name, str):
            seen[name] = where


def _entry_faults(entry: LocatedDict) -> Iterator[tuple[str, str, str]]:
    """Field, fault and remedy, for everything in a declaration that its shape does not show."""
    name = entry.get("name")
    if isinstance(name, str) and not _NAME.fullmatch(name):
        hint = "Lower case letters, digits and _, beginning with a letter."
        yield "name", f'"{name}" is not a valid name of a knob', hint
    if isinstance(name, str) and name in builtin():
        yield "name", f"{name} is a built-in knob", f"Put it under knobs, or choose another name: my_{name}."
    given = [way for way in _WAYS if entry.get(way)]
    if not given:
        yield "name", "it has no delivery", "Add one of: flag, env, keyword."
    if len(given) > 1:
        deliveries = f"it has {len(given)} deliveries: {', '.join(given)}"
        yield given[1], deliveries, "Keep one; a knob has one delivery."
    for way in given:
        faults = [*_spelling_faults(way, entry[way], name)]
        yield from faults or _power_faults(way, str(entry[way]), entry.get("values"))
    yield from _secret_faults(entry, given)
    yield from _value_faults(entry.get("values"))


def _secret_faults(entry: LocatedDict, given: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield errors for secrets, as searched values are written to many places."""
    hint = "Pass it on the command line or in a variable, as without autotune."
    for way in given:
        if is_secret_name(str(entry[way]).rpartition(":")[2]):
            yield way, f"{entry[way]} has the name of a secret, which cannot be a knob", hint
    values = entry.get("values")
    texts = [v for v in values if isinstance(v, str)] if isinstance(values, LocatedList) else []
    hidden = next((redact(v) for v in texts if redact(v) != v), "")
    if hidden:
        yield "values", f"a value is a secret: {hidden}", hint


def _spelling_faults(way: str, spelled: object, name: object) -> Iterator[tuple[str, str, str]]:
    pattern, example = _SPELLED[way]
    text = str(spelled)
    if not pattern.fullmatch(text):
        yield way, f'{way} "{text}" is not {example.partition(":")[0]}', f"For example {example}"
    elif way == "env" and text.startswith("AUTOTUNE_"):
        yield way, f"{text} is a variable of autotune", "Declare one that the script or a library reads."
    elif way == "env" and text in _OURS:
        yield way, f"{text} is set for each trial by autotune", "Set it before autotune, for all of them."
    elif way == "keyword" and text.startswith("autotune.") and text not in [f"{c}:{name}" for c in _SDK]:
        yield way, f"{text} is part of autotune", f"The script's own values are {_SDK[0]}:{name}"


def _power_faults(way: str, text: str, values: object) -> Iterator[tuple[str, str, str]]:
    """Yield errors for settings that decide which code runs, as the file may be another user's."""
    target, _, keyword = text.rpartition(":")
    spelling = Env(text) if way == "env" else Keyword(target, keyword)
    given = values if isinstance(values, LocatedList) else ()
    if way != "flag" and (reason := refuse_powerful(spelling, given)):
        yield way, reason.rstrip("."), "Set it before autotune, for all trials."


def _value_faults(values: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(values, LocatedDict) and not 0 < _length(values) <= _MAX_VALUES:
        yield "values", f"expected 1 to {_MAX_VALUES} values from low to high", ""
    if not isinstance(values, LocatedList):
        return
    if not 0 < len(values) <= _MAX_VALUES:
        yield "values", f"expected 1 to {_MAX_VALUES} values", ""
        return
    texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    twice = next((t for place, t in enumerate(texts) if t in texts[:place]), None)
    if twice is not None:
        yield "values", f"the value {twice} is listed twice", ""
    if any(not text.strip() or not text.isprintable() for text in texts):
        yield "values", "a value has to be one line of printable text", ""
